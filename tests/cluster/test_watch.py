"""``clusterctl run`` names the rank that stops a job, on real nodes with planted causes, and never a wrong one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import planting
import pytest
import stalled_jobs
from clusterctl.model.job_outcome import StallRecord
from stalled_jobs import FAULTS, HEALTHY, NAMED, PROGRAM, PYSPY, STALL_AFTER_S, WORDS, Told, run, run_healthy
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.xdist_group("stack"),
    pytest.mark.usefixtures("torch_litter"),
]

HOST, CULPRIT = "node3", 4


@pytest.fixture(scope="module")
def cluster(stack_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The shared cluster, whose nodes have py-spy for a while."""
    with stalled_jobs.py_spy(stack_cluster, tmp_path_factory.mktemp("py-spy")):
        yield stack_cluster


@pytest.mark.parametrize(("stack", "fault"), [("mpi", "SIGSTOP")])
def test_a_frozen_rank_is_named(cluster: Cluster, stack: str, fault: str) -> None:
    told = run(cluster, stack, fault)
    assert told.verdict == "rightly", told.sentence
    assert f"{HOST} rank {CULPRIT} is stopped" in told.sentence
    assert cluster.is_clean()


@pytest.mark.parametrize("stall_after_s", [STALL_AFTER_S, 150])
def test_a_frozen_node_is_named(cluster: Cluster, stall_after_s: float) -> None:
    """Shared connections of ssh end after a minute; with the longer patience, each look makes its own."""
    told = run(cluster, "mpi", "frozen node", limit_s=300, stall_after_s=stall_after_s)
    assert told.verdict == "rightly", told.sentence
    assert told.sentence.startswith(f"{HOST} does not answer, 6 others wait")
    assert cluster.is_clean()


def test_a_rank_whose_program_has_ended_is_named(cluster: Cluster) -> None:
    told = run(cluster, "mpi", "exception")
    assert told.verdict == "rightly", told.sentence
    assert f"{HOST} rank {CULPRIT} has ended its program, and its process waits for the other ranks" in told.sentence
    assert cluster.is_clean()


def test_a_rank_that_waits_for_a_lock_is_named(cluster: Cluster) -> None:
    told = run(cluster, "mpi", "lock")
    assert told.verdict == "rightly", told.sentence
    assert f"{HOST} rank {CULPRIT} waits for the lock of /" in told.sentence
    assert ", which process " in told.sentence
    assert cluster.is_clean()


def test_a_way_that_loses_large_packets_is_told_with_both_ends(cluster: Cluster) -> None:
    told = run(cluster, "mpi", "large packets")
    words = "from node2 to node3 small packets pass and large ones are lost: compare the MTU on the way; data "
    assert told.sentence.startswith(words), told.sentence
    assert cluster.is_clean()


@pytest.mark.parametrize("fault", ["endless loop", "input", "full disk", "frozen rank"])
def test_a_cause_is_named_on_nodes_without_a_tool_for_stacks(cluster: Cluster, fault: str) -> None:
    with contextlib.ExitStack() as without:
        for node in NODES:
            without.enter_context(planting.away(cluster, node, PYSPY))
        told = run(cluster, "mpi", fault)
    assert told.verdict == "rightly", told.sentence
    assert f"{HOST} rank {CULPRIT} {'computes' if fault == 'endless loop' else 'does nothing'}" in told.sentence
    assert cluster.is_clean()


def test_each_planted_cause_is_named_rightly_or_is_not_known(cluster: Cluster) -> None:
    found: list[Told] = []
    for stack in ("mpi", "torch", "horovod"):
        for fault in FAULTS:
            found.append(run(cluster, stack, fault))
            one = found[-1]
            row = f"{one.stack:8} {one.fault:19} {one.verdict:10} {one.seconds:5.1f} s  {one.sentence[:150]}"
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            if fault == "out of memory":
                assert record_of(one).kills, one.sentence
            cluster.remove_torch_litter()
            assert cluster.is_clean()
    assert len(NODES) * 2 > CULPRIT
    wrong = [one for one in found if one.verdict == "wrongly"]
    assert not wrong, [one.sentence for one in wrong]
    rightly = [one for one in found if one.verdict == "rightly"]
    assert len(rightly) >= 0.9 * len(found)


@pytest.mark.parametrize("stack", ["mpi", "torch"])
@pytest.mark.parametrize("healthy", HEALTHY)
def test_a_silent_job_that_goes_on_is_left_alone(cluster: Cluster, stack: str, healthy: str) -> None:
    told = run_healthy(cluster, stack, healthy)
    cluster.remove_torch_litter()
    assert told.verdict == "rightly", told.sentence
    assert cluster.is_clean()


def record_of(told: Told) -> StallRecord:
    """Return the record of a job that a death ended."""
    _, _, path = told.sentence.partition(" Its record: ")
    return StallRecord.model_validate_json(Path(path.removesuffix(".")).read_bytes())


# --- a kill for lack of memory that was not the job's -----------------------------------------------------------------

STRANGER = "node2"
HUNGRY = "kept = []\nwhile True: kept.append(b'x' * (16 << 20))"


def test_a_strangers_kill_for_lack_of_memory_names_no_node(cluster: Cluster) -> None:
    """The kernel kills other work on a node: beside a rank that stands still, and beside ranks that fail."""
    for fault, stall in (("endless loop", True), ("exit", False), ("crash", False)):
        with planting.little_memory(cluster, STRANGER, 1536 << 20):
            output = beside_a_stranger(cluster, fault, until_stall=stall)
        text = "\n".join(output)
        named = set(NAMED.findall(text))
        if stall:
            assert named == {HOST}, text
            assert f"{HOST} rank {CULPRIT} is in endless_loop" in text
            assert "lost 1 process" not in text, text
        else:  # the launcher may tell of a rank that lost its peer alone
            assert named <= {HOST}, text
            assert f"the kernel killed 1 process on {STRANGER} for lack of memory; nothing tells that it was" in text, (
                text
            )
        cluster.remove_torch_litter()
        assert cluster.is_clean()


def beside_a_stranger(cluster: Cluster, fault: str, *, until_stall: bool) -> list[str]:
    """Run an MPI program whose fault comes after another program on a node was killed; return the output."""
    ended = f"{planting.TMP}/the-stranger-has-ended"
    given = [("STACK", "mpi"), ("FAULT", fault), ("CULPRIT", str(CULPRIT)), ("UNTIL", ended)]
    words = ["--sync", str(PROGRAM.parent), "--stall-after", str(STALL_AFTER_S), "--timeout", "300"]
    words += [word for name, value in given for word in ("-x", f"{name}={value}")]
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *words, "--", "python", PROGRAM.name]
    container = cluster.box.node(STRANGER).container
    output: list[str] = []
    stranger = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1) as process:
        for line in process.stdout:
            output.append(line.rstrip("\n"))
            if line == "step 3\n":
                eats = ("sh", "-c", 'python3 -c "$1"; echo "ended with $?"', "sh", HUNGRY)
                stranger = cluster.engine.text("exec", container, *eats)  # in the node's control group
                cluster.on(HOST, "touch", ended)
            if until_stall and WORDS.search(line):
                process.terminate()
    cluster.on(HOST, "rm", "-f", ended)
    assert stranger == "ended with 137", stranger
    return output
