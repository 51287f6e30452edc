"""The checks of NCCL: verdicts over what ranks print, and the node's program on libraries that stand in for a GPU's."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, training
from clusterctl.validation.checks.collectives import NcclSweep, SweepOptions
from clusterctl.validation.checks.nccl import NCCL
from factory import captured_outcome
from node_programs import load

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[4]
FAKE = ROOT / "tests" / "gpu" / "fake"
MPI = "/usr/local/openmpi-5.0.7-aa"
HOME = "/usr/local/nccl-2.32.3-bb"
GPU_NODE = NodeStack(gpus=2, nccl="2.32.3", nccl_cuda="13")
CPU_NODE = NodeStack(nccl="2.32.3", nccl_cuda="13")


def site(stack: dict[str, NodeStack]) -> base.Site:
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(stack, 2),
        names={node: node for node in stack},
        libraries=dict.fromkeys(stack, MPI),
        stack=stack,
    )


def said(rank: int, **changes: Any) -> dict[str, Any]:
    """Return what a rank on a node with two GPUs prints; ``facts`` and ``figures`` are added to, None takes away."""
    facts = {
        "nccl_installed": f"{HOME}/lib/libnccl.so.2.32.3",
        "nccl_version": "2.32.3",
        "nccl_path": f"{HOME}/lib/libnccl.so.2.32.3",
        "gpu": "NVIDIA H200",
        "gpu_place": f"0000:0{rank % 2 + 1}:00.0",
        "cuda_driver": "13.0",
        "largest": "1048583 values a rank",
        **changes.pop("facts", {}),
    }
    event = {
        "clusterctl": 1,
        "event": "result",
        "check": "nccl",
        "rank": rank,
        "host": f"node{rank // 2 + 1}",
        "ok": True,
        "compared": 1000,
        "wrong": 0,
        "problems": [],
        "seconds": 3.5,
        "library_path": f"{MPI}/lib/libmpi.so.40.40.7",
        "figures": {},
        "facts": {name: text for name, text in facts.items() if text is not None},
    }
    return event | changes


def without_gpu(rank: int, why: str = "no CUDA driver: libcuda.so.1: cannot open shared object file") -> dict[str, Any]:
    gone = dict.fromkeys(("gpu", "gpu_place", "cuda_driver", "largest"))
    return said(rank, compared=1, facts={**gone, "no_gpu": why})


def judged(stack: dict[str, NodeStack], *events: dict[str, Any], code: int = 0) -> base.Judgement:
    lines = tuple(OutputLine("stdout", 1.0, json.dumps(event)) for event in events)
    return NCCL.judge(site(stack), JobOutcome("exited", 9.0, 9.0, rc=code, lines=lines))


def test_a_node_without_nccl_is_left_out_and_a_node_without_a_gpu_loads_it() -> None:
    assert NCCL.absent(NodeStack()) == "no GPU and no NCCL"
    assert NCCL.absent(NodeStack(gpus=8)) == "no NCCL"
    assert NCCL.absent(CPU_NODE) == NCCL.absent(GPU_NODE) == ""


def test_a_pass_tells_ranks_gpus_values_version_and_the_bus_bandwidth() -> None:
    figures = {"allreduce_4KiB_us": 21.5, "allreduce_512MiB_us": 1500.0, "allreduce_512MiB_bus_bytes_per_s": 3.612e11}
    nodes = {"node1": GPU_NODE, "node2": GPU_NODE}
    judgement = judged(nodes, said(0, figures=figures), said(1), said(2), said(3))
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.startswith(
        "4 ranks on 4 GPUs of 2 nodes, 4,000 values right, NCCL 2.32.3; allreduce of 512MiB "
    )
    assert "NCCL's way was not proved on node[1-2]" in judgement.reason
    aside = {"aside": "one rank per MIG instance", "largest": None}
    alone = judged(nodes, said(0), said(1), said(2, facts=aside), said(3, facts=aside))
    assert "not proved" not in alone.reason, "one node has no way to others"
    measured = {figure.name: (figure.value, figure.unit) for figure in judgement.measurements}
    assert measured["gpus"] == (4, "GPUs")
    assert measured["allreduce_512MiB_time"] == (1500.0, "us")
    assert measured["allreduce_512MiB_bus"] == (3.612e11, "B/s")


def idle(why: str, problem: str) -> NodeStack:
    return dataclasses.replace(CPU_NODE, idle_gpus=f"8 GPUs: {problem}", idle_why=why)


IN_CONTAINER = idle("container", "the driver is in a container below /run/nvidia/driver, where only pods find it")


def test_gpus_whose_driver_is_for_pods_are_a_skip_that_names_them() -> None:
    nodes = {"node1": IN_CONTAINER, "node2": CPU_NODE}
    judgement = judged(nodes, *(without_gpu(rank) for rank in range(4)))
    assert judgement.verdict is Verdict.SKIP
    assert judgement.reason.startswith("no GPU on node2; jobs cannot use 8 GPUs: the driver is in a container below")
    assert "(node1); NCCL 2.32.3 loads there" in judgement.reason
    assert "no NCCL, and jobs cannot use 8 GPUs" in NCCL.absent(dataclasses.replace(IN_CONTAINER, nccl=""))


@pytest.mark.parametrize("why", ["library", "versions", "mig"])
def test_gpus_of_a_broken_driver_are_a_fail(why: str) -> None:
    nodes = {"node1": CPU_NODE, "node2": idle(why, "the kernel runs driver 580.95.05")}
    judgement = judged(nodes, *(without_gpu(rank) for rank in range(4)))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert "jobs cannot use 8 GPUs: the kernel runs driver 580.95.05 (node2)" in judgement.reason
    assert "clusterctl doctor" in judgement.reason


def test_gpus_without_a_driver_are_a_fail_where_other_nodes_have_one() -> None:
    bare = idle("driver", "NVIDIA's driver is missing")
    alone = judged({"node1": bare}, without_gpu(0), without_gpu(1))
    assert (alone.verdict, "NVIDIA's driver is missing (node1)" in alone.reason) == (Verdict.SKIP, True)
    beside = judged({"node1": GPU_NODE, "node2": bare}, said(0), said(1), without_gpu(2), without_gpu(3))
    assert (beside.verdict, beside.hosts) == (Verdict.FAIL, ("node2",))


@pytest.mark.parametrize(
    ("nccl", "driver", "slots", "instances", "expected"),
    [
        ("2.31.1", 13, 4, 2, True),
        ("2.30.7", 13, 4, 2, False),  # two ranks on one GPU are an error to it
        ("2.31.1", 12, 4, 2, False),
        ("2.31.1", 13, 5, 2, False),  # no two ranks on one instance
        ("2.20.5", 12, 4, 1, True),  # one instance on each GPU
    ],
)
def test_pytorch_uses_mig_instances_where_its_nccl_can(
    nccl: str, driver: int, slots: int, instances: int, expected: bool
) -> None:
    stack = NodeStack(
        gpus=4, most_instances=instances, driver_cuda=driver, framework_cuda="13", framework_nccl=nccl, nccl=nccl
    )
    place = dataclasses.replace(site({"node1": stack}), slots={"node1": slots})
    assert training.gpus(place) is expected


def test_ranks_that_share_a_gpu_have_no_bandwidth_and_the_record_says_so() -> None:
    facts = {"gpu_place": "0000:01:00.0", "shared": "2 ranks on 1 GPU"}
    judgement = judged(
        {"node1": GPU_NODE}, said(0, facts=facts, figures={"allreduce_4KiB_us": 50.0}), said(1, facts=facts)
    )
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.endswith("bus bandwidth is not meaningful and left out (2 ranks on 1 GPU)")
    assert not [figure for figure in judgement.measurements if figure.unit == "B/s"]


def test_a_rank_that_an_older_nccl_keeps_off_the_gpu_is_named() -> None:
    aside = said(1, compared=1, facts={"largest": None, "aside": "NCCL 2.32.3: no more than 1 a GPU"})
    reason = judged({"node1": GPU_NODE}, said(0), aside).reason
    assert "1 rank on 1 GPU of 1 node" in reason
    assert "rank 1 on node1 stood aside (NCCL 2.32.3: no more than 1 a GPU)" in reason


def test_a_mixed_cluster_is_judged_for_what_each_part_is() -> None:
    judgement = judged({"node1": GPU_NODE, "node2": CPU_NODE}, said(0), said(1), without_gpu(2), without_gpu(3))
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.endswith("no GPU on node2, where NCCL 2.32.3 loads")


def test_a_gpu_node_whose_ranks_find_no_gpu_fails() -> None:
    blind = [
        without_gpu(rank, "cuInit: system has unsupported display driver / cuda driver combination") for rank in (2, 3)
    ]
    judgement = judged({"node1": GPU_NODE, "node2": GPU_NODE}, said(0), said(1), *blind)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert judgement.reason.startswith("ranks 2 and 3 on node2 found no GPU where the node has 2: cuInit: system has")


def test_another_library_than_the_installed_one_fails_even_with_right_answers_or_in_front_of_wrong_ones() -> None:
    other = {"nccl_version": "2.29.7", "nccl_path": "/opt/torch/nvidia/nccl/lib/libnccl.so.2"}
    nodes = {"node1": GPU_NODE, "node2": GPU_NODE}
    for ok in (True, False):
        judgement = judged(nodes, said(0), said(1), said(2, facts=other, ok=ok), said(3, facts=other), code=not ok)
        assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
        assert f"ranks 2 and 3 on node2 loaded NCCL 2.29.7 of {other['nccl_path']} and not " in judgement.reason


def test_the_library_must_be_the_installed_file_and_not_one_that_is_called_alike() -> None:
    alike = {"nccl_path": f"{HOME}-other/lib/libnccl.so.2"}
    assert judged({"node1": GPU_NODE}, said(0, facts=alike), said(1)).verdict is Verdict.FAIL
    gone = {"nccl_installed": ""}
    assert "/usr/local/nccl, which does not exist" in judged({"node1": GPU_NODE}, said(0, facts=gone), said(1)).reason


def test_versions_that_differ_are_named_by_node() -> None:
    home = "/usr/local/nccl-2.31.2-cc"
    library = f"{home}/lib/libnccl.so.2.31.2"
    other = {"nccl_version": "2.31.2", "nccl_installed": library, "nccl_path": library}
    nodes = {"node1": GPU_NODE, "node2": GPU_NODE, "node3": NodeStack(gpus=2, nccl="2.31.2")}
    events = [said(rank, facts=other if rank > 3 else {}, ok=False) for rank in range(6)]
    judgement = judged(nodes, *events, code=1)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason == "different versions of NCCL: 2.31.2 on node3; all others: 2.32.3"


def test_a_header_of_another_version_fails() -> None:
    proof = {"proof_version": "2.32.3", "proof_header": "2.31.2", "proof_path": f"{HOME}/lib/libnccl.so.2.32.3"}
    judgement = judged({"node1": GPU_NODE}, said(0, facts=proof), said(1))
    assert judgement.verdict is Verdict.FAIL
    assert "on node1 a program compiled against NCCL 2.31.2 gets 2.32.3" in judgement.reason


def captured(name: str) -> base.Judgement:
    """Judge what two real nodes without a GPU printed."""
    nodes = {"node1": CPU_NODE, "node2": CPU_NODE}
    libraries = dict.fromkeys(nodes, "/usr/local/openmpi-5.0.7-ccfb70564932dd67")
    return NCCL.judge(dataclasses.replace(site(nodes), libraries=libraries), captured_outcome(name))


def test_real_nodes_without_a_gpu() -> None:
    judgement = captured("nccl-5.0.7")
    assert judgement.verdict is Verdict.SKIP
    assert judgement.reason.startswith("no GPU on node[1-2]; NCCL 2.32.3 loads there (/usr/local/nccl-2.32.3-")
    assert [report.facts.get("proof_header") for report in judgement.ranks] == ["2.32.3", None, "2.32.3", None]


# --- the node's program ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "most", "members"),
    [
        (["a 1", "a 2", "b 1", "b 2"], 1, [0, 1, 2, 3]),
        (["a 1", "a 1", "b 1", "b 1"], 1, [0, 2]),
        (["a 1"] * 6, 4, [0, 1, 2, 3]),
        (["", "a 1", "", "a 2"], 1, [1, 3]),
        (["", ""], 4, []),
        (["a 1 MIG-x", "a 1 MIG-y", "a 1 MIG-x"], 4, [0, 1]),  # NCCL 2.31: each instance, and no two ranks on one
        (["a 1 MIG", "a 1 MIG", "a 2 MIG", "a 3"], 4, [0, 2, 3]),  # before: one instance of each GPU
    ],
)
def test_who_takes_part(places: list[str], most: int, members: list[int]) -> None:
    assert load("nccl_library").crew(places, most) == members


def test_bus_factors_are_those_of_nccl_tests() -> None:
    # NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Summary", for 8 ranks
    program = load("nccl_sweep")
    factors = {name: program.bus_factor(name, 8) for name in ("allreduce", "allgather", "reduce_scatter", "broadcast")}
    assert factors == {"allreduce": 1.75, "allgather": 0.875, "reduce_scatter": 0.875, "broadcast": 1.0}
    assert program.bus_factor("reduce", 8) == program.bus_factor("send_receive", 8) == 1.0


def test_versions_and_sizes_in_words() -> None:
    program = load("nccl_sweep")
    assert [load("nccl_library").version_words(code) for code in (23203, 22907, 2708)] == ["2.32.3", "2.29.7", "2.7.8"]
    assert [program.size_words(size) for size in program.SIZES] == ["4KiB", "1MiB", "64MiB", "512MiB"]
    assert (program.launches(1e-9), program.launches(0.01), program.launches(3.0)) == (50, 5, 1)


def test_everybody_is_reached_by_everybody() -> None:
    program = load("nccl_checks")
    assert program.distances(1) == [0]
    assert program.distances(4) == [1, 2, 3]
    assert program.distances(64) == [1, 2, 4, 8, 16, 32]


def test_types_have_the_numbers_of_nccl_s_header() -> None:
    # nccl.h 2.32.3: ncclDataType_t
    numbers = {"u1": 1, "i4": 2, "i8": 4, "f2": 6, "f4": 7, "f8": 8, "bf16": 9}
    assert {kind.name: kind.number for kind in load("nccl_checks").KINDS} == numbers


# --- the node's program with libraries that stand in for CUDA and NCCL ------------------------------------------------


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins for libcuda and libnccl."""
    folder = tmp_path_factory.mktemp("stand_ins")
    for source, library in (("cuda.c", "libcuda.so.1"), ("nccl.c", "libnccl.so.2")):
        target = [f"-Wl,-soname,{library}", "-o", str(folder / library), str(FAKE / source), "-lm", "-ldl"]
        subprocess.run(["cc", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", *target], check=True)
    return folder


def played(
    stand_ins: Path, store: Path, size: int, *options: str, lines: list[OutputLine] | None = None, **environment: str
) -> list[dict[str, Any]]:
    """Run the program on ``size`` ranks and return what each said in the end; ``lines`` gets all that they printed."""
    surroundings = {**os.environ, "LD_LIBRARY_PATH": str(stand_ins), "STORE": str(store), "WORLD_SIZE": str(size)}
    check = () if "--check" in options else ("--check", "nccl")
    command = [sys.executable, str(FAKE / "rank.py"), *check, "--proof", str(store / "none"), *options]
    ranks = [
        subprocess.Popen(
            command,
            env={**surroundings, **environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    found: dict[int, dict[str, Any]] = {}
    for rank in ranks:
        if any(event["compared"] and not event["ok"] and not event["facts"].get("largest") for event in found.values()):
            rank.terminate()  # as mpirun does when a rank has aborted
        try:
            out, _ = rank.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            rank.terminate()
            out, _ = rank.communicate()
        for line in out.splitlines():
            if lines is not None:
                lines.append(OutputLine("stdout", 1.0, line))
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "result":
                found[event["rank"]] = event | {"code": rank.returncode}
    return [found[rank] for rank in sorted(found)]


def test_a_second_rank_on_a_mig_instance_stands_aside(stand_ins: Path, tmp_path: Path) -> None:
    first, second = played(stand_ins, tmp_path, 2, FAKE_GPUS="1", CUDA_VISIBLE_DEVICES="MIG-a,MIG-b")
    assert [event["problems"] for event in (first, second)] == [[], []]
    assert (first["facts"]["mig_instance"], "largest" in first["facts"]) == ("MIG-a", True)
    assert second["facts"]["aside"].startswith("NCCL 2.32.3: one rank a MIG instance")


def test_a_pass_on_mig_instances_names_them() -> None:
    stack = NodeStack(gpus=2, most_instances=2, nccl="2.32.3", nccl_cuda="13")
    ranks = [said(rank, facts={"gpu_place": "0000:01:00.0", "mig_instance": f"MIG-{rank}"}) for rank in range(2)]
    judgement = judged({"node1": stack}, *ranks)
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.startswith("2 ranks on 2 MIG instances of 1 GPU of 1 node, 2,000 values right")


def test_right_answers_and_figures(stand_ins: Path, tmp_path: Path) -> None:
    first, second, third = played(stand_ins, tmp_path, 3, FAKE_GPUS="3")
    assert [event["problems"] for event in (first, second, third)] == [[], [], []]
    assert [event["code"] for event in (first, second, third)] == [0, 0, 0]
    assert min(event["compared"] for event in (first, second, third)) > 250_000
    assert first["facts"]["nccl_version"] == "2.32.3"
    assert first["facts"]["nccl_path"] == str((stand_ins / "libnccl.so.2").resolve())
    assert len(first["figures"]) == 6 * 2 * 2
    assert second["figures"] == {}
    time_us, bus = first["figures"]["allreduce_64KiB_us"], first["figures"]["allreduce_64KiB_bus_bytes_per_s"]
    assert bus == pytest.approx((1 << 16) / (time_us * 1e-6) * 4 / 3, rel=0.01)
    assert len(json.dumps(first)) < 4096  # one write of a pipe


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong:ncclAllReduce@1", "allreduce sum u1[1], value 0 (1 of 1 wrong)"),
        ("wrong:ncclReduce@1", "reduce to rank 1 i4[1], value 0 (1 of 1 wrong)"),
        ("nothing:ncclReduceScatter@1", "reduce-scatter u1[2], value 0 (1 of 1 wrong)"),
        ("nothing:ncclBroadcast@1", "broadcast from rank 1 u1[1], value 0 (1 of 1 wrong)"),
        ("nothing:ncclAllGather@1", "allgather u1[1], value 0 from rank 0 (2 of 2 wrong)"),
        ("nothing:ncclSend@1", "send to rank 0, receive from rank 0 u1[1], value 0 (1 of 1 wrong)"),
        ("beyond:ncclAllGather@1", "allgather u1[1]: the margin behind the buffer, value 0 (1 of 64 wrong)"),
    ],
)
def test_a_collective_that_errs_is_found_out(stand_ins: Path, tmp_path: Path, fault: str, words: str) -> None:
    right, wrong = played(stand_ins, tmp_path, 2, FAKE_GPUS="2", FAKE_NCCL_FAULT=fault)
    assert (right["ok"], wrong["ok"], wrong["code"]) == (True, False, 1)
    assert wrong["problems"][0]["what"] == words
    assert right["figures"] == {}


def test_an_error_is_told_in_nccl_s_words(stand_ins: Path, tmp_path: Path) -> None:
    first = played(stand_ins, tmp_path, 2, FAKE_GPUS="2", FAKE_NCCL_FAULT="fail:ncclBroadcast@0")[0]
    assert (first["ok"], first["code"]) == (False, 1)
    assert "ncclBroadcast: unhandled system error: NET/Socket : peer 10.0.0.2" in first["problems"][0]["got"]


def test_ranks_share_a_gpu_where_nccl_lets_them(stand_ins: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    events = played(stand_ins, tmp_path / "new", 3, FAKE_GPUS="1")
    assert [event["facts"]["shared"] for event in events] == ["3 ranks on 1 GPU"] * 3
    assert all(event["ok"] and event["compared"] > 1000 for event in events)
    assert not [name for name in events[0]["figures"] if name.endswith("bytes_per_s")]
    (tmp_path / "old").mkdir()
    first, second = played(stand_ins, tmp_path / "old", 2, FAKE_GPUS="1", FAKE_NCCL_VERSION="22907")
    assert first["ok"]
    assert first["compared"] > 1000
    assert (second["ok"], second["facts"]["aside"]) == (True, "NCCL 2.29.7: no more than 1 a GPU")
    (tmp_path / "apart").mkdir()
    events = played(stand_ins, tmp_path / "apart", 2, "--pretend-hosts", FAKE_GPUS="1", FAKE_NCCL_VERSION="22907")
    assert all(event["ok"] and event["compared"] > 1000 for event in events)
    (tmp_path / "sweep").mkdir()
    sweep = ("--pretend-hosts", "--check", "nccl_sweep", "--sizes", "4096", "--budget", "0.05")
    events = played(stand_ins, tmp_path / "sweep", 3, *sweep, FAKE_GPUS="1", FAKE_NCCL_VERSION="22907")
    assert [event["facts"].get("shared") for event in events] == ["3 ranks on 1 GPU"] * 3


def test_without_a_gpu_the_library_is_loaded_and_no_more(stand_ins: Path, tmp_path: Path) -> None:
    for event in played(stand_ins, tmp_path, 2, FAKE_GPUS="0"):
        assert (event["ok"], event["compared"], event["code"]) == (True, 1, 0)
        assert event["facts"]["no_gpu"] == "cuInit: no CUDA-capable device is detected"


def test_a_library_that_is_not_there_is_a_sentence(stand_ins: Path, tmp_path: Path) -> None:
    (event,) = played(stand_ins, tmp_path, 1, "--library", "libnccl-nowhere.so.2")
    assert (event["ok"], event["code"]) == (False, 1)
    assert event["problems"][0]["got"].startswith("CheckError: NCCL does not load: libnccl-nowhere.so.2: cannot open")


def test_what_was_compiled_against_the_header_has_its_say(stand_ins: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    proof.write_text('#!/bin/sh\necho \'{"version": "2.32.3", "header": "2.31.2", "path": "/x/libnccl.so.2"}\'\n')
    proof.chmod(0o755)
    (event,) = played(stand_ins, tmp_path, 1, "--proof", str(proof), FAKE_GPUS="0")
    assert {event["facts"][f"proof_{name}"] for name in ("version", "header", "path")} == {
        "2.32.3",
        "2.31.2",
        "/x/libnccl.so.2",
    }
    proof.write_text("#!/bin/sh\necho 'node1: libnccl.so.2 cannot be loaded' >&2; exit 1\n")
    (tmp_path / "again").mkdir()
    (event,) = played(stand_ins, tmp_path / "again", 1, "--proof", str(proof), FAKE_GPUS="0")
    assert not event["ok"]
    assert f"CheckError: {proof}: node1: libnccl.so.2 cannot be loaded" in event["problems"][0]["got"]


# --- the sweep over message sizes -------------------------------------------------------------------------------------

SWEEP = ("--check", "nccl_sweep", "--sizes", "4096,65536", "--budget", "0.05", "--precision", "0.5")
SMI = """#!/bin/sh
echo 'GPU 0 is asked' >&2
printf '0, Fake GPU 0, 00000000:01:00.0, %s, %s, 1980, 310.5, 700.00, %s\n' "$FAKE_CELSIUS" "$FAKE_MHZ" "$FAKE_MASK"
printf '1, Fake GPU 1, 00000000:02:00.0, 41, 1980, 1980, 312.1, 700.00, 0x0000000000000000\n'
"""


@pytest.fixture
def smi(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which ``nvidia-smi`` is a stand-in with two GPUs at full speed."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    full_speed = {"FAKE_CELSIUS": "40", "FAKE_MHZ": "1980", "FAKE_MASK": "0x0000000000000000"}
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "FAKE_GPUS": "2", **full_speed}


def as_of_node1(lines: list[OutputLine], ranks: int) -> tuple[base.Site, JobOutcome]:
    """Return what ranks printed as if mpirun had started them on one node and the stand-in was the installed NCCL."""
    found = []
    for line in lines:
        event = json.loads(line.text) if line.text.startswith("{") else {}
        if event:
            event |= {"host": "node1", "library_path": f"{MPI}/lib/libmpi.so.40.40.7"}
            event.get("facts", {})["nccl_installed"] = event.get("facts", {}).get("nccl_path")
        found.append(OutputLine("stdout", 1.0, json.dumps(event) if event else line.text))
    code = int(any('"ok": false' in line.text for line in found))
    where = dataclasses.replace(site({"node1": GPU_NODE}), slots={"node1": ranks})
    return where, JobOutcome("exited", 9.0, 9.0, rc=code, lines=tuple(found))


def swept(lines: list[OutputLine], ranks: int = 2) -> base.Judgement:
    return NcclSweep(SweepOptions(sizes=(4096, 65536), precision=0.5)).judge(*as_of_node1(lines, ranks))


def test_a_sweep_measures_every_operation_and_size_and_the_clocks(
    stand_ins: Path, tmp_path: Path, smi: dict[str, str]
) -> None:
    lines: list[OutputLine] = []
    first, second = played(stand_ins, tmp_path, 2, *SWEEP, lines=lines, **smi)
    assert (first["problems"], second["problems"], first["facts"]["points"]) == ([], [], "10 of 10")
    assert first["facts"]["gpu1_state"] == "1980 of 1980 MHz, 41 C, 312 of 700 W: nothing slows it down"
    assert "gpu1_state" not in second["facts"]
    judgement = swept(lines)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert "; allreduce of 64 KiB: " in judgement.reason
    found = {(one.quantity, one.operation, one.size_bytes): one for one in judgement.figures}
    assert len(found) == 2 * 5 * 3 + 2
    time, bus = (found[quantity, "alltoall", 65536] for quantity in ("time", "bus_bandwidth"))
    assert bus.value == pytest.approx(65536 / time.value / 2)
    clock = found["gpu_clock", "gpu 1", None]
    assert (clock.value, clock.unit, clock.nodes, clock.better) == (1.98e9, "Hz", ("node1",), "higher")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong:ncclAllReduce@1", "rank 1 on node1: allreduce of 4096 bytes, value 512 (1 of 1024 wrong): expected"),
        ("nothing:ncclSend@1", "rank 1 on node1: alltoall of 4096 bytes, value 0 from rank 0 (1024 of 1024 wrong)"),
        ("wrong:ncclReduceScatter@0", "rank 0 on node1: reduce-scatter of 4096 bytes, value 256 (1 of 512 wrong)"),
    ],
)
def test_what_a_sweep_moved_wrongly_is_found_out_and_not_measured(
    stand_ins: Path, tmp_path: Path, smi: dict[str, str], fault: str, words: str
) -> None:
    lines: list[OutputLine] = []
    played(stand_ins, tmp_path, 2, *SWEEP, lines=lines, FAKE_NCCL_FAULT=fault, **smi)
    judgement = swept(lines)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1",))
    assert judgement.reason.startswith(words)
    wrong = words.partition(": ")[2].partition(" of")[0].replace("-", "_")
    assert not [one for one in judgement.figures if one.operation == wrong]


def test_a_gpu_that_the_hardware_slows_down_fails_and_one_at_its_power_limit_does_not(
    stand_ins: Path, tmp_path: Path, smi: dict[str, str]
) -> None:
    hot = smi | {"FAKE_CELSIUS": "91", "FAKE_MHZ": "660", "FAKE_MASK": "0x0000000000000048"}
    lines: list[OutputLine] = []
    slow = (*SWEEP, "--budget", "0.2", "--precision", "0.0001")  # long enough for several looks
    played(stand_ins, tmp_path, 2, *slow, lines=lines, **hot)
    judgement = swept(lines)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1",))
    assert judgement.reason.startswith("rank 0 on node1: GPU 0 (Fake GPU 0, 00000000:01:00.0): expected full speed")
    assert "hardware slowdown and hardware thermal slowdown: 660 of 1980 MHz, 91 C" in judgement.reason
    (tmp_path / "again").mkdir()
    lines.clear()
    played(stand_ins, tmp_path / "again", 2, *slow, lines=lines, **(smi | {"FAKE_MASK": "0x0000000000000005"}))
    judgement = swept(lines)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.ranks[0].facts["gpu0_state"].endswith("310 of 700 W: idle, power limit")


def test_a_sweep_on_one_shared_gpu_has_times_alone(stand_ins: Path, tmp_path: Path, smi: dict[str, str]) -> None:
    lines: list[OutputLine] = []
    played(stand_ins, tmp_path, 2, *SWEEP, lines=lines, **(smi | {"FAKE_GPUS": "1"}))
    judgement = swept(lines)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert {one.quantity for one in judgement.figures} == {"time", "gpu_clock"}
    assert judgement.reason.endswith("bandwidths are not meaningful and left out (2 ranks on 1 GPU)")


def test_a_sweep_without_a_gpu_is_skipped_with_the_words_of_the_nccl_check(stand_ins: Path, tmp_path: Path) -> None:
    lines: list[OutputLine] = []
    played(stand_ins, tmp_path, 2, *SWEEP, lines=lines, FAKE_GPUS="0")
    where = dataclasses.replace(GPU_NODE, gpus=0)
    texts = [
        line.text.replace('"nccl_installed": ""', f'"nccl_installed": "{stand_ins}/libnccl.so.2"') for line in lines
    ]
    lines = [OutputLine("stdout", 1.0, re.sub(r'"host": "[^"]*"', '"host": "node1"', text)) for text in texts]
    place = dataclasses.replace(site({"node1": where}), libraries={})
    judgement = NcclSweep().judge(place, JobOutcome("exited", 9.0, 9.0, rc=0, lines=tuple(lines)))
    assert judgement.verdict is Verdict.SKIP
    assert judgement.reason.startswith("no GPU on node1; NCCL 2.32.3 loads there (")


# --- one way of NCCL alone --------------------------------------------------------------------------------------------

WAY = ("--operations", "allreduce", "--sizes", "65536", "--budget", "0.05", "--precision", "0.5")


def of_way(
    stand_ins: Path, store: Path, way: str, hosts: str, **environment: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the ranks said in the end, and what they measured; the stand-in's log obeys the variables."""
    lines: list[OutputLine] = []
    size = len(hosts.split(","))
    surroundings = {"FAKE_GPUS": str(size), "FAKE_HOSTS": hosts, **environment}
    ranks = played(stand_ins, store, size, "--check", f"nccl_{way}", *WAY, lines=lines, **surroundings)
    assert [one["problems"] for one in ranks] == [[]] * size
    events = [json.loads(line.text) for line in lines if line.text.startswith("{")]
    return ranks, [event for event in events if event["event"] == "measured"]


@pytest.mark.parametrize(
    ("way", "environment", "took", "other"),
    [
        ("nvlink", {}, "P2P/CUMEM", ""),
        ("nvlink", {"FAKE_NVLINK": "0"}, "NET/Socket/0", "NET/Socket/0"),
        ("pcie", {"NCCL_P2P_DISABLE": "0"}, "SHM/direct/direct", ""),  # the way's own variable wins over the user's
    ],
)
def test_inside_nodes_each_node_measures_its_own_gpus(
    stand_ins: Path, tmp_path: Path, way: str, environment: dict[str, str], took: str, other: str
) -> None:
    ranks, measured = of_way(stand_ins, tmp_path, way, "a,a,b,b,c", **environment)
    assert [(one["host"], one["quantity"], one["bytes"], one["algorithm"]) for one in measured] == [
        (host, f"{way}_bandwidth", 65536, "2 x Fake GPU 0" if host == "a" else "2 x Fake GPU 2") for host in "ab"
    ]
    assert all("peer" not in one and min(one["samples"]) > 0 for one in measured)
    assert {(one["facts"]["took"], one["facts"]["took_other"]) for one in ranks[:4]} == {(took, other)}
    assert (ranks[4]["facts"]["no_way"], "way" in ranks[4]["facts"]) == ("one GPU on the node", False)


def test_between_nodes_each_pair_measures_with_all_of_its_gpus(stand_ins: Path, tmp_path: Path) -> None:
    ranks, measured = of_way(stand_ins, tmp_path, "nic", "a,b,b,c")
    assert sorted((one["host"], one["peer"]) for one in measured) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {(one["facts"]["took"], one["facts"]["took_other"]) for one in ranks} == {("NET/Socket/0", "")}
    (tmp_path / "alone").mkdir()
    ranks, measured = of_way(stand_ins, tmp_path / "alone", "nic", "a,a")
    assert ({one["facts"]["no_way"] for one in ranks}, measured) == ({"one node"}, [])


def test_between_two_nodes_at_a_time_the_way_is_left_to_nccl(stand_ins: Path, tmp_path: Path) -> None:
    own = {"NCCL_P2P_DISABLE": "1"}
    ranks, measured = of_way(stand_ins, tmp_path, "pairs", "a,b,b,c", **own)
    assert sorted((one["host"], one["peer"]) for one in measured) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {one["quantity"] for one in measured} == {"pairs_bandwidth"}
    assert {(one["facts"]["took"], one["facts"]["took_other"]) for one in ranks} == {("SHM/direct/direct", "")}


def test_pairs_of_many_nodes_play_some_rounds_in_which_every_node_meets_as_many() -> None:
    ways = load("nccl_sweep")
    found = ways.rounds("nic", [f"node{rank // 2}" for rank in range(64)])
    assert (len(found), {len(group) for groups in found for group in groups}) == (ways.MOST_ROUNDS, {4})
    assert all(sorted(rank for group in groups for rank in group) == list(range(64)) for groups in found)


# --- NCCL's own diagnostics -------------------------------------------------------------------------------------------


def seen_by_the_controller(lines: list[OutputLine], ranks: int = 2) -> base.Judgement:
    return NCCL.judge(*as_of_node1(lines, ranks))


def test_nccl_diagnoses_itself_and_a_pass_tells_what_it_proved(stand_ins: Path, tmp_path: Path) -> None:
    lines: list[OutputLine] = []
    first, second = played(stand_ins, tmp_path, 2, lines=lines, FAKE_GPUS="2")
    assert [event["facts"]["nccl_rank"] for event in (first, second)] == ["0", "1"]
    judgement = seen_by_the_controller(lines)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert "diagnostics: P2P is right for 2 peer accesses, no finding of 1 check; NCCL notes: Xid/" in judgement.reason


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("p2p", "node1, ranks 0, 1 (0000:01:00.0, 0000:02:00.0): NCCL's diagnostics: an access between two GPUs "),
        ("nvlink", "node1, rank 1 (0000:02:00.0): NCCL's diagnostics: NVLinks of the GPU are not active; see "),
    ],
)
def test_what_nccl_s_diagnostics_find_is_a_fail_that_names_node_rank_and_cause(
    stand_ins: Path, tmp_path: Path, fault: str, words: str
) -> None:
    lines: list[OutputLine] = []
    ranks = 2 if fault == "p2p" else 3  # one of two is half of them, and no few
    events = played(stand_ins, tmp_path, ranks, lines=lines, FAKE_GPUS=str(ranks), FAKE_NCCL_DIAGNOSTICS=fault)
    assert all(event["ok"] for event in events), "all answers are right"
    judgement = seen_by_the_controller(lines, ranks)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1",))
    assert judgement.reason.startswith(words)
    assert judgement.culprits[0].cure
    assert "rank" in judgement.evidence[-1].lower()


@pytest.mark.parametrize(
    ("code", "facts", "given", "asked"),
    [
        (23100, {}, {}, "1"),
        (23007, {}, {}, None),
        (23203, {"shared": "2 ranks on 1 GPU"}, {}, None),
        (23203, {"mig_instance": "MIG-a"}, {}, None),
        (23203, {}, {"NCCL_RUN_DIAGNOSTICS": "0", "NCCL_RUN_RAS_DIAGNOSTICS": "0"}, "0"),
    ],
)
def test_an_older_nccl_shared_gpus_and_settings_of_the_user_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, code: int, facts: dict[str, str], given: dict[str, str], asked: str | None
) -> None:
    names = load("nccl_checks").DIAGNOSTICS
    for name in names:
        monkeypatch.setenv(name, given.get(name, ""))  # undone after the test, whatever the program sets
        if name not in given:
            monkeypatch.delenv(name)
    report = SimpleNamespace(facts=dict(facts))
    load("nccl_checks").ask_for_diagnostics(report, SimpleNamespace(code=code), 3)
    assert [os.environ.get(name) for name in names] == [asked] * 2
    assert ("nccl_diagnostics" in report.facts, report.facts["nccl_rank"]) == (asked is not None, "3")


def test_diagnostics_that_print_nothing_are_told() -> None:
    facts = {"nccl_diagnostics": "asked for"}
    judgement = judged({"node1": GPU_NODE}, said(0, facts=facts), said(1, facts=facts))
    assert judgement.reason.endswith("; NCCL's own diagnostics printed nothing")


def test_a_fail_without_a_node_takes_that_of_the_diagnostics() -> None:
    nodes = {"node1": GPU_NODE, "node2": GPU_NODE}
    report = (ROOT / "tests" / "data" / "nccl_diagnostics" / "nvlink.txt").read_text(encoding="utf-8").replace("6", "2")
    hung = [OutputLine("stdout", 1.0, json.dumps({**said(rank), "event": "waiting", "s": 8.0})) for rank in range(4)]
    outcome = JobOutcome("deadline", 9.0, 9.0, lines=(*hung, OutputLine("stdout", 2.0, report.strip())))
    judgement = NCCL.judge(site(nodes), outcome)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert "node2, rank 2: NCCL's diagnostics: NVLinks of the GPU are not active" in judgement.reason
