from __future__ import annotations

import json

import pytest
from clusterctl.suite import ExternalCheck
from clusterctl.validation.checks import parsers
from clusterctl.validation.checks.parsers import UnreadableError


def check(**keys: object) -> ExternalCheck:
    return ExternalCheck.model_validate({"name": "disk", "command": "./disk.sh", **keys})


DD = "64+0 records in\n64+0 records out\n67108864 bytes (67 MB, 64 MiB) copied, 0.0537 s, 1.2 GB/s\n"


def test_a_regular_expression_finds_the_figure_and_its_unit_scales_it() -> None:
    given = check(regex=r"copied, [\d.]+ s, ([\d.]+) GB/s", unit="GB/s", better="higher")
    found = parsers.own_figure(given, DD, ("node1",))
    assert (found.quantity, found.value, found.unit, found.nodes) == ("disk", 1.2e9, "B/s", ("node1",))
    named = check(regex=r"(\d+) bytes .* copied, (?P<value>[\d.]+) s", unit="s", quantity="write_time")
    assert parsers.own_figure(named, DD).value == 0.0537
    assert parsers.own_figure(named, DD).quantity == "write_time"


def test_a_figure_that_its_unit_makes_too_large_is_none() -> None:
    with pytest.raises(UnreadableError, match="is not a number"):
        parsers.own_figure(check(regex=r"([\d.e]+) GB/s", unit="GB/s"), "1e305 GB/s\n")


def test_several_matches_are_samples() -> None:
    found = parsers.own_figure(check(regex=r"^it (\d+)$"), "it 3\nit 1\nit 2\nit x\n" + "it 2\n" * 6)
    assert found.samples == (3, 1, 2, 2, 2, 2, 2, 2, 2)
    assert (found.value, found.low, found.high, found.confidence) == (2, 2, 2, 0.95)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", (1,)),
        ("$.a", (1,)),
        ("b[1].c", (3.5,)),
        ("b[0]", (2,)),
        ("d", (1, 2, 3)),
        ("e-f.g", (1e9,)),
    ],
)
def test_a_path_leads_into_json(path: str, expected: tuple[float, ...]) -> None:
    text = 'warming up {not json}\n{"a": 1, "b": [2, {"c": 3.5}], "d": [1, 2, 3], "e-f": {"g": "1e9"}}\ndone [ok]\n'
    assert parsers.own_figure(check(json_path=path), text).samples == expected


def test_a_list_at_the_top_and_the_last_of_several_documents() -> None:
    assert parsers.own_figure(check(json_path="[1].a"), '[{}, {"a": 7}]').value == 7
    assert parsers.own_figure(check(json_path="a"), '{"a": 1}\n{"a": 2}\n{"b": 3}\n').value == 2


@pytest.mark.parametrize(
    ("keys", "text", "words"),
    [
        ({"regex": "x(y)"}, "", "no line of its output matches 'x(y)'"),
        ({"regex": "x=(.*)"}, "x=fast", "'fast' in its output is not a number"),
        ({"regex": "x=(.*)"}, "x=nan", "'nan' in its output is not a number"),
        ({"regex": "x=(.*)"}, "x=", "'' in its output is not a number"),
        ({"json_path": "a"}, "", "does not hold a whole JSON document"),
        ({"json_path": "a"}, '{"a": 1', "does not hold a whole JSON document"),
        ({"json_path": "a.b"}, '{"a": 1}', "has no value at 'a.b'"),
        ({"json_path": "a[3]"}, '{"a": [1]}', "has no value at 'a[3]'"),
        ({"json_path": "a"}, '{"a": null}', "has no value at 'a'"),
        ({"json_path": "a"}, '{"a": true}', "'True' in its output is not a number"),
        ({"json_path": "a"}, '{"a": []}', "'[]' in its output is not a number"),
        ({"json_path": "a"}, '{"a": NaN}', "not a number"),
        ({"json_path": "a"}, '{"a": [1, "x"]}', "'x' in its output is not a number"),
        ({"json_path": "a"}, "[" * 100_000, "does not hold a whole JSON document"),
        ({"json_path": "a"}, "[\n" * 100_000, "does not hold a whole JSON document"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else next(iter(value)),
)
def test_half_a_log_is_no_figure(keys: dict[str, str], text: str, words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parsers.own_figure(check(**keys), text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_prefix_of_a_document_is_read_as_it() -> None:
    document = {"results": [{"value": 12.5}, {"value": 13}], "value": 1}
    for whole in (json.dumps(document), json.dumps(document, indent=2)):
        for cut in range(len(whole)):
            for path in ("results[0].value", "value", "[0].value"):
                with pytest.raises(UnreadableError):
                    parsers.own_figure(check(json_path=path), whole[:cut])
