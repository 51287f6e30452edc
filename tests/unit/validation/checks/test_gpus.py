"""The checks of GPUs: their programs on stand-ins for CUDA, PyTorch and mpi4py, and the verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Figure, Verdict
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.gpus import GpuCompute, GpuCopies, GpuMpi
from node_programs import load

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[4]
FAKE = ROOT / "tests" / "gpu" / "fake"
PROGRAMS = ROOT / "roles" / "validation" / "files"
STACK = NodeStack(gpus=2, framework="pytorch", framework_cuda="13")
SMI = "#!/bin/sh\n" + "".join(
    f"echo '{index}, Fake GPU, 00000000:0{index + 1}:00.0, 54, 1980, 1980, 612.00, 700.00, {{mask}}'\n"
    for index in (0, 1)
)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins for libcuda and libmpi, beside an nvidia-smi that finds both GPUs at their power limit."""
    folder = tmp_path_factory.mktemp("stand_ins")
    for source, library in (("cuda.c", "libcuda.so.1"), ("mpi.c", "libmpi.so.40")):
        target = [f"-Wl,-soname,{library}", "-o", str(folder / library), str(FAKE / source)]
        subprocess.run(["cc", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", *target], check=True)
    smi = folder / "nvidia-smi"
    smi.write_text(SMI.format(mask="0x0000000000000004"), encoding="utf-8")
    smi.chmod(0o755)
    return folder


def environment(stand_ins: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(stand_ins),
        "PATH": f"{stand_ins}:{os.environ['PATH']}",
        "PYTHONPATH": str(FAKE / "python"),
        "FAKE_GPUS": "2",
        **more,
    }


def played(stand_ins: Path, check: str, *options: str, node: int = 0, **more: str) -> list[OutputLine]:
    """Run the program of a node's GPUs, and return what it printed as that of a node."""
    command = [sys.executable, str(PROGRAMS / "gpu_checks.py"), "--check", check, "--deadline", "60", *options]
    surroundings = environment(stand_ins, OMPI_COMM_WORLD_RANK=str(node), OMPI_COMM_WORLD_SIZE="2", **more)
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    text = f"{done.stdout}{done.stderr}"
    assert max(map(len, text.splitlines())) < 4096  # one write of a pipe
    host = json.dumps(f"node{node + 1}")
    lines = [json.loads(line) | {"host": json.loads(host)} for line in text.splitlines() if line.startswith("{")]
    return [OutputLine("stdout", 1.0, json.dumps(line)) for line in lines]


def computed(stand_ins: Path, node: int = 0, **more: str) -> list[OutputLine]:
    return played(stand_ins, "gpu_compute", "--order", "32", "--budget", "0.05", node=node, **more)


def copied(stand_ins: Path, node: int = 0, **more: str) -> list[OutputLine]:
    return played(stand_ins, "gpu_copies", "--size", "65536", "--budget", "0.02", node=node, **more)


def site(nodes: int = 1) -> base.Site:
    names = [f"node{number + 1}" for number in range(nodes)]
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(names, 2),
        names={name: name for name in names},
        stack=dict.fromkeys(names, STACK),
    )


def judged(check: base.Check, lines: list[OutputLine], nodes: int = 1, rc: int = 0) -> base.Judgement:
    return check.judge(site(nodes), JobOutcome(lines=tuple(lines), ending="exited", seconds=9.0, rc=rc))


# --- gpu_compute ------------------------------------------------------------------------------------------------------


def test_gpus_that_compute_right_pass_with_the_speed_of_each_type(stand_ins: Path) -> None:
    found = judged(GpuCompute(), computed(stand_ins) + computed(stand_ins, node=1), nodes=2)
    assert (found.verdict, found.hosts) == (Verdict.PASS, ())
    assert found.reason.startswith("4 GPUs, ")
    assert "values right in fp32, tf32, bf16, fp16, fp8; the same bits on GPUs of one model; fp32 " in found.reason
    assert len(found.figures) == 2 * 2 * 5
    one = found.figures[0]
    assert (one.quantity, one.operation, one.backend, one.device) == ("gpu_compute", "fp32", "Fake GPU", "GPU 0")
    assert found.ranks[0].facts["gpu1_state"] == "1980 of 1980 MHz, 54 C, 612 of 700 W: power limit"
    assert found.ranks[0].figures["gpu0_clock_hz"] == 1.98e9
    digests = {report.facts[f"gpu{index}_digests"] for report in found.ranks for index in (0, 1)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "known@1",
            "node1: fp32 product of whole numbers on GPU 1 (Fake GPU, 0000:02:00.0), value 34 (1 of 1024 wrong)",
        ),
        ("sometimes@1", "differ from the first: expected value 100: "),
        (
            "nan@1",
            "node1: values that are not a number in a fp32 product on GPU 1 (Fake GPU, 0000:02:00.0): expected 0",
        ),
        (
            "lost@1",
            "node1: a product in fp32 on GPU 1 (Fake GPU, 0000:02:00.0): expected a result, got RuntimeError: CUDA",
        ),
    ],
)
def test_a_gpu_that_errs_is_named(stand_ins: Path, fault: str, words: str) -> None:
    found = judged(GpuCompute(), computed(stand_ins, FAKE_TORCH_FAULT=fault) + computed(stand_ins, node=1), nodes=2)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1",))
    assert words in found.reason
    assert "GPU 0" not in found.reason
    assert found.culprits[0].cure.startswith("take this GPU out of use")


