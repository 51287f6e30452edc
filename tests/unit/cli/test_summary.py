from __future__ import annotations

from typing import TYPE_CHECKING

import factory
from clusterctl.cli import summary
from clusterctl.model.run_record import HostSummary, Problem

if TYPE_CHECKING:
    import pytest


def test_many_alike_hosts_are_one_row() -> None:
    hosts = tuple(HostSummary(host=f"n{number}", outcome="ok") for number in range(1, 65))
    assert [name for name, _ in summary._rows(hosts)] == ["n[1-64]"]  # noqa: SLF001 - seen without a terminal


def test_the_number_of_changes_and_their_list_are_the_same_thing(capsys: pytest.CaptureFixture[str]) -> None:
    host = HostSummary(host="node1", outcome="changed", changed=17, changes=tuple(f"c{n}" for n in range(48)))
    summary._hosts((host,))  # noqa: SLF001 - seen without a terminal
    said = capsys.readouterr().err
    assert "c5 and 42 more" in said
    assert " 48 " in said
    assert "17" not in said


AWAY = Problem(host="n1", subject="timeout", problem="does not answer", kind="unreachable")
ARGV = ("clusterctl", "provision", "i.ini")


def test_a_host_that_cannot_be_reached_leads_to_one_line_with_the_options() -> None:
    hosts = (HostSummary(host="n1", outcome="unreachable"), HostSummary(host="n2", outcome="not run"))
    record = factory.run_record(argv=ARGV, outcome="unreachable", exit_code=4, problems=(AWAY,), hosts=hosts)
    (line,) = summary.closing_lines(record)
    assert "Stopped before anything was changed" in line
    assert "'--skip-unreachable' provisions the others now" in line
    assert "'--max-fail N|P%'" in line
    # A rollback has no such option, no host is left, or another problem stands in the way as well.
    for other in ({"verb": "rollback"}, {"hosts": hosts[:1]}, {"argv": (*ARGV, "--skip-unreachable")}):
        (line,) = summary.closing_lines(record.model_copy(update=other))
        assert "provisions the others now" not in line
    uninstall = record.model_copy(update={"verb": "uninstall"})
    assert "'--skip-unreachable' cleans the others now" in summary.closing_lines(uninstall)[0]


def test_too_many_that_are_left_out_are_told_with_the_number() -> None:
    words = "Stopped: 1 host failed or could not be reached, and --max-fail allows 0. Nothing was changed."
    fields = {"argv": ARGV, "outcome": "unreachable", "exit_code": 4, "problems": (AWAY,), "message": words}
    (line,) = summary.closing_lines(factory.run_record(left_out=("n1",), **fields))
    assert line == f"{words} Put this right or allow more, then repeat 'clusterctl provision i.ini'."


def test_hosts_that_are_left_out_are_told_apart_from_those_that_failed() -> None:
    hosts = tuple(
        HostSummary(host=name, outcome=outcome)  # type: ignore[arg-type]
        for name, outcome in (("n1", "unreachable"), ("n2", "failed"), ("n3", "changed"))
    )
    record = factory.run_record(argv=ARGV, outcome="unreachable", exit_code=4, hosts=hosts, left_out=("n1",))
    failed, away = summary.closing_lines(record)
    assert failed.startswith("n2 did not get through, the others finished.")
    assert away.startswith("Left out, for they cannot be reached: n1.")
    assert "brings them in" in away
    assert "cleans them" in summary.closing_lines(record.model_copy(update={"verb": "uninstall"}))[1]
    stopped = record.model_copy(update={"message": "Batch 1 of 2 failed (failed: n2; not touched: n3)."})
    assert "the others finished" not in " ".join(summary.closing_lines(stopped))
