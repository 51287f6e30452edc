"""The checks of the training stack on four real nodes without a GPU, and the faults that each of them has to name."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.results import CheckResult, ValidationRecord, Verdict
from clusterctl.validation.checks import registry
from validated import NODES, PYTHON, Cluster, patient, result

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stack")]

WORKER = f"{PYTHON} -u .*torch_checks.py"  # torchrun starts its workers so
ALONE = "single_process_step"
TORCHRUN = f"{PYTHON} /usr/local/python_env/bin/torchrun"
# Faults are planted in a job of two nodes: half as many ranks import PyTorch on the cores of this machine.
PAIR = ("node2", "node3")
# Ranks import PyTorch on a few cores that other tests want as well. Idle, the slowest of eight takes about 15 seconds.
DEADLINE_S = 90.0
STOPPED_S = 30.0
# That figures are right is for other tests to show.
BRIEFLY = """
checks:
  node_speed: {budget_s: 0.5}
  pairs: {budget_s: 50 ms, measure_on: 0}
  collectives: {budget_s: 100 ms, sizes: [8, 1 MiB]}
  horovod_sweep: {budget_s: 100 ms, sizes: [8, 1 MiB]}
"""


@pytest.fixture
def cluster(stack_cluster: Cluster) -> Cluster:
    return stack_cluster


def on_the_pair(cluster: Cluster, check: str, **options: Any) -> CheckResult:
    """Run a check on two nodes; their ranks are 0 and 1, and 2 and 3."""
    return result(cluster.validate(check, inventory=InventoryOptions(limit=",".join(PAIR)), **options), check)


def test_a_healthy_pair_trains_by_each_of_the_three_ways(cluster: Cluster) -> None:
    record = cluster.validate("torchrun", "horovod", "training", inventory=InventoryOptions(limit=",".join(PAIR)))
    for check in ("torchrun", "horovod", "training"):
        found = result(record, check)
        assert found.verdict is Verdict.PASS, found.reason
        assert [rank.host for rank in found.ranks] == [node for node in PAIR for _ in range(2)]
    assert cluster.is_clean()


@pytest.mark.long
def test_everything_passes_and_says_what_carried_it(cluster: Cluster, tmp_path: Path) -> None:
    file = str(patient(tmp_path, "nightly", BRIEFLY))
    done, _ = cluster.run("validate", "--suite-file", file, "--no-history", "--format", "json")
    assert done.returncode == 0, done.stderr + done.stdout
    record = ValidationRecord.model_validate_json(done.stdout)
    assert [check.check for check in record.checks] == [
        *registry.GATE,
        *(check.name for check in registry.select(None)),
    ]
    assert [check.check for check in record.checks if check.verdict is not Verdict.PASS] == ["nccl", "nccl_sweep"]
    assert result(record, "nccl").verdict is Verdict.SKIP
    assert result(record, "nccl").reason.startswith("no GPU on node[1-4]")
    for check in ("torchrun", "horovod", "training"):
        assert [rank.host for rank in result(record, check).ranks] == [node for node in NODES for _ in range(2)]
    assert "over gloo" in result(record, "torchrun").reason
    horovod = result(record, "horovod")
    assert horovod.reason.endswith("over MPI")
    operations = horovod.ranks[0].facts["cpu_operations"]
    assert operations == "MEMCPY_IN_FUSION_BUFFER MPI_ALLGATHER MPI_ALLREDUCE MPI_BCAST"
    assert all(rank.library_path.startswith("/usr/local/openmpi-") for rank in horovod.ranks)
    figures = {figure.name: figure.value for figure in result(record, "training").measurements}
    assert figures["perplexity"] == pytest.approx(figures["single_process_perplexity"], rel=1e-8)
    for check in ("torchrun", "training"):
        told = {figure.quantity: figure for figure in result(record, check).figures if figure.operation != ALONE}
        assert set(told) == {"time", "efficiency", "throughput"}
        assert all(figure.value > 0 for figure in told.values())
        assert len(told["time"].samples) == 19
    assert cluster.is_clean()


def test_a_wrong_average_on_one_rank_is_named(cluster: Cluster) -> None:
    program = (
        "import os, sys\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '3':\n"
        "    import horovod.torch as hvd\n"
        "    right = hvd.allreduce\n"
        "    def wrong(tensor, op=None, **more):\n"
        "        return right(tensor, op=op, **more) * (2 if op is hvd.Average else 1)\n"
        "    hvd.allreduce = wrong\n"
    )
    with cluster.in_every_python_of("node3", program):
        found = on_the_pair(cluster, "horovod")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert found.reason.startswith("rank 3 on node3: average float32[1] on cpu, value 0 (1 of 1 wrong): expected 5.0")
    assert cluster.is_clean()


# What horovodrun does to have Gloo carry everything: a server where the ranks meet, and eight variables.
OVER_GLOO = """
import os, sys
if "horovod" in sys.argv:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    here = {"RANK": rank, "SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2, "CROSS_RANK": rank // 2, "CROSS_SIZE": 2}
    here |= {"HOSTNAME": f"node{rank // 2 + 2}", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "eth0"}
    here |= {"GLOO_RENDEZVOUS_ADDR": "ADDRESS", "GLOO_RENDEZVOUS_PORT": 29871}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in here.items()})
    if rank == 0:
        import threading
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
        server = RendezvousHTTPServer(("", 29871), RendezvousHandler, 0)
        server.init(get_host_assignments(parse_hosts("node2:2,node3:2"), 4))
        threading.Thread(target=server.serve_forever, daemon=True).start()