def test_bits_that_only_other_gpus_of_the_model_show_to_be_wrong(stand_ins: Path) -> None:
    lines = computed(stand_ins, FAKE_TORCH_FAULT="always@1") + computed(stand_ins, node=1)
    found = judged(GpuCompute(), lines, nodes=2)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1",))
    assert found.reason.startswith(
        "GPU 1 of node1 has other bits in fp32 products than most GPUs of this model (Fake GPU, 132 SMs)"
    )
    other = [OutputLine("stdout", 1.0, line.text.replace("132 SMs", "114 SMs")) for line in lines[: len(lines) // 2]]
    assert judged(GpuCompute(), other).reason.count("with no majority") == 3


def test_a_node_votes_for_no_more_gpus_than_it_has() -> None:
    lines = []
    for rank, (gpus, digest) in enumerate([(2, "a" * 12), (2, "a" * 12), (9, "b" * 12)]):
        facts = {f"gpu{index}_model": "Fake GPU, 132 SMs" for index in range(gpus)} | {"versions": "PyTorch 2"}
        facts |= {f"gpu{index}_digests": f"fp32 {digest}" for index in range(gpus)}
        event = {"clusterctl": 1, "event": "result", "check": "gpu_compute", "rank": rank, "host": f"node{rank + 1}"}
        lines.append(OutputLine("stdout", 1.0, json.dumps(event | {"ok": True, "compared": 1, "facts": facts})))
    assert judged(GpuCompute(), lines, nodes=3).hosts == ("node3",)


def test_a_slowdown_by_the_hardware_under_load_is_named(stand_ins: Path, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.format(mask="0x0000000000000048").replace("1980, 1980", "990, 1980"), encoding="utf-8")
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    lines = played(stand_ins, "gpu_compute", "--order", "32", "--budget", "0.3", PATH=path)
    found = judged(GpuCompute(), lines)
    assert found.verdict is Verdict.FAIL
    assert (
        "GPU 0 (Fake GPU, 00000000:01:00.0): expected full speed, got hardware slowdown and hardware th" in found.reason
    )


def test_pytorch_without_a_gpu_is_told_where_the_driver_has_one(stand_ins: Path) -> None:
    found = judged(GpuCompute(), computed(stand_ins, FAKE_GPUS="0"))
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1",))
    assert "no CUDA-capable device is detected" in found.reason


def test_a_slow_gpu_is_named_among_the_gpus_of_its_own_node() -> None:
    values = dict.fromkeys(range(8), 700e12) | {5: 500e12}
    figures = tuple(
        Figure(
            quantity="gpu_compute",
            operation="bf16",
            backend="NVIDIA H200",
            algorithm=f"GPU {index}",
            nodes=("node1",),
            value=value + index * 1e11,
            unit="FLOP/s",
            better="higher",
        )
        for index, value in values.items()
    )
    passed = base.Judgement(Verdict.PASS, "right", figures=figures).result("gpu_compute", seconds=1.0)
    found = speed_verdict.assess(passed, OutlierPolicy())
    assert found.verdict is Verdict.FAIL
    assert found.reason.startswith(
        "node1: bf16 GPU compute on GPU 5 is 500 TFLOP/s, 29 % below its neighbours' 700 TFLOP/s"
    )


# --- gpu_copies -------------------------------------------------------------------------------------------------------


def test_copies_of_two_gpus_take_eight_ways(stand_ins: Path) -> None:
    found = judged(GpuCopies(), copied(stand_ins))
    assert found.verdict is Verdict.PASS
    ways = [figure.algorithm for figure in found.figures]
    alone = [way for index in (0, 1) for way in (f"host to GPU {index}", f"GPU {index}", f"GPU {index} to host")]
    assert ways == [*alone, "GPU 0 to GPU 1", "GPU 1 to GPU 0"]
    for words in ("B/s from the host", "to the host", "within a GPU", "between GPUs", "PCIe links: not told"):
        assert words in found.reason


def test_a_copy_with_a_wrong_bit_is_named_with_its_gpu(stand_ins: Path) -> None:
    found = judged(GpuCopies(), copied(stand_ins, FAKE_TORCH_FAULT="copy@1"))
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node1",))
    assert "node1: a copy GPU 1 to host (GPU 1 (Fake GPU, 0000:02:00.0)), value 5 (1 of 65536 wrong)" in found.reason


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("gpu_checks")


def pci(root: Path, now: tuple[str, str], most: tuple[str, str], port: tuple[str, str]) -> None:
    """Make a GPU below a port of PCI, as /sys/bus/pci/devices shows them."""
    device = root / "devices" / "pci0000:00" / "0000:00:01.0" / "0000:01:00.0"
    device.mkdir(parents=True)
    for folder, when, (speed, width) in (
        (device, "current", now),
        (device, "max", most),
        (device.parent, "max", port),
    ):
        (folder / f"{when}_link_speed").write_text(f"{speed}\n", encoding="ascii")
        (folder / f"{when}_link_width").write_text(f"{width}\n", encoding="ascii")
    (root / "bus" / "pci" / "devices").mkdir(parents=True)
    (root / "bus" / "pci" / "devices" / "0000:01:00.0").symlink_to(device)


FULL = ("32.0 GT/s PCIe", "16")


@pytest.mark.parametrize(
    ("now", "port", "rates", "wrong"),
    [
        (FULL, FULL, (55e9, 56e9), []),
        (("16.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16"), (25e9, 26e9), []),  # the slot cannot do more
        (("16.0 GT/s PCIe", "16"), FULL, (25e9, 26e9), ["PCIe link: 32 GT/s x16, as both ends can: 16 GT/s x16"]),
        (("32.0 GT/s PCIe", "8"), FULL, (27e9, 26e9), ["PCIe link: 32 GT/s x16, as both ends can: 32 GT/s x8"]),
        (FULL, FULL, (55e9, 3e9), ["copies to the host: at least 31.5 GB/s, half of what its PCIe link (32 GT/s x16 "]),
        (("2.5 GT/s PCIe", "16"), FULL, (55e9, 56e9), []),  # copies that fast take another link than sysfs tells
        (("16.0 GT/s PCIe", "16"), ("Unknown", "255"), (25e9, 26e9), []),  # a virtual machine: nobody knows the slot
        (("Unknown", "0"), FULL, (1e9, 1e9), []),
        (("32.0 GT/s PCIe", "255"), FULL, (1e9, 1e9), []),
    ],
)
def test_a_link_is_held_against_both_of_its_ends_and_copies_against_the_link(
    program: ModuleType, tmp_path: Path, now: Any, port: Any, rates: tuple[float, float], wrong: list[str]
) -> None:
    pci(tmp_path, now, FULL, port)
    link = program.link_of("0000:01:00.0", tmp_path)
    found = program.link_problems(link, {"from the host": rates[0], "to the host": rates[1]})
    assert len(found) == len(wrong)
    for one, words in zip(found, wrong, strict=True):
        assert ": ".join(one).startswith(words)


def test_a_device_that_is_not_there_has_no_link(program: ModuleType, tmp_path: Path) -> None:
    assert program.link_of("0000:01:00.0", tmp_path) is None
    assert program.link_problems(None, {"from the host": 1.0}) == []


def test_a_way_between_gpus_that_is_far_slower_than_the_way_back(program: ModuleType) -> None:
    assert program.uneven({(0, 1): 400e9, (1, 0): 190e9, (0, 2): 40e9, (2, 0): 41e9}) == [(1, 0)]


# --- gpu_mpi ----------------------------------------------------------------------------------------------------------


def sent(stand_ins: Path, store: Path, **more: str) -> tuple[list[OutputLine], list[int]]:
    """Run the program on two ranks of a node; return what they printed and their codes."""
    command = [sys.executable, str(PROGRAMS / "gpu_mpi_checks.py"), "--check", "gpu_mpi", "--deadline", "60"]
    ranks = []
    for rank in range(2):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "STORE": str(store),
            "FAKE_LIBMPI": str(stand_ins / "libmpi.so.40"),
        }
        own |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}
        own |= {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        surroundings = environment(stand_ins, **own, **more)
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=surroundings, stdout=pipe, stderr=subprocess.STDOUT, text=True))
    while None in (codes := [one.poll() for one in ranks]) and not any(codes):
        time.sleep(0.05)
    for one in ranks if any(codes) else ():
        one.terminate()  # as mpirun does when a rank ends with an error
    lines: list[str] = []
    for one in ranks:
        lines += one.communicate(timeout=90)[0].splitlines()
    host = json.loads(next(line for line in lines if line.startswith("{")))["host"]
    named = [line.replace(json.dumps(host), '"node1"') for line in lines]
    return [OutputLine("stdout", 1.0, line) for line in named], [one.returncode for one in ranks]


