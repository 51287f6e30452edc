from __future__ import annotations

from datetime import datetime, timedelta, timezone
from xml.etree import ElementTree as ET

import pytest
from clusterctl.model.results import CheckResult, Measurement, RankReport, ValidationRecord, Verdict, WrongAnswer, worst
from clusterctl.report import junit, validation_table

BEGAN = datetime(2026, 3, 1, 2, 30, tzinfo=timezone.utc)
# Escape sequences, a bell, a NUL, a lone surrogate and the markup that a careless writer passes through.
NASTY = '\x1b[31mred\x1b[0m \x07 \x00 \ud800 \ufffe <b>&"quoted"</b> ]]> Grüße\ttab'

CHECKS = (
    CheckResult(check="reachable", verdict=Verdict.PASS, reason="4 nodes answer", seconds=0.5),
    CheckResult(
        check="allreduce",
        verdict=Verdict.FAIL,
        reason=f"rank 3 on node2: {NASTY}",
        hosts=("node2",),
        seconds=3.25,
        command=("mpirun", "-np", "8", "a b"),
        repeat="clusterctl validate inventory.ini --checks allreduce",
        ranks=(
            RankReport(rank=2, host="node2", state="waiting", ok=False, step="allreduce sum f8[3]"),
            RankReport(
                rank=3,
                host="node2",
                ok=False,
                problems=(WrongAnswer(what="allreduce sum f8[3]", expected="36.0", got="35.0"),),
                facts={"backend": "MPI"},
            ),
        ),
        left_out={"node5": "no GPU"},
        measurements=(Measurement(name="total", value=3.25, unit="s"),),
        log="logs/allreduce.log",
        evidence=(NASTY,),
    ),
    CheckResult(
        check="gather", verdict=Verdict.ERROR, reason="mpirun was not started", seconds=1.0, left_behind=("node3: x",)
    ),
    CheckResult(check="reduce", verdict=Verdict.SKIP, reason="no node is left that answers"),
)


def record(checks: tuple[CheckResult, ...] = CHECKS) -> ValidationRecord:
    return ValidationRecord(
        clusterctl_version="0.1.0",
        run_id="20260301T023000Z-validate-1",
        inventory="/etc/cluster.ini",
        started=BEGAN,
        finished=BEGAN + timedelta(seconds=9.5),
        launch_node="node1",
        hosts=("node1", "node2"),
        slots={"node1": 2, "node2": 2},
        openmpi_version="5.0.7",
        folder="/state/run",
        verdict=worst(checks),
        checks=checks,
    )


def test_junit_is_xml_whatever_the_logs_hold() -> None:
    text = junit.document(record())
    root = ET.fromstring(text.encode())  # noqa: S314 - our own text
    assert root.tag == "testsuites"
    assert "\x1b" not in text
    assert "\\x1b[31mred" in root.findtext(".//testcase[@name='allreduce']/system-out", "")


def test_junit_counts_and_names_each_kind() -> None:
    suite = ET.fromstring(junit.document(record()).encode())[0]  # noqa: S314 - our own text
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time", "timestamp")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "9.500",
        "timestamp": "2026-03-01T02:30:00",
    }
    kinds = {
        case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite.iter("testcase")
    }
    assert kinds == {"reachable": [], "allreduce": ["failure"], "gather": ["error"], "reduce": ["skipped"]}


def test_junit_carries_the_evidence() -> None:
    suite = ET.fromstring(junit.document(record()).encode())[0]  # noqa: S314 - our own text
    case = next(case for case in suite.iter("testcase") if case.get("name") == "allreduce")
    failure = case.findtext("failure", "")
    assert "rank 3 on node2: allreduce sum f8[3]: expected 36.0, got 35.0" in failure
    assert "rank 2 on node2: waiting in allreduce sum f8[3]" in failure
    assert "rank 3 on node2: backend: MPI" in failure
    said = case.findtext("system-out", "")
    assert "command: mpirun -np 8 'a b'" in said
    assert "repeat: clusterctl validate inventory.ini --checks allreduce" in said
    assert "total: 3.25 s" in said
    assert "not on node5: no GPU" in said


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


def test_the_table_says_what_to_do_next() -> None:
    rows = validation_table.rows(record())
    assert [(row.check, row.time) for row in rows] == [
        ("reachable", "0.50 s"),
        ("allreduce", "3.25 s"),
        ("gather", "1.00 s"),
        ("reduce", ""),
    ]
    assert validation_table.closing(record()) == (
        "FAIL: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",
        "May still be running: node3: x",
        "What allreduce printed: /state/run/logs/allreduce.log",
        "See it again: clusterctl validate inventory.ini --checks allreduce",
    )
    assert validation_table.closing(record(CHECKS[:1])) == ("PASS: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",)


def test_a_record_survives_the_disk() -> None:
    plain = record(CHECKS[:1])
    assert ValidationRecord.model_validate_json(plain.model_dump_json()) == plain
