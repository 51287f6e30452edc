from __future__ import annotations

import json

import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.report import exports
from report_records import CHECKS, HUNG, PAIRS, SLOW, record, records


@pytest.mark.parametrize("one", records())
def test_each_line_is_an_object_that_says_what_it_is(one: ValidationRecord) -> None:
    lines = [json.loads(line) for line in exports.json_lines(one)]
    assert lines[0]["type"] == "run"
    assert [line["check"] for line in lines if line["type"] == "check"] == [check.check for check in one.checks]
    assert {line["run_id"] for line in lines} == {one.run_id}
    assert sum(line["type"] == "figure" for line in lines) == sum(len(check.figures) for check in one.checks)


def test_what_is_no_number_is_null() -> None:
    odd = PAIRS.model_copy(update={"figures": (SLOW.model_copy(update={"value": float("nan")}),)})
    figures = [json.loads(line, parse_constant=pytest.fail) for line in exports.json_lines(record((odd,)))]
    assert [line["value"] for line in figures if line["type"] == "figure"] == [None]


def test_lines_count_ranks_and_name_culprits() -> None:
    lines = [json.loads(line) for line in exports.json_lines(record((*CHECKS, HUNG)))]
    assert next(line for line in lines if line.get("check") == "allreduce")["ranks"] == {"answered": 1, "waiting": 1}
    assert [line["nodes"] for line in lines if line["type"] == "culprit"] == [["node4"]]