def mpi_judged(lines: list[OutputLine], rc: int = 0) -> base.Judgement:
    return GpuMpi().judge(site(), JobOutcome(lines=tuple(lines), ending="exited", seconds=9.0, rc=rc))


def test_buffers_of_gpus_arrive_and_add_up(stand_ins: Path, tmp_path: Path) -> None:
    lines, codes = sent(stand_ins, tmp_path, FAKE_MPI_CUDA="1")
    found = mpi_judged(lines)
    assert codes == [0, 0]
    assert found.verdict is Verdict.PASS, found.reason
    assert found.reason.endswith("in the memory of Fake GPU")
    assert min(report.compared for report in found.ranks) > 9_000_000


def test_open_mpi_without_cuda_is_a_skip_and_gets_no_buffer_of_a_gpu(stand_ins: Path, tmp_path: Path) -> None:
    lines, codes = sent(stand_ins, tmp_path, FAKE_MPI_CUDA="0", FAKE_MPI_FAULT="killed@1")
    found = mpi_judged(lines)
    assert (codes, found.verdict) == ([0, 0], Verdict.SKIP)
    assert found.reason.startswith(
        "Open MPI was built without CUDA, so MPI takes no GPU buffers; 'openmpi_cuda: always'"
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong@1", "GPU buffers in MPI: allreduce of int32[1], value 0 (1 of 1 wrong)"),
        ("killed@1", "killed by SIGSEGV"),
    ],
)
def test_open_mpi_that_says_cuda_and_fails_is_a_fail_with_the_cure(
    stand_ins: Path, tmp_path: Path, fault: str, words: str
) -> None:
    lines, codes = sent(stand_ins, tmp_path, FAKE_MPI_CUDA="1", FAKE_MPI_FAULT=fault)
    found = mpi_judged(lines, rc=1)
    assert codes[1] != 0
    assert found.verdict is Verdict.FAIL
    assert words in found.reason
    assert "; Open MPI says that it takes GPU buffers, and fails: set openmpi_cuda_home to the CUDA" in found.reason
    assert found.next_step == ""  # a search for the node goes by jobs without one


