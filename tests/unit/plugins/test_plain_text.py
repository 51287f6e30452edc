"""Text of nodes becomes plain: one line, printable, bounded."""

from __future__ import annotations

import pytest
from clusterctl.support import content

plain_text = content.module_util("plain_text")
MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("Grüße, 東京 ! ok", "Grüße, 東京 ! ok"),
        ("a\nb\r\nc\td", "a b c d"),
        ("\x1b[31mred", f"{MARK}[31mred"),
        ("\x9b31m", f"{MARK}31m"),
        ("abc\u202edcba\u2066", f"abc{MARK}dcba{MARK}"),
        ("a\u2028b", "a b"),
        ("\x00\x07\x7f", MARK * 3),
        ("\udc80", MARK),
    ],
)
def test_one_line(given: str, plain: str) -> None:
    assert plain_text.one_line(given) == plain


def test_a_long_line_is_cut() -> None:
    assert plain_text.one_line("x" * 100, 10) == "x" * 9 + "…"


def test_a_value_keeps_its_form() -> None:
    given = {"a\n": ["b\x1b", 1, 2.5, None, True, {"c": ("d\te",)}]}
    assert plain_text.inert(given) == {"a ": [f"b{MARK}", 1, 2.5, None, True, {"c": ["d e"]}]}


def nested(levels: int) -> object:
    value: object = "x"
    for _level in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested(20), "is more than 12 levels deep"),
        ("x" * 70000, "has a text of 70000 characters, of at most 65536"),
        ([0] * 200000, "has more than 131072 values"),
        (1 << 400, "has a number of 401 bits, of at most 128"),
        ({1, 2}, "has a value of the type set"),
    ],
)
def test_what_is_too_large_is_refused(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plain_text.inert(value)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        plain_text.inert({"size": [number]})
