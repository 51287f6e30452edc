from __future__ import annotations

import pytest
from clusterctl.cli import output
from clusterctl.cli.output import shown_command


def test_what_is_shown_of_a_command_holds_no_value() -> None:
    pairs = {
        "-e": "-e",
        "a=1 b=2": "a=…",
        "--extra-vars=token=x": "--extra-vars=token=…",
        "-etoken=x": "-etoken=…",
        "--extra-vars": "--extra-vars",
        '{"a": "x"}': "{…}",
        "-v": "-v",
    }
    assert shown_command(list(pairs)) == ("clusterctl", *pairs.values())
    assert shown_command(["-e", "@f"]) == ("clusterctl", "-e", "@f")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (72, "1m12s"), (3780, "1h03m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_folded_hosts() -> None:
    assert output.folded(["node1", "node2", "node3", "gpu7"]) in {"gpu7,node[1-3]", "node[1-3],gpu7"}


@pytest.mark.parametrize(
    ("columns", "width", "whole"), [(None, 160, True), ("70", 70, False), ("wide", 160, True), ("0", 160, True)]
)
def test_without_a_terminal_the_width_is_what_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None, width: int, *, whole: bool
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    output.console.cache_clear()
    try:
        assert output.console().width == width
        output.console().print("word " * 30, soft_wrap=output.keeps_lines())
    finally:
        output.console.cache_clear()
    assert (len(capsys.readouterr().err.splitlines()) == 1) is whole
