from __future__ import annotations

import pytest
from clusterctl.model.results import CheckResult, ValidationRecord, Verdict, worst
from report_records import CHECKS, record


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([], Verdict.ERROR),
        ([Verdict.PASS, Verdict.SKIP], Verdict.PASS),
        ([Verdict.SKIP], Verdict.SKIP),
        ([Verdict.PASS, Verdict.ERROR], Verdict.ERROR),
        ([Verdict.ERROR, Verdict.FAIL, Verdict.PASS], Verdict.FAIL),
    ],
)
def test_the_whole_is_as_bad_as_its_worst_part(verdicts: list[Verdict], whole: Verdict) -> None:
    assert worst([CheckResult(check="x", verdict=verdict, reason="") for verdict in verdicts]) is whole


def test_a_record_survives_the_disk() -> None:
    plain = record(CHECKS[:1])
    assert ValidationRecord.model_validate_json(plain.model_dump_json()) == plain
