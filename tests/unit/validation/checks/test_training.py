"""``torchrun``, ``horovod`` and ``training`` over captured output, and what they need of a node."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics

import pytest
from captured_cluster import CPU_NODE, GPU_NODE, SLOTS, judge_training, training_site
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.training import TrainingOptions
from factory import captured_outcome


def test_torchrun_passes_with_the_loss_of_one_process() -> None:
    judgement = judge_training("torchrun-5.0.7", "torchrun")
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.reason == "8 ranks on 4 nodes, 988,920 values right over gloo, loss 0.00658886 as of one process"
    figures = {figure.name: figure.value for figure in judgement.measurements}
    assert figures["loss"] == pytest.approx(figures["single_process_loss"], rel=1e-9)
    assert [report.host for report in judgement.ranks] == [node for node in SLOTS for _ in range(2)]


def test_horovod_passes_and_names_what_carried_it() -> None:
    judgement = judge_training("horovod-5.0.7", "horovod")
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.reason == "8 ranks on 4 nodes, 4,605,697 values right over MPI"


def test_training_passes_with_the_perplexity_of_one_process() -> None:
    judgement = judge_training("training-5.0.7", "training")
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.reason == "8 ranks on 4 nodes, perplexity 1.17682 as of one process"
    figures = {figure.name: (figure.value, figure.unit) for figure in judgement.measurements}
    assert figures["perplexity"] == (pytest.approx(1.1768169183543258, rel=1e-8), "1")
    assert judgement.figures == ()  # that version printed no times of its steps


@pytest.mark.parametrize(
    ("name", "check", "hosts", "words"),
    [
        ("horovod-average-5.0.7", "horovod", ("node3",), r"^rank 5 on node3: average .*: expected 9.0, got 18.0$"),
        ("horovod-gloo-5.0.7", "horovod", tuple(SLOTS), r"^tensors .* were carried by GLOO and not by MPI: GLOO_"),
        ("training-gradient-5.0.7", "training", ("node2",), r"^rank 3 on node2: its own first gradient: expected 0"),
        ("training-died-5.0.7", "training", ("node4",), r"^rank 6 on node4: step 3 of epoch 0 .* killed by SIGSEGV"),
        ("torchrun-gradient-5.0.7", "torchrun", ("node4",), r"^rank 6 on node4: its own first gradient: expected"),
        ("torchrun-paused-5.0.7", "torchrun", ("node3",), r"from rank [45] on node3 .*; 7 others wait"),
        (
            "torchrun-agent-5.0.7",
            "torchrun",
            ("node2",),
            r"from ranks 2 and 3 on node2 .*; 6 others wait, in torchrun,",
        ),
        ("torchrun-killed-5.0.7", "torchrun", ("node2",), r"^rank 2 on node2 was killed by SIGKILL, and torchrun"),
    ],
)
def test_a_fault_in_training_fails_and_names_who(name: str, check: str, hosts: tuple[str, ...], words: str) -> None:
    judgement = judge_training(name, check)
    assert judgement.verdict is Verdict.FAIL
    assert re.search(words, judgement.reason), judgement.reason
    assert judgement.hosts == hosts


def test_a_worker_that_lost_its_peer_is_not_blamed_although_its_torchrun_names_it_first() -> None:
    whole = captured_outcome("torchrun-killed-5.0.7")
    first = next(number for number, line in enumerate(whole.lines) if "Root Cause" in line.text)
    block = [dataclasses.replace(line, at_s=6.0) for line in whole.lines[first : first + 8]]
    later = {"rank      : 2 ": "rank      : 4 ", "host      : node2": "host      : node3", "-9 ": "1 ", "(SIGKILL)": ""}
    for old, new in later.items():
        block = [dataclasses.replace(line, text=line.text.replace(old, new)) for line in block]
    problem = {"what": "step 3", "expected": "an answer", "got": "RuntimeError: Connection closed by peer"}
    said = {"clusterctl": 1, "event": "result", "check": "torchrun", "rank": 4, "host": "node3", "ok": False}
    said |= {"compared": 0, "wrong": 1, "problems": [problem]}
    answer = dataclasses.replace(whole.lines[first], stream="stdout", at_s=6.0, text=json.dumps(said))
    lines = (*whole.lines[:first], answer, *block, *whole.lines[first:])
    judgement = registry.select(["torchrun"])[0].judge(training_site(), dataclasses.replace(whole, lines=lines))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",)), judgement.reason
    assert judgement.reason == "rank 2 on node2 was killed by SIGKILL, and torchrun ended the others"


def test_answers_that_nobody_knows_the_carrier_of_fail() -> None:
    whole = captured_outcome("horovod-5.0.7")
    silent = tuple(
        dataclasses.replace(line, text=re.sub(r', "cpu_operations": "[^"]*"', "", line.text)) for line in whole.lines
    )
    judgement = registry.select(["horovod"])[0].judge(training_site(), dataclasses.replace(whole, lines=silent))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason.endswith("carried by a library that the timeline does not name and not by MPI: none")


def test_tensors_on_gpus_have_to_be_carried_by_what_horovod_was_built_with() -> None:
    whole = captured_outcome("horovod-5.0.7")

    def on_gpus(operations: str) -> base.Judgement:
        known = tuple(
            dataclasses.replace(
                line, text=line.text.replace('"cpu_operations"', f'"cuda_operations": "{operations}", "cpu_operations"')
            )
            for line in whole.lines
        )
        outcome = dataclasses.replace(whole, lines=known)
        return registry.select(["horovod"])[0].judge(training_site(GPU_NODE), outcome)

    reason = on_gpus("NCCL_ALLREDUCE NCCL_BCAST").reason
    assert "values right over MPI and NCCL on the GPUs; NCCL's way was not proved on node[1-4], for its" in reason
    fallen_back = on_gpus("MPI_ALLREDUCE NCCL_BCAST")
    assert fallen_back.verdict is Verdict.FAIL
    assert "tensors on the GPUs were carried by MPI and NCCL and not by NCCL" in fallen_back.reason


def test_torchrun_over_nccl_says_that_a_silent_log_proves_no_way() -> None:
    whole = captured_outcome("torchrun-5.0.7")
    lines = tuple(dataclasses.replace(line, text=line.text.replace('"gloo"', '"nccl"')) for line in whole.lines)
    check = registry.select(["torchrun"])[0]
    reason = check.judge(training_site(GPU_NODE), dataclasses.replace(whole, lines=lines)).reason
    assert "over nccl, loss" in reason
    assert "; NCCL's way was not proved on node[1-4]" in reason
    assert "not proved" not in check.judge(training_site(), whole).reason, "Gloo has no log of NCCL"


def test_gradients_that_are_all_off_blame_nobody() -> None:
    whole = captured_outcome("training-gradient-5.0.7")
    wrong = '"problems": [{"what": "its own first gradient", "expected": "1", "got": "2"}, '
    lines = tuple(
        dataclasses.replace(line, text=line.text.replace('"problems": [{"what": "p', wrong + '{"what": "p'))
        for line in whole.lines
    )
    judgement = registry.select(["training"])[0].judge(training_site(), dataclasses.replace(whole, lines=lines))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ())


@pytest.mark.parametrize(
    ("check", "stack", "why"),
    [
        ("hello", NodeStack(), ""),
        ("torchrun", CPU_NODE, ""),
        ("torchrun", NodeStack(framework="tensorflow"), "no PyTorch"),
        ("horovod", CPU_NODE, ""),
        ("training", NodeStack(framework="pytorch"), "no Horovod"),
        ("horovod", dataclasses.replace(CPU_NODE, framework=""), "no PyTorch"),
        (
            "horovod",
            dataclasses.replace(CPU_NODE, horovod_with="tensorflow"),
            "Horovod with tensorflow, not with PyTorch",
        ),
    ],
)
def test_a_node_without_what_a_check_needs_says_so(check: str, stack: NodeStack, why: str) -> None:
    assert registry.select([check])[0].absent(stack) == why


@pytest.mark.parametrize(
    ("stack", "backend", "devices"),
    [
        (CPU_NODE, "gloo", "cpu"),
        (GPU_NODE, "nccl", "cpu,cuda"),
        (dataclasses.replace(GPU_NODE, framework_cuda=""), "gloo", "cpu"),
        (dataclasses.replace(GPU_NODE, horovod_gpu_operations="none"), "nccl", "cpu"),
        (dataclasses.replace(GPU_NODE, gpus=1), "nccl", "cpu,cuda"),  # two ranks share one, which NCCL 2.32 can
        (dataclasses.replace(GPU_NODE, gpus=1, framework_nccl="2.28.9"), "gloo", "cpu"),
    ],
)
def test_gpus_are_used_where_every_rank_has_one(stack: NodeStack, backend: str, devices: str) -> None:
    torchrun, horovod = (
        registry.select([name])[0].program(training_site(stack), 60) for name in ("torchrun", "horovod")
    )
    assert torchrun[torchrun.index("--backend") + 1] == backend
    assert horovod[horovod.index("--devices") + 1] == devices
    assert torchrun[torchrun.index("--slots") + 1] == "2,2,2,2"
    assert torchrun[torchrun.index("--first-node") + 1] == "node1"


# --- what the trainings tell of speed, over what real ranks printed ---


STACK = NodeStack(framework="pytorch", horovod="0.28.1", horovod_with="pytorch", horovod_gpu_operations="none")
SITE = base.Site(
    version="5.0.7",
    slots={"node1": 2, "node2": 2},
    names={"node1": "node1", "node2": "node2"},
    stack={"node1": STACK, "node2": STACK},
)


def judged(check: str, *, without: str = "") -> base.Judgement:
    outcome = captured_outcome(f"{check}-5.0.7", "sweeps", without=without)
    return registry.select([check])[0].judge(SITE, outcome)


@pytest.mark.parametrize(("check", "backend"), [("training", "horovod"), ("torchrun", "gloo")])
def test_time_of_a_step_efficiency_and_throughput(check: str, backend: str) -> None:
    judgement = judged(check)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert re.search(r"as of one process, scaling efficiency \d+ %$", judgement.reason)
    found = {(figure.quantity, figure.operation): figure for figure in judgement.figures}
    assert set(found) == {
        ("time", "training_step"),
        ("time", "single_process_step"),
        ("efficiency", "training_step"),
        ("throughput", "training_step"),
    }
    assert {figure.backend for figure in judgement.figures} == {backend}
    together, alone = found["time", "training_step"], found["time", "single_process_step"]
    assert len(together.samples) == len(alone.samples) == 19
    assert together.value == statistics.median(together.samples)
    assert (together.unit, together.better, together.nodes) == ("s", "lower", ())
    efficiency = found["efficiency", "training_step"]
    assert efficiency.value == pytest.approx(alone.value / (4 * together.value))
    assert (efficiency.unit, efficiency.better) == ("1", "higher")
    assert efficiency.low is not None
    assert efficiency.high is not None
    assert efficiency.low <= efficiency.value <= efficiency.high
    assert efficiency.confidence == pytest.approx(0.9)
    throughput = found["throughput", "training_step"]
    assert throughput.value == pytest.approx(4096 / together.value)
    assert (throughput.unit, throughput.better) == ("tokens/s", "none")


def test_times_of_one_side_alone_make_no_efficiency() -> None:
    judgement = judged("training", without='"single_process_step"')
    assert judgement.verdict is Verdict.PASS
    assert [figure.operation for figure in judgement.figures] == ["training_step"]
    assert judgement.reason.endswith("as of one process")


def test_options_reach_the_program() -> None:
    chosen = registry.builtin("nightly").model_copy(
        update={"checks": {"training": TrainingOptions(steps=64, tolerance=1e-6)}}
    )
    (check,) = registry.build(chosen)
    words = check.program(SITE, 60.0)
    assert words[-6:] == ("--steps", "64", "--tolerance", "1e-06", "--devices", "cpu")
    assert check.deadline_s == 142