"""


def test_another_backend_than_the_expected_one_is_named(cluster: Cluster) -> None:
    program = OVER_GLOO.replace("ADDRESS", str(cluster.box.node(PAIR[0]).address))
    with contextlib.ExitStack() as planted:
        for node in PAIR:
            planted.enter_context(cluster.in_every_python_of(node, program))
        found = on_the_pair(cluster, "horovod")
    assert found.verdict is Verdict.FAIL
    assert "tensors in main memory were carried by GLOO and not by MPI: GLOO_ALLGATHER" in found.reason
    assert cluster.is_clean()


@pytest.mark.parametrize(
    ("check", "variable", "rank", "node"),
    [("training", "OMPI_COMM_WORLD_RANK", 1, "node2"), ("torchrun", "RANK", 2, "node3")],
)
def test_a_gradient_of_one_rank_that_is_off_shows_in_everybody_s_loss(
    cluster: Cluster, check: str, variable: str, rank: int, node: str
) -> None:
    program = (
        "import os\n"
        f"if os.environ.get('{variable}') == '{rank}':\n"
        "    import torch\n"
        "    right = torch.nn.functional.cross_entropy\n"
        "    torch.nn.functional.cross_entropy = lambda *given: right(*given) * 1.001\n"
    )
    with cluster.in_every_python_of(node, program):
        found = on_the_pair(cluster, check)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, (node,))
    assert found.reason.startswith(f"rank {rank} on {node}: its own first gradient: expected ")
    assert "loss after 0 steps" in found.ranks[0].problems[0].what
    assert cluster.is_clean()


def test_a_rank_that_dies_while_it_trains_is_named(cluster: Cluster) -> None:
    program = (
        "import os, signal\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '2':\n"
        "    import torch\n"
        "    right, calls = torch.nn.functional.cross_entropy, []\n"
        "    def dying(*given):\n"
        "        calls.append(given)\n"
        "        return right(*given) if len(calls) < 5 else os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    torch.nn.functional.cross_entropy = dying\n"
    )
    with cluster.in_every_python_of("node3", program):
        found = on_the_pair(cluster, "training", timeout_s=DEADLINE_S)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert re.search(r"rank 2 on node3: step 3 of epoch 0 of 4 processes: .* killed by SIGSEGV", found.reason)
    assert cluster.is_clean()


def test_a_worker_that_stops_is_named_when_the_deadline_passes(cluster: Cluster) -> None:
    cluster.when_there_is("node3", WORKER, 'kill -STOP "$rank"', after_s=1)
    found = on_the_pair(cluster, "torchrun", timeout_s=STOPPED_S)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert "no sign of life from rank" in found.reason
    assert "3 others wait" in found.reason
    assert cluster.is_clean()


def test_a_worker_that_is_killed_with_all_its_processes_is_named(cluster: Cluster) -> None:
    session = 'kill -KILL -- "-$(ps -o sid= -p "$rank" | tr -d " ")"'
    cluster.when_there_is("node2", WORKER, session, after_s=2)
    found = on_the_pair(cluster, "torchrun", timeout_s=DEADLINE_S)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert "was killed by SIGKILL, and torchrun ended the others" in found.reason
    assert cluster.is_clean()


@pytest.mark.long
def test_a_torchrun_that_never_starts_its_workers_is_named(cluster: Cluster) -> None:
    cluster.when_there_is("node3", TORCHRUN, 'kill -STOP "$rank"')
    found = on_the_pair(cluster, "torchrun", timeout_s=STOPPED_S)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert "ranks 2 and 3 on node3" in found.reason
    assert cluster.is_clean()


@pytest.mark.repeat
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupt_ends_torchrun_and_its_workers_on_every_node(cluster: Cluster, number: int, code: int) -> None:
    process = subprocess.Popen(cluster.command("--checks", "torchrun"), stderr=subprocess.DEVNULL)
    end = time.monotonic() + DEADLINE_S
    while not cluster.on("node3", "sh", "-c", f"pgrep -f '{WORKER}' || true") and time.monotonic() < end:
        time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(60) == code
    assert cluster.is_clean(within_s=30)
