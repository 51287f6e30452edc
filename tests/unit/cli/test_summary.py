from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import factory
import pytest
from clusterctl.cli import progress, summary
from clusterctl.model.hosts import InventorySources
from clusterctl.model.run_record import (
    CriticalPath,
    Event,
    Finished,
    HostResult,
    HostSummary,
    Note,
    PathStep,
    Problem,
    RunTiming,
    StageStarted,
    StageTiming,
    TaskStartedOnHost,
)
from clusterctl.state import runs
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


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


# --- timing table ---


OPENMPI = StageTiming(stage="openmpi", wall_s=12.34, run=10, skipped=2)


def test_a_stage_is_a_row_of_words() -> None:
    assert summary.stage_row(OPENMPI) == ("openmpi", "12.3", "10", "2")
    assert summary.stage_row(StageTiming(stage="reading the inventory", wall_s=0.5))[1:] == ("0.5", "", "")


def test_a_stage_of_an_older_release_is_read() -> None:
    old = {"stage": "openmpi", "wall_s": 12.34, "run": 10, "skipped": 2, "controller_cpu_s": 3.4, "node_cpu_s": None}
    assert StageTiming.model_validate(old) == OPENMPI


def test_the_table_leaves_out_what_took_no_time_and_ends_with_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    total = OPENMPI.model_copy(update={"stage": "total"})
    short = StageTiming(stage="asking the user", wall_s=0.01, skipped=3)
    summary.show_timing(factory.run_record(timing=RunTiming(stages=(short, OPENMPI), total=total)))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["Seconds", "STAGE", "openmpi", "total"]


def test_a_run_without_timing_shows_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    summary.show_timing(factory.run_record())
    assert capsys.readouterr().err == ""


def test_the_critical_path_names_the_builds_and_who_waited(capsys: pytest.CaptureFixture[str]) -> None:
    build = PathStep(
        stage="openmpi", task="Compile", host="node1", change="built openmpi 5.0.10", wall_s=249, waited_s=248
    )
    short = PathStep(stage="mpi4py", tasks=6, wall_s=9.04)
    assert summary.path_row(build) == ("openmpi: Compile (built openmpi 5.0.10)", "node1", "249.0", "248.0")
    assert summary.path_row(short) == ("mpi4py: 6 short tasks", "", "9.0", "")
    path = CriticalPath(steps=(build, short), others=7, others_s=2.25)
    summary.show_timing(factory.run_record(timing=RunTiming(stages=(OPENMPI,), total=OPENMPI, critical_path=path)))
    said = capsys.readouterr().err.split("Critical path")[1].splitlines()
    assert [line.split()[0] for line in said[1:]] == ["STEP", "openmpi:", "mpi4py:", "7"]


# --- what a run shows while it goes on ---


def test_a_play_with_roles_in_its_middle_is_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Lines()
    stages = ("horovod", "Switch to the software", "nccl", "openmpi", "nccl", "Switch to the software", "validation")
    for batch in ("batch 1 of 2", "batch 2 of 2"):
        shown.phase(batch)
        for at, stage in enumerate(stages):
            shown.event(StageStarted(at=float(at), stage=stage, task="t"))
    lines = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    installs = [f"{name}: install" for name in ("horovod", "nccl", "openmpi", "nccl")]
    one = [installs[0], "Switch to the software", *installs[1:], "validation: install the checks"]
    assert lines == ["batch 1 of 2", *one, "batch 2 of 2", *one]


def test_the_page_shows_the_longest_steps_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), time.time()
    monkeypatch.setattr(progress.output, "console", lambda: Console(file=written, force_terminal=True, width=120))
    built = HostResult(now - 11, "node1", "openmpi", "Compile", "changed", changes=("built openmpi 5.0.10",))
    with progress.Page(ask=False) as page:
        page.event(StageStarted(at=now - 60, stage="hosts", task="a"))
        page.event(StageStarted(at=now - 59, stage="openmpi", task="Compile"))
        page.event(built)
        page.event(StageStarted(at=now - 10, stage="mpi4py", task="b"))
    assert "longest: built openmpi 5.0.10 on node1 49s → mpi4py 1" in written.getvalue()