def test_a_node_whose_open_mpi_has_no_cuda_is_named() -> None:
    facts = [{"mpi_cuda": "yes"}, {"mpi_cuda": "no"}]
    lines = [
        OutputLine(
            "stdout",
            1.0,
            json.dumps(
                {
                    "clusterctl": 1,
                    "event": "result",
                    "check": "gpu_mpi",
                    "rank": rank,
                    "size": 2,
                    "ok": True,
                    "host": f"node{rank + 1}",
                    "compared": 1,
                    "facts": facts[rank],
                }
            ),
        )
        for rank in range(2)
    ]
    one_each = base.Site(version="5.0.7", slots={"node1": 1, "node2": 1}, names={})
    found = GpuMpi().judge(one_each, JobOutcome(lines=tuple(lines), ending="exited", seconds=1.0, rc=0))
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert found.reason == "Open MPI takes no GPU buffers on node2, and does on the other nodes"


# --- who takes part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu_compute", "gpu_copies", "gpu_mpi"])
@pytest.mark.parametrize(
    ("stack", "why"),
    [
        (NodeStack(framework="pytorch"), "no GPU"),
        (NodeStack(idle_gpus="2 GPUs: without NVIDIA's driver"), "jobs cannot use 2 GPUs: without NVIDIA's driver"),
        (NodeStack(gpus=2), "no PyTorch"),
        (NodeStack(gpus=2, framework="pytorch"), "its PyTorch is built without CUDA"),
        (STACK, ""),
    ],
)
def test_a_node_that_cannot_take_part_says_why(name: str, stack: NodeStack, why: str) -> None:
    (check,) = registry.select([name])
    assert check.absent(stack) == why


def test_the_suite_sets_how_long_they_work() -> None:
    for suite, seconds in (("nightly", "5"), ("full", "60")):
        checks = {check.name: check for check in registry.build(registry.builtin(suite))}
        argv = checks["gpu_compute"].program(site(), 100.0)
        assert argv[argv.index("--budget") + 1] == seconds
        assert base.deadline_s(checks["gpu_compute"], site()) > 5 * float(seconds)
    assert base.deadline_s(checks["gpu_copies"], site()) == pytest.approx(90 + 2 * 4 * 1.5 + 0.3, abs=0.1)
