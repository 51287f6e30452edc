"""A real Slurm on four nodes: the same verdicts and names inside an allocation as by ssh, and an empty queue after."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import planting
import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.results import CheckResult, ValidationRecord, Verdict
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from clusterctl.validation import idle_part, via_slurm
from clusterctl.validation.checks import registry
from slurm_nodes import (
    EMPTY_WITHIN_S,
    SUBMIT,
    all_take_jobs,
    by_slurm,
    configured,
    drained,
    is_empty,
    partition,
    queue,
)
from validated import NODES, Cluster, patient, result

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("slurm")]

LOOKS = 3
QUICK = ("hello", "allreduce")
HANG_S = 25.0  # a healthy allreduce takes two to five seconds, and the search launches it six times
SLOW = "50mbit"  # a node of the sandbox has a hundred times as much
LONG_CHECK = """
import sys
if "allreduce" in sys.argv:
    import time, numpy
    def never_enters(*_):
        time.sleep(1e6)
    numpy.arange = never_enters
"""


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    yield slurm_cluster
    assert is_empty(slurm_cluster)
    assert slurm_cluster.is_clean()


def swept(cluster: Cluster) -> None:
    """Remove what stays where Slurm kills what does not end in time: daemons' folders, and trials of shared memory."""
    for node in NODES:
        cluster.on(node, "sh", "-c", "rm -rf /tmp/prted.* /dev/shm/open_mpi.*")


def refused(cluster: Cluster, **wish: Any) -> str:
    """Return the one sentence by which Slurm gives no nodes, with exit code 11."""
    with pytest.raises(ValidationCouldNotRunError) as caught:
        by_slurm(cluster, "hello", wish=SlurmOptions(submit_host=SUBMIT, **wish))
    assert caught.value.exit_code is ExitCode.VALIDATION_ERROR
    assert "\n" not in str(caught.value)
    return str(caught.value)


def verdicts(record: ValidationRecord) -> dict[str, str]:
    return {check.check: check.verdict.value for check in record.checks}


