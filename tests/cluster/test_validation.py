"""The validation on four real nodes: what it proves when all is well, and whom it names when something is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import planting
import pytest
from clusterctl.model.results import CheckFinished, ValidationEvent, Verdict
from clusterctl.sandbox import Sandbox
from clusterctl.validation import run as validation
from clusterctl.validation.checks import registry
from validated import CLUSTERCTL, NODES, Cluster, patient, result

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

# Room for a machine on which other tests run as well; a healthy check takes two to four seconds.
DEADLINE_S = 20.0


@pytest.fixture
def cluster(mpi_cluster: Cluster) -> Cluster:
    return mpi_cluster


def test_a_healthy_cluster_passes(cluster: Cluster, tmp_path: Path) -> None:
    junit = tmp_path / "validation.xml"
    suite = str(patient(tmp_path, "smoke"))
    options = ("--suite-file", suite, "--no-history", "--format", "json", "--junit", str(junit))
    done = subprocess.run(
        cluster.command(*options),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["verdict"] == "PASS"
    assert record["slots"] == dict.fromkeys(NODES, 2)
    assert [check["check"] for check in record["checks"]] == [
        *registry.GATE,
        *registry.builtin("smoke").checks,
    ]
    ran = [check for check in record["checks"][len(registry.GATE) :] if check["verdict"] == "PASS"]
    for check in ran:
        a_node = 1 if check["check"] in {"node_speed", "pairs"} else 2
        assert [rank["host"] for rank in check["ranks"]] == [node for node in NODES for _ in range(a_node)]
        assert all(rank["library_path"].startswith("/usr/local/openmpi-") for rank in check["ranks"])
        assert (Path(record["folder"]) / check["log"]).is_file()
    skipped = {check["check"]: check["reason"] for check in record["checks"] if check["verdict"] == "SKIP"}
    assert skipped == {
        "gpu_mpi": "no GPU on node[1-4]",
        "nccl": "no GPU and no NCCL on node[1-4]",
        "torchrun": "no PyTorch on node[1-4]",
        "horovod": "no Horovod on node[1-4]",
    }
    suite = ET.parse(junit).getroot()[0]  # noqa: S314 - our own file
    counts = [len(record["checks"]), 0, 0, len(skipped)]
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == [str(count) for count in counts]
    assert cluster.is_clean()


def test_a_stopped_rank_is_named_when_the_deadline_passes(cluster: Cluster) -> None:
    cluster.when_a_rank_runs("node3", "allreduce", 'kill -STOP "$rank"')
    found = result(cluster.validate("allreduce", timeout_s=DEADLINE_S), "allreduce")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert "on node3" in found.reason
    assert "7 others wait" in found.reason
    assert cluster.is_clean()


def test_ranks_that_never_answer_are_named_with_their_node(cluster: Cluster) -> None:
    program = "import sys, time\nif 'reduce' in sys.argv:\n    time.sleep(1e6)\n"
    with cluster.in_every_python_of("node2", program):
        found = result(cluster.validate("reduce", timeout_s=DEADLINE_S), "reduce")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert "no sign of life from ranks 2 and 3 on node2" in found.reason
    assert cluster.is_clean()


def test_a_node_that_freezes_is_named_and_the_rest_goes_on_without_it(cluster: Cluster) -> None:
    container = cluster.box.node("node4").container

    def freeze(event: ValidationEvent) -> None:
        if getattr(event, "check", "") == "broadcast" and "ranks up" in getattr(event, "text", "") and not frozen:
            frozen.append(container)
            planting.freeze(cluster.engine, container)

    frozen: list[str] = []
    try:
        record = cluster.validate("broadcast", "gather", timeout_s=DEADLINE_S, on_event=freeze)
        assert cluster.is_clean(NODES[:3])
    finally:
        cluster.engine.run("unpause", container)
    assert result(record, "reachable").verdict is Verdict.FAIL
    assert result(record, "reachable").hosts == ("node4",)
    assert result(record, "broadcast").hosts == ("node4",)
    assert any("node4" in words for words in result(record, "broadcast").left_behind)
    assert result(record, "gather").verdict is Verdict.PASS
    assert {rank.host for rank in result(record, "gather").ranks} == set(NODES[:3])
    assert cluster.is_clean()


def test_another_libmpi_on_one_node_is_named(cluster: Cluster) -> None:
    real = cluster.on("node3", "readlink", "-f", "/usr/local/openmpi")
    cluster.on("node3", "cp", "-a", real, f"{real}-other")
    cluster.on("node3", "ln", "-sfn", f"{real}-other", "/usr/local/openmpi")
    try:
        record = cluster.validate("hello")
    finally:
        cluster.on("node3", "ln", "-sfn", Path(real).name, "/usr/local/openmpi")
        cluster.on("node3", "rm", "-r", f"{real}-other")
    found = result(record, "hello")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert f"{real}-other/lib/libmpi.so" in found.reason


def test_a_wrong_number_is_named_with_rank_and_host_and_both_figures(cluster: Cluster) -> None:
    program = (
        "import os, sys\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '3':\n"
        "    import numpy\n"
        "    right = numpy.arange\n"
        "    numpy.arange = lambda count: right(count) + (right(count) == 2)\n"
    )
    with cluster.in_every_python_of("node2", program):
        record = cluster.validate("gather", "allreduce")
    gathered = result(record, "gather")
    assert (gathered.verdict, gathered.hosts) == (Verdict.FAIL, ("node2",)), gathered.reason
    assert "value 2 from rank 3" in gathered.reason
    assert "expected 12, got 16" in gathered.reason
    reduced = result(record, "allreduce")
    assert reduced.hosts == ("node2",), "all checks of a run count together"
    assert reduced.reason.startswith("node2 makes values wrong, as 'gather' shows; rank 0 on node1: allreduce sum ")
    assert "expected 108, got 112" in reduced.reason
    assert validation.exit_code(record) == 10
    assert cluster.is_clean()


def test_a_rank_that_dies_is_named(cluster: Cluster) -> None:
    cluster.when_a_rank_runs("node3", "scatter", 'kill -SEGV "$rank"')
    found = result(cluster.validate("scatter", timeout_s=DEADLINE_S), "scatter")
    assert found.verdict is Verdict.FAIL
    assert "node3" in found.hosts
    # mpirun 5.0 that does not end after a rank died at its start tells no number of the signal.
    assert any(word in found.reason for word in ("SIGSEGV", "signal 11", "by a signal before it was up")), found.reason
    assert cluster.is_clean()


def test_a_changed_program_is_not_trusted(cluster: Cluster) -> None:
    program = "/usr/local/libexec/clusterctl/mpi_checks.py"
    cluster.on("node2", "sh", "-c", f"cp -a {program} /root/kept; echo '# changed' >> {program}")
    try:
        record = cluster.validate("hello")
    finally:
        cluster.on("node2", "mv", "/root/kept", program)
    assert (result(record, "provisioned").verdict, result(record, "provisioned").hosts) == (Verdict.FAIL, ("node2",))
    assert {rank.host for rank in result(record, "hello").ranks} == {"node1", "node3", "node4"}


def test_a_node_that_is_down_is_named_and_the_rest_is_proved(cluster: Cluster) -> None:
    with planting.frozen(cluster, "node1"):  # the one that mpirun would be started on
        record = cluster.validate("hello")
    assert (result(record, "reachable").verdict, result(record, "reachable").hosts) == (Verdict.FAIL, ("node1",))
    assert result(record, "hello").verdict is Verdict.PASS
    assert record.launch_node == "node2"
    assert validation.exit_code(record) == 10


@pytest.mark.repeat
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_run_leaves_nothing_on_any_node(cluster: Cluster, number: int, code: int) -> None:
    process = subprocess.Popen(
        cluster.command("--checks", "point_to_point", "--format", "jsonl"), stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if "ranks up" in line:
            break
    process.send_signal(number)
    assert process.wait(60) == code
    process.stdout.close()
    assert cluster.is_clean(within_s=30)


def test_what_was_never_provisioned_could_not_run(sandbox: Start) -> None:
    box = sandbox("bare", nodes=1)
    done = subprocess.run(
        [*CLUSTERCTL, "validate", str(box.inventory)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 11
    assert "run 'clusterctl provision" in done.stderr
    assert "Traceback" not in done.stderr


def test_events_come_while_it_runs(cluster: Cluster) -> None:
    heard: list[ValidationEvent] = []
    cluster.validate("hello", on_event=heard.append)
    finished = [event.result.check for event in heard if isinstance(event, CheckFinished)]
    assert finished == [*registry.GATE, "hello"]


def test_bad_options_get_a_sentence(cluster: Cluster) -> None:
    for options, words in (
        (["--checks", "all-reduce"], "did you mean 'allreduce'?"),
        (["--launch-node", "node9"], "not one of the selected hosts: node1, node2, node3, node4"),
        (["--junit", "/no/such/folder/x.xml"], "does not exist"),
        (["--limit", "nobody"], "matches no host"),
    ):
        done = subprocess.run(cluster.command(*options), capture_output=True, text=True, check=False)
        assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
