"""``clusterctl run --detach`` and ``clusterctl jobs`` on real nodes: a job outlives its controller and its terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

BOTH = ("node1", "node2")
FOLDER = "/home/cluster/.local/state/clusterctl/jobs"
STUBBORN = ("sh", "-c", "trap '' TERM; echo up; sleep 600 & wait; sleep 600")


@pytest.fixture
def cluster(mpi_cluster: Cluster) -> Iterator[Cluster]:
    """Nodes without a detached job, before and afterwards."""
    yield mpi_cluster
    for job in jobs(mpi_cluster)["jobs"]:
        command(mpi_cluster, "stop", job["job"])
    for node in BOTH:
        mpi_cluster.on(node, "rm", "-rf", "/home/cluster/.local")
    assert mpi_cluster.is_clean()


def words(cluster: Cluster, *more: str) -> list[str]:
    return [*CLUSTERCTL, "run", "--detach", "--limit", ",".join(BOTH), *more[:-1], str(cluster.box.inventory), "--"]


def detached(cluster: Cluster, *program: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = [*words(cluster, *options, ""), *program]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)


def started(cluster: Cluster, *program: str, options: tuple[str, ...] = ()) -> str:
    done = detached(cluster, *program, options=options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(cluster: Cluster, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [*CLUSTERCTL, "jobs", verb, "--limit", ",".join(BOTH), str(cluster.box.inventory), *more]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)


def jobs(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(cluster, "list", "--format", "json").stdout)
    return found


def job(cluster: Cluster, name: str) -> dict[str, Any]:
    return next(dict(one) for one in jobs(cluster)["jobs"] if one["job"] == name)


def ranks(cluster: Cluster, name: str) -> list[str]:
    """The processes of a job by node and number, of any user."""
    script = f"grep -lsxz CLUSTERCTL_JOB={name} /proc/[0-9]*/environ || true"
    return cluster.everywhere(
        lambda node: [f"{node}:{one}" for one in cluster.on(node, "sh", "-c", script).split()], BOTH
    )


def until(ready: Callable[[], object], within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.3)


def test_a_job_outlives_its_controller_and_its_terminal(cluster: Cluster) -> None:
    controller, terminal = pty.openpty()
    script = "for n in $(seq 600); do echo line $n of $OMPI_COMM_WORLD_RANK; sleep 0.5; done"
    process = subprocess.Popen(
        [*words(cluster, ""), "sh", "-c", script],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        start_new_session=True,
    )
    os.close(terminal)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert name.startswith("run-")
    os.killpg(process.pid, signal.SIGKILL)
    os.close(controller)
    process.wait(30)
    before = command(cluster, "logs", name).stdout
    until(lambda: len(command(cluster, "logs", name).stdout) > len(before) + 20)
    assert {"line 1 of 0", "line 1 of 3"} <= set(before.splitlines())
    assert len(command(cluster, "logs", "--tail", "2", name).stdout.splitlines()) == 2
    found = job(cluster, name)
    assert (found["state"], found["code"], found["launch_node"], found["nodes"]) == (
        "running",
        None,
        "node1",
        list(BOTH),
    )
    assert found["command"][:2] == ["sh", "-c"]
    modes = cluster.on("node1", "stat", "-c", "%U %a", FOLDER, f"{FOLDER}/{name}", f"{FOLDER}/{name}/log.0")
    assert modes.splitlines()[:2] == ["cluster 700", "cluster 700"]
    assert modes.splitlines()[2] == "cluster 600"


def test_stop_ends_all_ranks_and_nothing_else(cluster: Cluster) -> None:
    name, other = started(cluster, *STUBBORN), started(cluster, "sleep", "600", options=("-np", "2"))
    assert {one.partition(":")[0] for one in ranks(cluster, name)} == set(BOTH)
    root = f"CLUSTERCTL_JOB={name} setsid sleep 611 >/dev/null 2>&1 & echo $!"
    stranger = cluster.on("node2", "sh", "-c", root)
    try:
        kept = ranks(cluster, other)
        done = command(cluster, "stop", name[:8])
        assert done.returncode == 0, done.stderr
        assert f"Job {name} is ended on node[1-2]." in done.stderr
        assert ranks(cluster, name) == [f"node2:/proc/{stranger}/environ"], "another user's process is not ours to end"
        assert ranks(cluster, other) == kept
        assert (job(cluster, name)["state"], job(cluster, other)["state"]) == ("stopped", "running")
        again = command(cluster, "stop", name)
        assert (again.returncode, "There is nothing to stop." in again.stderr) == (0, True)
    finally:
        cluster.on("node2", "kill", stranger)


def test_an_ended_job_tells_its_code(cluster: Cluster) -> None:
    name = started(cluster, "sh", "-c", "sleep 3; echo bye; exit 7", options=("--prefix", "host"))
    followed = command(cluster, "logs", "-f", name)
    assert followed.returncode == 7
    assert "[node1] bye" in followed.stdout.splitlines()
    assert f"Job {name} has ended with exit code 7." in followed.stderr
    found = job(cluster, name)
    assert (found["state"], found["code"], found["may_still_run"]) == ("ended", 7, [])
    assert ranks(cluster, name) == []
    late = started(cluster, "sleep", "600", options=("--timeout", "3"))
    assert command(cluster, "logs", "-f").returncode == 124
    assert (job(cluster, late)["state"], job(cluster, late)["code"]) == ("timed out", 124)


def test_a_killed_keeper_ends_its_job_everywhere(cluster: Cluster) -> None:
    name = started(cluster, *STUBBORN)
    keeper = cluster.on("node1", "pgrep", "-u", "cluster", "-f", f"keep {name}")
    cluster.on("node1", "kill", "-KILL", keeper)
    until(lambda: not ranks(cluster, name))
    found = job(cluster, name)
    assert (found["state"], found["code"]) == ("lost", None)
    assert command(cluster, "logs", "-f", name).returncode == 2
    assert command(cluster, "stop", name).returncode == 0


def test_what_cannot_start_says_so(cluster: Cluster) -> None:
    for options, program, code, sentence in (
        ((), ("no-such-program",), 1, "no-such-program is missing on all nodes"),
        (("-np", "99"), ("hostname",), 1, "99 ranks do not fit"),
        (("--search",), ("hostname",), 2, "nobody stays for --search"),
        (("--pace",), ("hostname",), 2, "nobody stays for --pace"),
    ):
        done = detached(cluster, *program, options=options)
        assert (done.returncode, done.stdout, sentence in done.stderr) == (code, "", True), done.stderr
    with cluster.with_file("/home/cluster/.local", "in the way", nodes=("node1",)):
        done = detached(cluster, "hostname")
        assert (done.returncode, done.stdout) == (2, "")
        assert "could not be started on node1: the folder of its log cannot be made" in done.stderr


def test_a_job_that_is_not_there(cluster: Cluster) -> None:
    empty = command(cluster, "logs")
    assert empty.returncode == 1
    assert "There is no detached job of the user cluster on node[1-2]; start one" in empty.stderr
    name = started(cluster, "sleep", "600")
    unknown = command(cluster, "stop", "run-0000\n\x1b[2J")
    assert unknown.returncode == 1
    assert "There is no detached job 'run-0000\\n\\x1b[2J' of the user cluster" in unknown.stderr
    copied = f"mkdir -p /root{FOLDER[13:]} && mv {FOLDER}/{name} /root{FOLDER[13:]}/"
    back = f"mv /root{FOLDER[13:]}/{name} {FOLDER}/ && cd /root && rmdir -p {FOLDER[14:]}"
    cluster.on("node1", "sh", "-c", copied)
    try:  # now it is a job of another user
        assert command(cluster, "stop", name).returncode == 1
        assert ranks(cluster, name)
    finally:
        cluster.on("node1", "sh", "-c", back)
    cluster.engine.run("pause", cluster.box.node("node1").container)
    try:
        silent = command(cluster, "logs", name)
        assert silent.returncode == 4
        assert "on node2. node1" in silent.stderr
        assert command(cluster, "list").returncode == 4
    finally:
        cluster.engine.run("unpause", cluster.box.node("node1").container)
    assert job(cluster, name)["state"] == "running"