def test_a_note_of_the_background_is_told_without_the_time_of_a_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    lines = progress.Lines()
    lines.event(StageStarted(now, "openmpi", "Compile"))
    lines.event(TaskStartedOnHost(now, "node1", "openmpi", "Compile"))
    lines.event(Note(now + 60, "node1", "openmpi: make: 31 files, now mca/btl"))
    lines.event(Note(now + 61, "node2", "packages: Resolved"))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[ 0:00]   node1: openmpi: make, 31 files (1m00s)",
        "[ 0:00]   node2: packages: Resolved",
    ]
    written = io.StringIO()
    monkeypatch.setattr(progress.output, "console", lambda: Console(file=written, force_terminal=True, width=120))
    with progress.Page(ask=False) as page:
        page.event(TaskStartedOnHost(now, "node1", "openmpi", "Compile"))
        page.event(Note(now, "node2", "packages: Resolved"))
    assert "packages: Resolved" in written.getvalue()


def test_a_stage_says_what_it_does_on_how_many_hosts_and_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), time.time()
    monkeypatch.setattr(progress.output, "console", lambda: Console(file=written, force_terminal=True, width=80))

    def head(*events: Event) -> str:
        written.truncate(0)
        with progress.Page(ask=False) as page:
            for event in events:
                page.event(event)
        return next(line for line in written.getvalue().splitlines() if "●" in line)

    begun = [StageStarted(now, "nccl", "Install")]
    begun += [TaskStartedOnHost(now, f"node{number}", "nccl", "Install") for number in range(1, 5)]
    ended = HostResult(now, "node2", "nccl", "Install", "ok")
    assert "nccl: install on 4 hosts, 1 done" in head(*begun, ended)
    raw = "openmpi: make: libtool: install: (cd /var/tmp/x && ./relink)"
    assert "openmpi: compile on node1" in head(*begun, Note(now, "node1", raw))
    assert "relink" not in written.getvalue(), "a raw line is for -v"
    for line in written.getvalue().splitlines():
        assert cell_len(Text.from_ansi(line).plain) <= 80


@pytest.mark.parametrize("raw", [False, True])
def test_raw_lines_of_a_build_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str], *, raw: bool) -> None:
    lines = progress.Lines(progress.Showing(raw=raw))
    lines.event(StageStarted(time.time(), "software", "Build"))
    lines.event(Note(time.time(), "node1", "openmpi: install: libtool: install: (cd /var/tmp/x)"))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.partition("] ")[2] == f"  node1: openmpi: install{': libtool: install: (cd /var/tmp/x)' if raw else ''}"


def test_the_time_that_is_left_comes_from_the_last_provision_that_changed_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/bin/clusterctl", "provision", "-e", "wanted=2"])
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1\n", encoding="utf-8")
    for changed, long_s in ((3, 600.0), (0, 60.0)):  # the second one found nothing to do
        past = runs.start("provision", inventory, ["clusterctl", "provision", "-e", "wanted=…"], {})
        for at, stage in ((0.0, "software"), (1.0, "hosts"), (20.0, "software")):
            past.event(StageStarted(at, stage, "t"))
        past.event(Finished(20.0 + long_s, "successful", 0))
        past.update(outcome="done", hosts=(HostSummary(host="node1", outcome="changed", changed=changed),))
        past.close()
        time.sleep(1.1)  # the id of a run has its second
    lines = progress.Lines(progress.Showing(inventory=InventorySources((str(inventory),))))
    lines.event(StageStarted(time.time(), "software", "t"))
    assert capsys.readouterr().err.rstrip().endswith("software: install (about 10m00s left)")
    monkeypatch.setattr(sys, "argv", ["/bin/clusterctl", "provision"])
    another = progress.Lines(progress.Showing(inventory=InventorySources((str(inventory),))))
    another.event(StageStarted(time.time(), "software", "t"))
    assert "left" not in capsys.readouterr().err, "less or more may be installed by another command"
    other = progress.Lines()
    other.event(StageStarted(time.time(), "software", "t"))
    assert "left" not in capsys.readouterr().err
