from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import past_runs
import pytest
from clusterctl.model import run_record
from clusterctl.model.results import ValidationRecord, Verdict
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.nightly import policy, storage
from clusterctl.nightly import run as night
from clusterctl.provisioning.run import ProvisionRequest
from clusterctl.support.errors import ConfigError, LockedError
from clusterctl.validation.checks import registry
from nights import (
    UTC,
    World,
    a_job,
    a_record,
    command,
    provisioned,
)


def test_a_good_night_writes_its_reports_and_tells_nobody(world: World, tmp_path: Path) -> None:
    job = a_job(hook=command(tmp_path, "open('called', 'a').write('x')"), folder=str(tmp_path), suite="smoke")
    storage.write_job(job)
    came = night.run(job, timing=world.timing())
    assert (came.outcome, came.verdict, came.change, came.hook) == ("done", Verdict.PASS, "", None), came
    assert night.exit_code(came) == 0
    assert set(came.reports) == {"html", "junit", "jsonl", "prometheus", "record"}
    assert all(Path(path).stat().st_size for path in came.reports.values())
    assert (
        'clusterctl_night_verdict{inventory="/nowhere/inventory.ini",verdict="PASS"} 1.0'
        in Path(came.reports["prometheus"]).read_text()
    )
    assert came.problems == ()
    assert not (tmp_path / "called").exists()