def named(found: CheckResult) -> tuple[Verdict, tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    return found.verdict, found.hosts, [(one.kind, one.nodes) for one in found.culprits]


@pytest.mark.parametrize("checks", [QUICK, pytest.param((), id="smoke", marks=pytest.mark.long)])
def test_the_same_suite_has_the_same_verdicts_by_ssh_and_by_slurm(
    cluster: Cluster, tmp_path: Path, checks: tuple[str, ...]
) -> None:
    suite = registry.load(patient(tmp_path, "smoke"))
    ssh = cluster.validate(*checks, suite=suite, search=False)
    slurm = by_slurm(cluster, *checks, suite=suite)
    assert verdicts(slurm) == verdicts(ssh), [check.reason for check in slurm.checks if check.is_bad]
    assert verdicts(slurm)["allreduce"] == "PASS"
    for what in ("hosts", "slots", "launch_node", "openmpi_version", "versions"):
        assert getattr(slurm, what) == getattr(ssh, what)
    assert (ssh.via, ssh.slurm_job, slurm.via) == ("ssh", None, "slurm")
    assert slurm.slurm_job is not None


def test_a_slow_node_is_named(cluster: Cluster) -> None:
    suite = registry.builtin("smoke")
    with planting.slow_link(cluster, "node3", SLOW):
        for _ in range(LOOKS):  # other tests use the same two cores
            found = result(by_slurm(cluster, "pairs", suite=suite), "pairs")
            if found.verdict is Verdict.FAIL:
                break
    assert named(found) == (Verdict.FAIL, ("node3",), [("node", ("node3",))]), found.reason


def test_a_node_with_a_broken_library_is_named_as_by_ssh(cluster: Cluster) -> None:
    with planting.cut_short(cluster, "node2", f"{planting.OPENMPI}/lib/libmpi.so.40"):
        by_ssh = cluster.validate("hello", search=False)
        assert cluster.is_clean()
        try:
            found = by_slurm(cluster, "hello")
        finally:
            swept(cluster)
    assert [(check.check, *named(check)) for check in found.checks if check.is_bad] == [
        (check.check, *named(check)) for check in by_ssh.checks if check.is_bad
    ]
    assert result(found, "provisioned").hosts == ("node2",)
    assert result(found, "provisioned").reason == result(by_ssh, "provisioned").reason


class Run:
    """A validation by the command line, inside an allocation."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        command = cluster.command("--via", "slurm", "--submit-host", SUBMIT, "--format", "jsonl", *options)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read its events until one is such; fail where it ends before."""
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if holds(self.events[-1]):
                return self.events[-1]
        pytest.fail(f"It ended with {self.process.wait()}: {self.process.stderr and self.process.stderr.read()}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def ended(self, within_s: float = 60) -> tuple[int, list[dict[str, Any]]]:
        out, _ = self.process.communicate(timeout=within_s)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, self.events


def of_check(events: list[dict[str, Any]], check: str) -> dict[str, Any]:
    """Return the last result of a check."""
    results = [event["result"] for event in events if event["event"] == "CheckFinished"]
    return next(found for found in reversed(results) if found["check"] == check)


@contextlib.contextmanager
def in_a_check(cluster: Cluster, *options: str) -> Iterator[Run]:
    """Start a run that holds all nodes and whose check never ends, and yield it in the middle of that check."""
    with cluster.in_every_python_of("node3", LONG_CHECK):
        run = Run(cluster, "--checks", "allreduce", *options)
        try:
            run.until(lambda event: event["event"] == "CheckProgress" and "ranks up" in event["text"])
            yield run
        finally:
            run.kill()


def test_killed_runs_leave_no_job_in_the_queue(cluster: Cluster) -> None:
    """One waits in the queue, behind another one in the middle of a check."""
    with in_a_check(cluster) as running:
        waiting = Run(cluster, "--checks", "hello")
        told = waiting.until(lambda event: event.get("check") == via_slurm.ALLOCATION)
        assert "waits for its nodes" in told["text"]
        assert len(queue(cluster)) == 2
        waiting.kill()
        words = refused(cluster, start_within_s=2)
        assert "did not start within 2 s and is cancelled" in words
        assert "--start-within" in words
        until = time.monotonic() + EMPTY_WITHIN_S
        while len(queue(cluster)) > 1 and time.monotonic() < until:
            time.sleep(0.3)
        assert len(queue(cluster)) == 1
        running.kill()
        assert is_empty(cluster)
        assert cluster.is_clean()


def test_a_job_that_is_cancelled_in_a_check_is_no_verdict_about_nodes(cluster: Cluster) -> None:
    try:
        with in_a_check(cluster) as running:
            (job,) = (line.split()[0] for line in queue(cluster))
            cluster.on(SUBMIT, "scancel", job)
            code, events = running.ended()
    finally:
        swept(cluster)
    assert code == ExitCode.VALIDATION_ERROR
    found = of_check(events, "allreduce")
    assert (found["verdict"], found["hosts"], found["culprits"]) == ("ERROR", [], [])
    assert f"Slurm job {job} is gone: it was cancelled" in found["reason"]


def test_what_slurm_does_not_give_is_refused_with_a_sentence(cluster: Cluster) -> None:
    assert "partition 'nowhere'" in refused(cluster, partition="nowhere")
    with partition(cluster, "closed", "AllowAccounts=physics") as closed:
        words = refused(cluster, partition=closed, account="history")
        assert "account 'history' may not submit jobs to partition 'closed'" in words
        assert "-A" in words
    assert "5 nodes" in refused(cluster, nodes=5)


@pytest.mark.long
def test_the_search_inside_an_allocation_names_the_node_that_never_enters(cluster: Cluster) -> None:
    with cluster.in_every_python_of("node3", LONG_CHECK):
        found = result(by_slurm(cluster, "allreduce", search=True, timeout_s=HANG_S), "allreduce")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",)), found.reason
    assert found.search is not None
    assert [(one.kind, one.nodes) for one in found.search.culprits] == [("node", ("node3",))]
    assert all(one.ok is ("node3" not in one.nodes) for one in found.search.launches), found.search.launches
    assert found.reason.startswith("node3: 3 of 3 launches with it failed; 3 of 3 launches without passed")


@pytest.mark.long
def test_nodes_of_different_hardware_are_refused_by_their_kinds(cluster: Cluster) -> None:
    def fewer_cores(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(
            re.sub(r"CoresPerSocket=\d+", "CoresPerSocket=1", one) if "=node4 " in one else one for one in lines
        )

    with configured(cluster, fewer_cores, restart=True):
        all_take_jobs(cluster)
        words = refused(cluster)
    assert "have different hardware (node[1-3]: " in words
    assert "; node4: " in words
    assert "--limit" in words


@pytest.mark.long
def test_a_drained_node_is_refused_by_name_and_left_out_where_slurm_names_the_nodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ansible_inventory.load(cluster.box.inventory).hosts[0]
    with drained(cluster, "node4", "disk full"):
        assert "node4 is drained (disk full)" in refused(cluster)
        monkeypatch.setattr(idle_part, "named", lambda *_: replace(first, become=False))  # as ~/.ssh/config may
        record = by_slurm(cluster, "hello", wish=SlurmOptions(nodes=2, names_nodes=True))
    assert (record.verdict, len(record.hosts)) == (Verdict.PASS, 2)
    assert "node4" not in record.hosts
    assert record.inventory.startswith("slurm:")


@pytest.mark.long
def test_a_job_that_its_time_limit_ends_is_no_verdict_about_nodes(cluster: Cluster) -> None:
    with in_a_check(cluster, "--time", "1", "--timeout", "600") as running:
        code, events = running.ended(within_s=150)
    found = of_check(events, "allreduce")
    assert code == ExitCode.VALIDATION_ERROR
    assert (found["verdict"], found["hosts"], found["culprits"]) == ("ERROR", [], [])
    assert "its time limit of 1 min ended it" in found["reason"]
    assert "--time" in found["reason"]


@pytest.mark.long
def test_a_controller_that_is_down_is_told_before_anything_is_asked(cluster: Cluster) -> None:
    cluster.on(SUBMIT, "sh", "-c", "kill $(cat /run/slurmctld.pid)")
    try:
        words = refused(cluster)
    finally:
        cluster.on(SUBMIT, "sh", "-c", "sleep 1; slurmctld")
    assert "Slurm's controller does not answer" in words
    assert "scontrol ping" in words
    until = time.monotonic() + EMPTY_WITHIN_S
    while "unk" in cluster.on(SUBMIT, "sinfo", "--noheader", "--format=%T") and time.monotonic() < until:
        time.sleep(0.5)