def test_a_night_inside_an_allocation_asks_slurm_and_leaves_drift_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[SlurmOptions, tuple[str, ...]]] = []

    def validate(inventory: Any, options: Any, wish: SlurmOptions, tell: Any) -> ValidationRecord:
        asked.append((wish, options.argv))
        return world.validate(inventory, options, tell)

    def by_ssh(*_given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(night.via_slurm, "validate", validate)
    monkeypatch.setattr(night.provisioning, "provision", by_ssh)
    wish = SlurmOptions(partition="gpu", submit_host="login", time_s=1800.0)
    storage.write_job(a_job(folder=str(tmp_path), via=wish))
    came = night.run(storage.read_job(storage.job_file("inv-1")), timing=world.timing())
    assert came.verdict is Verdict.PASS
    assert [wish for wish, _ in asked] == [wish]
    assert " ".join(asked[0][1]).endswith("--via slurm --partition gpu --time 30 --submit-host login")
    assert came.drift is not None
    assert "needs ssh and root" in policy.words_of(came.drift)


def test_a_node_that_became_a_little_slower_is_told_once_and_leaves_the_verdict(world: World, tmp_path: Path) -> None:
    rng, last = np.random.default_rng(3), 27
    inventory = tmp_path / "inventory.ini"
    for number in range(last):
        figures = []
        for name in (f"node{node}" for node in range(1, 9)):
            slower = 0.99 if name == "node3" and number >= last - 7 else 1.0
            figures.append(past_runs.figure(float(1e9 * slower * np.exp(rng.normal(0, 0.001))), name))
        world.record = past_runs.record(number, past_runs.check("pairs", Verdict.PASS.value, *figures))
        past_runs.remember(inventory, world.record)
    program = "open('calls', 'a').write(json.load(sys.stdin)['change'] + '\\n')"
    job = a_job(inventory=str(inventory), hook=command(tmp_path, program), folder=str(tmp_path))
    came, again = (night.run(job, timing=world.timing()) for _ in range(2))
    assert [(one.check, one.quantity, one.node) for one in came.slower] == [("pairs", "bandwidth", "node3")]
    assert came.slower[0].words.startswith("pairs: bandwidth: node3 is 1.1 % worse on the last 7 runs than before")
    assert (came.verdict, night.exit_code(came)) == (Verdict.PASS, 0)
    assert (tmp_path / "calls").read_text() == "still PASS; new: slower node3 pairs bandwidth\n"
    assert (again.slower, again.change) == (came.slower, "")


def test_a_history_that_cannot_be_read_is_a_problem_of_the_night(world: World, state: Path, tmp_path: Path) -> None:
    (state / "clusterctl").mkdir(parents=True, mode=0o700)
    (state / "clusterctl" / "history.sqlite3").mkdir()
    came = night.run(a_job(folder=str(tmp_path)), timing=world.timing())
    assert (came.outcome, came.verdict, came.slower) == ("done", Verdict.PASS, ())
    assert any("history.sqlite3" in words for words in came.problems), came.problems


def test_each_night_reads_the_next_slice_and_the_page_shows_the_drift(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []

    def check(request: ProvisionRequest, *_given: Any) -> run_record.RunRecord:
        asked.append(request.slices)
        return provisioned(drifted={"n1": "/etc/x differs: mode 0666, was 0644"}, slices=request.slices).model_copy(
            update={"hosts": (run_record.HostSummary(host="n1", outcome="changed"),)}
        )

    monkeypatch.setattr(night.provisioning, "provision", check)
    first, second = (night.run(a_job(folder=str(tmp_path)), timing=world.timing()) for _ in range(2))
    assert asked == [(0,), (1,)]
    assert second.drift is not None
    assert second.drift.slice == 1
    for kind in ("html", "jsonl"):
        text = Path(first.reports[kind]).read_text(encoding="utf-8")
        assert "n1: /etc/x differs: mode 0666, was 0644" in text, kind


def test_a_fault_is_told_once_and_again_when_it_is_another_or_gone(world: World, tmp_path: Path) -> None:
    program = "open('calls', 'a').write(json.load(sys.stdin)['change'] + '\\n')"
    job = a_job(hook=command(tmp_path, program), folder=str(tmp_path))
    calls = tmp_path / "calls"
    world.record = a_record(Verdict.FAIL)
    first = night.run(job, timing=world.timing())
    assert first.hook is not None
    assert first.hook.ok
    assert night.exit_code(first) == 10
    assert night.run(job, timing=world.timing()).hook is None
    world.run = provisioned(
        drifted={"n1": "/etc/x differs"}, hosts=(run_record.HostSummary(host="n1", outcome="changed"),)
    )
    assert night.run(job, timing=world.timing()).hook is not None
    world.record, world.run = a_record(), provisioned(outcome="nothing to do")
    assert night.run(job, timing=world.timing()).hook is not None
    assert night.run(job, timing=world.timing()).hook is None
    assert [line.partition(";")[0] for line in calls.read_text().splitlines()] == [
        "PASS -> FAIL",
        "still FAIL",
        "FAIL -> PASS",
    ]


def test_a_hook_that_failed_is_called_again_the_next_night(world: World, tmp_path: Path) -> None:
    job = a_job(hook=command(tmp_path, "sys.exit(0 if os.path.exists('mended') else 1)"), folder=str(tmp_path))
    world.record = a_record(Verdict.FAIL)
    failed = night.run(job, timing=world.timing())
    assert failed.hook is not None
    assert not failed.hook.ok
    assert failed.verdict is Verdict.FAIL
    (tmp_path / "mended").touch()
    again = night.run(job, timing=world.timing())
    assert again.hook is not None
    assert again.hook.ok
    assert again.change == failed.change


def test_what_the_validation_found_outlives_a_look_for_drift_that_broke(world: World) -> None:
    world.record, world.run = a_record(Verdict.FAIL), KeyError("x")
    came = night.run(a_job(), timing=world.timing())
    assert (came.outcome, came.verdict) == ("done", Verdict.FAIL), came
    assert came.drift is not None
    assert came.drift.problem == "KeyError: 'x'"


def test_a_validation_yml_beside_the_inventory_speaks_at_night(world: World, tmp_path: Path) -> None:
    references = "references: [{check: pairs, quantity: bandwidth, value: 1 GB/s, lower: -10%}]\n"
    (tmp_path / "validation.yml").write_text(f"extends: smoke\n{references}")
    night.run(a_job(inventory=str(tmp_path / "inventory.ini")), timing=world.timing())
    assert world.suite is not None
    assert (world.suite.name, world.suite.checks) == ("nightly", registry.builtin("nightly").checks)
    assert [entry.value for entry in world.suite.references] == [1e9]


def test_a_host_that_is_held_is_waited_for_and_then_missed(world: World) -> None:
    job = a_job(wait_s=0.0)
    world.record = LockedError("n1 is held by me's 'clusterctl provision' (process 7, since noon); wait for it.")
    told: list[str] = []
    came = night.run(job, told.append, world.timing())
    assert (came.outcome, came.verdict) == ("missed", None)
    assert "process 7" in came.message
    assert night.exit_code(came) == 10
    assert world.waits == []

    patient = a_job(wait_s=1e6)

    def let_go(seconds: float) -> None:
        world.waits.append(seconds)
        if len(world.waits) == 3:
            world.record = a_record()

    timing = night.Timing(sleep=let_go, zone=lambda: UTC)
    assert night.run(patient, told.append, timing).verdict is Verdict.PASS
    assert world.waits == [10.0] * 3
    assert sum("waiting: n1 is held" in text for text in told) == 1


def test_drift_that_waits_in_vain_leaves_the_verdict_of_the_validation(world: World) -> None:
    world.run = LockedError("n1 is held by somebody")
    world.record = a_record(Verdict.FAIL)
    came = night.run(a_job(wait_s=0.0), timing=world.timing())
    assert (came.outcome, came.verdict) == ("done", Verdict.FAIL)
    assert came.drift is not None
    assert "held by somebody" in came.drift.problem


@pytest.mark.parametrize(
    "error", [ConfigError("The inventory /x does not exist."), RuntimeError("boom")], ids=["ours", "unexpected"]
)
def test_a_night_that_cannot_run_is_an_error_and_told(world: World, tmp_path: Path, error: Exception) -> None:
    job = a_job(hook=command(tmp_path, "open('got', 'w').write(sys.stdin.read())"), folder=str(tmp_path))
    world.record = error
    came = night.run(job, timing=world.timing())
    assert (came.outcome, came.verdict) == ("failed", Verdict.ERROR)
    assert str(error) in came.message
    assert night.exit_code(came) == 11
    assert json.loads((tmp_path / "got").read_text())["message"] == came.message
    assert night.run(job, timing=world.timing()).hook is None


def test_an_interrupted_night_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_given: Any) -> ValidationRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(night.validation, "validate", stop)
    job = a_job()
    with pytest.raises(KeyboardInterrupt):
        night.run(job, timing=world.timing())
    assert storage.nights(job.job)[0].outcome == "interrupted"


@pytest.mark.usefixtures("world")
def test_a_second_night_beside_the_first_is_missed(world: World) -> None:
    job = a_job()
    with storage.lock(job.job):
        came = night.run(job, timing=world.timing())
    assert came.outcome == "missed"
    assert "still running" in came.message


def test_missed_nights_are_said_by_the_next(world: World) -> None:
    now = datetime.now(UTC)
    at = (now - timedelta(hours=2)).strftime("%H:%M")
    job = a_job(at=at, since=now - timedelta(days=3, hours=1))
    told: list[str] = []
    came = night.run(job, told.append, world.timing())
    assert len(came.missed) == 2  # the third is this one, late
    assert sum("was missed" in text for text in told) == 2
    assert "was missed" in told[0]
    again = night.run(job, told.append, world.timing())
    assert again.missed == ()
