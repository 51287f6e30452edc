"""Verdicts over captured output; the first line of each log in tests/data/validation says where it came from."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from clusterctl.cli import main
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine, Sweep
from clusterctl.model.results import Verdict
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import base, blame, judging, rank_output, registry
from factory import captured_outcome

DATA = Path(__file__).parents[3] / "data" / "validation"
SLOTS = {"node1": 2, "node2": 2, "node3": 2, "node4": 2}
LIBRARIES = {
    "4.1.8": "/usr/local/openmpi-4.1.8-dev",
    "5.0.7": "/usr/local/openmpi-5.0.7-89fe42c1c26d8953",
}
OTHERS = {f"skew-{version}": f"{path}-other" for version, path in LIBRARIES.items()} | {
    "skew-4.1.8": "/usr/local/openmpi-4.1.8-other"
}


def site(name: str) -> base.Site:
    version = name.rpartition("-")[2]
    libraries = dict.fromkeys(SLOTS, LIBRARIES[version])
    if name in OTHERS:
        libraries["node3"] = OTHERS[name]
    return base.Site(
        version=version,
        slots=SLOTS,
        names={node: node for node in SLOTS},
        platforms=dict.fromkeys(SLOTS, "debian-12-x86_64"),
        libraries=libraries,
    )


def judge(name: str, check: str) -> base.Judgement:
    return registry.select([check])[0].judge(site(name), captured_outcome(name))


def test_a_healthy_run_passes_with_its_figures() -> None:
    judgement = judge("healthy-5.0.7", "allreduce")
    assert (judgement.verdict, judgement.evidence) == (Verdict.PASS, ())
    assert judgement.reason == "8 ranks on 4 nodes, 4,273,464 values right"
    figures = {figure.name: figure.value for figure in judgement.measurements}
    assert (figures["ranks_answered"], figures["nodes_answered"], figures["total"]) == (8, 4, 22.195)
    assert 0 < figures["slowest_rank"] < figures["total"]


def test_hello_names_the_release_that_all_have() -> None:
    judgement = judge("hello-5.0.7", "hello")
    assert judgement.reason == "8 ranks on 4 nodes, all Open MPI v5.0.7"
    assert {rank.library_path for rank in judgement.ranks} == {f"{LIBRARIES['5.0.7']}/lib/libmpi.so.40.40.7"}


@pytest.mark.parametrize(
    ("name", "check", "hosts", "words"),
    [
        (
            "stopped-5.0.7",
            "allreduce",
            ("node3",),
            r"no sign of life from rank [45] on node3 within 20 s; 7 others wait",
        ),
        ("asleep-5.0.7", "reduce", ("node2",), r"from ranks 2 and 3 on node2 within 20 s; 6 others wait, in MPI_Init"),
        ("asleep-4.1.8", "reduce", ("node3",), r"from ranks 4 and 5 on node3 within 15 s; 6 others wait, in MPI_Init"),
        ("paused-5.0.7", "broadcast", ("node4",), r"from ranks 6 and 7 on node4 .*; node4 no longer answers ssh"),
        ("paused-4.1.8", "broadcast", ("node3",), r"from ranks 4 and 5 on node3 .*; node3 no longer answers ssh"),
        ("killed-5.0.7", "scatter", ("node3",), r"rank [45] on node3 exited on signal 11 \(Segmentation fault\)"),
        ("killed-early-5.0.7", "scatter", ("node3",), r"rank 5 on node3 never came up, .* code 139 \(SIGSEGV\)"),
        (
            "wrong-gather-5.0.7",
            "gather",
            ("node2", "node3", "node4"),
            r"rank 2 on node2: gather u1\[3\] to rank 2, value 2 from rank 3 .*: expected 12, got 16",
        ),
        ("wrong-5.0.7", "allreduce", tuple(SLOTS), r"rank 0 on node1: allreduce sum i4\[3\].*: expected 108, got 112"),
        ("wrong-4.1.8", "allreduce", tuple(SLOTS), r"rank 0 on node1: allreduce sum i4\[3\].*: expected 108, got 112"),
        ("raised-4.1.8", "scatter", ("node4",), r"rank 6 on node4: MPI_Init: .* ModuleNotFoundError: import of numpy"),
        ("skew-5.0.7", "hello", ("node3",), r"different library files of MPI: node3: .*-other/lib/libmpi.so"),
        ("skew-4.1.8", "hello", ("node3",), r"different library files of MPI: node3: .*-other/lib/libmpi.so"),
    ],
)
def test_a_fault_fails_and_names_who(name: str, check: str, hosts: tuple[str, ...], words: str) -> None:
    judgement = judge(name, check)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.hosts == hosts
    assert re.search(words, judgement.reason), judgement.reason


def test_no_rank_at_all_is_an_error_with_mpirun_s_own_words() -> None:
    judgement = judge("unresolved-4.1.8", "hello")
    assert judgement.verdict is Verdict.ERROR
    assert judgement.reason.startswith(
        "mpirun ended with code 255 before any rank came up: ssh: Could not resolve hostname node3"
    )
    assert "node3" in judgement.hosts


@pytest.mark.parametrize("ending", ["exited", "deadline", "lost", "not_started", "stopped"])
def test_no_output_is_never_a_pass(ending: str) -> None:
    outcome = JobOutcome(ending, 1.0, 1.0, rc=0, problem="why")  # type: ignore[arg-type]
    for check in registry.select(None):
        judgement = check.judge(site("none-5.0.7"), outcome)
        assert judgement.verdict is Verdict.ERROR
        assert all(rank.state == "absent" for rank in judgement.ranks)


def test_answers_from_all_but_one_rank_fail_even_with_exit_code_0() -> None:
    whole = captured_outcome("healthy-5.0.7")
    cut = dataclasses.replace(whole, lines=tuple(line for line in whole.lines if '"rank": 5,' not in line.text))
    judgement = judging.judge(site("healthy-5.0.7"), cut)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))


def test_right_answers_and_a_job_that_does_not_end_fail() -> None:
    whole = captured_outcome("healthy-5.0.7")
    late = dataclasses.replace(whole, ending="deadline", rc=None)
    assert judging.judge(site("healthy-5.0.7"), late).reason.startswith(
        "every answer was right, but the job did not end"
    )
    failed = dataclasses.replace(whole, rc=3)
    judgement = judging.judge(site("healthy-5.0.7"), failed)
    assert (judgement.verdict, judgement.reason) == (
        Verdict.FAIL,
        "every answer was right, but mpirun ended with code 3",
    )


def test_a_rank_that_stops_after_its_answer_is_named() -> None:
    def beat(rank: int) -> OutputLine:
        words = {
            "clusterctl": 1,
            "event": "waiting",
            "rank": rank,
            "host": f"node{rank // 2 + 1}",
            "step": "the barrier",
        }
        return OutputLine("stdout", 44.0, json.dumps(words))

    whole = captured_outcome("healthy-5.0.7")
    beats = tuple(beat(rank) for rank in range(8) if rank != 5)
    late = dataclasses.replace(whole, ending="deadline", rc=None, ending_s=45.0, lines=(*whole.lines, *beats))
    judgement = judging.judge(site("healthy-5.0.7"), late)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason.endswith("did not end within 45 s: rank 5 on node3 fell silent before the end")


def test_a_node_that_is_gone_is_named_though_mpirun_ended_with_code_0() -> None:
    started = tuple(
        OutputLine("stdout", 1.0, json.dumps({"clusterctl": 1, "event": "started", "rank": rank, "host": node}))
        for rank, node in enumerate(node for node in SLOTS for _ in range(2))
    )
    gone = (Sweep("node1"), Sweep("node4", problem="did not answer within 15 s"))
    outcome = JobOutcome("exited", 3.0, rc=0, lines=started, sweeps=gone)
    judgement = judging.judge(site("healthy-5.0.7"), outcome)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node4",))
    assert judgement.reason.startswith("node4 no longer answers ssh; no answer from ranks 0 and 1 on node1")


def test_what_ranks_say_while_they_are_ended_is_not_held_against_them() -> None:
    died = {"clusterctl": 1, "event": "result", "rank": 3, "host": "node2", "ok": False, "compared": 0, "wrong": 1}
    words = {**died, "problems": [{"what": "allreduce", "expected": "an answer", "got": "ended with code 14"}]}
    whole = captured_outcome("healthy-5.0.7")
    others = tuple(line for line in whole.lines if '"rank": 3' not in line.text)
    lines = (*others, OutputLine("stdout", 46.0, json.dumps(words)))
    late = dataclasses.replace(whole, ending="deadline", rc=None, ending_s=45.0, lines=lines)
    judgement = judging.judge(site("healthy-5.0.7"), late)
    assert judgement.verdict is Verdict.FAIL
    assert "no sign of life from rank 3 on node2" in judgement.reason


def test_a_sign_of_life_counts_from_when_it_was_given() -> None:
    """The launch node passed nothing on from the 16th second to the 23rd, the deadline was the 20th."""

    def said(at_s: float, rank: int, event: str, **more: object) -> OutputLine:
        words = {"clusterctl": 1, "event": event, "rank": rank, "host": f"node{rank // 2 + 1}", **more}
        return OutputLine("stdout", at_s, json.dumps(words))

    lines = [said(1.0, rank, "started") for rank in range(8) if rank not in {2, 3}]
    for rank in (0, 1, 4, 5, 6, 7):
        lines += [said(at_s + 1, rank, "waiting", s=at_s, step="MPI_Init") for at_s in (2.0, 8.5, 14.5)]
        lines += [said(22.7, rank, "waiting", s=at_s, step="MPI_Init") for at_s in (16.5, 18.5, 20.5)]
    outcome = JobOutcome("deadline", 27.0, 20.0, rc=1, lines=tuple(lines))
    judgement = judging.judge(site("healthy-5.0.7"), outcome)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",)), judgement.reason
    assert [report.seen_s for report in judgement.ranks] == [19.5, 19.5, 0.0, 0.0, 19.5, 19.5, 19.5, 19.5]


def test_a_library_from_elsewhere_fails_every_check() -> None:
    elsewhere = dataclasses.replace(
        site("healthy-5.0.7"), libraries={**dict.fromkeys(SLOTS, LIBRARIES["5.0.7"]), "node2": "/opt/openmpi"}
    )
    judgement = judging.judge(elsewhere, captured_outcome("healthy-5.0.7"))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert "ranks 2 and 3 on node2 have not mapped the installed libmpi" in judgement.reason


def test_builds_may_differ_between_platforms_and_releases_may_not() -> None:
    mixed = dataclasses.replace(
        site("skew-5.0.7"), platforms={**dict.fromkeys(SLOTS, "debian-12-x86_64"), "node3": "debian-13-x86_64"}
    )
    hello = registry.select(["hello"])[0]
    assert hello.judge(mixed, captured_outcome("skew-5.0.7")).verdict is Verdict.PASS
    whole = captured_outcome("skew-5.0.7")
    other = tuple(
        dataclasses.replace(line, text=line.text.replace("v5.0.7", "v5.0.11")) if "-other/" in line.text else line
        for line in whole.lines
    )
    judgement = hello.judge(mixed, dataclasses.replace(whole, lines=other))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert "different releases of MPI: node3: Open MPI v5.0.11" in judgement.reason


def test_ranks_on_the_wrong_node_are_found() -> None:
    whole = captured_outcome("hello-5.0.7")
    moved = tuple(
        dataclasses.replace(line, text=line.text.replace('"host": "node4"', '"host": "node3"')) for line in whole.lines
    )
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), dataclasses.replace(whole, lines=moved))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == "ranks are not where the hostfile puts them: node3 has 4 of 2, node4 has 0 of 2"


def test_lines_that_mpirun_glued_together_are_taken_apart() -> None:
    lines = [
        OutputLine(
            "stdout", 0.1, '[1,0]<stdout>:{"clusterctl": 1, "event": "started", "rank": 0, "host": "a"}{"rank": 1}'
        ),
        OutputLine("stderr", 0.2, 'warning: {"rank": cut'),
        OutputLine("stdout", 0.3, '{"rank": 0, "size": 2, "host": "a.example", "library_path": "/x"}'),
    ]
    output = rank_output.read(lines, ("node1", "node2", "node2"), {"a": "node1", "a.example": "node1"})
    assert [(report.state, report.host) for report in output.ranks] == [
        ("answered", "node1"),
        ("answered", "node2"),
        ("absent", "node2"),
    ]
    assert output.other == ("[1,0]<stdout>:", 'warning: {"rank": cut')


@pytest.mark.parametrize(
    "line",
    [
        '{"rank": 0, "figures": {"loss": "x"}}',
        '{"rank": 0, "figures": [1]}',
        '{"rank": 0, "facts": null}',
        '{"rank": 0, "problems": [{"what": "sum"}]}',
        '{"rank": 0, "seconds": null}',
        '{"rank": 0, "seconds": NaN}',
        '{"rank": 0, "compared": 1e999}',
        '{"rank": true}',
        '{"rank": ' + "[" * 100_000,
    ],
    ids=lambda line: line[:40],
)
def test_what_is_no_answer_is_none(line: str) -> None:
    output = rank_output.read([OutputLine("stdout", 0.1, line)], ("node1",), {})
    assert [(report.state, report.ok) for report in output.ranks] == [("absent", False)]


def test_a_figure_that_is_no_number_is_a_wrong_answer_and_the_record_loads_again() -> None:
    line = OutputLine("stdout", 0.1, '{"rank": 0, "ok": true, "host": "node1", "figures": {"loss": NaN, "step_s": 2}}')
    (report,) = rank_output.read([line], ("node1",), {}).ranks
    assert (report.ok, report.figures) == (False, {"step_s": 2.0})
    assert blame.wrong_words([report]) == "rank 0 on node1: loss: expected a finite number, got nan"
    assert type(report).model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(
    ("given", "near"),
    [("all-reduce", "allreduce"), ("Broadcast", "broadcast"), ("helo", "hello"), ("point", "point_to_point")],
)
def test_an_unknown_check_gets_the_nearest_name(given: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown check '{given}'; did you mean '{near}'"):
        registry.select([given])


def test_no_check_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="proves nothing"):
        registry.select([])


def test_checks_run_in_their_order_whatever_the_order_asked_for() -> None:
    assert [check.name for check in registry.select(["allreduce", "hello", "reachable"])] == ["hello", "allreduce"]
    with pytest.raises(ConfigError, match="the checks are: reachable, provisioned, skew, hello"):
        registry.select(["xyz"])


def test_help_names_every_check_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    (shown,) = re.findall(r"Only these checks of (.*?)\(where they are installed\)", text)
    assert re.findall(r"\w+", shown.replace("(MPI)", "")) == [check.name for check in registry.select(None)]


# --- the training stack -----------------------------------------------------------------------------------------------

CPU_NODE = NodeStack(
    framework="pytorch",
    framework_version="2.13.0+cpu",
    horovod="0.28.1",
    horovod_with="pytorch",
    horovod_gpu_operations="none",
)
GPU_NODE = dataclasses.replace(
    CPU_NODE, gpus=2, framework_cuda="13", framework_nccl="2.32.3", nccl="2.32.3", horovod_gpu_operations="NCCL"
)
BUILT = "/usr/local/openmpi-5.0.7-ccfb70564932dd67"


def training_site(stack: NodeStack = CPU_NODE) -> base.Site:
    """Return the four containers on which the logs of the training checks were captured."""
    return dataclasses.replace(
        site("none-5.0.7"), libraries=dict.fromkeys(SLOTS, BUILT), stack=dict.fromkeys(SLOTS, stack)
    )


def judge_training(name: str, check: str) -> base.Judgement:
    return registry.select([check])[0].judge(training_site(), captured_outcome(name))


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
        (
            "horovod-average-5.0.7",
            "horovod",
            ("node3",),
            r"^rank 5 on node3: average float32\[1\] on cpu, value 0 .*: expected 9.0, got 18.0$",
        ),
        (
            "horovod-gloo-5.0.7",
            "horovod",
            tuple(SLOTS),
            r"^tensors in main memory were carried by GLOO and not by MPI: GLOO_ALLGATHER GLOO_ALLREDUCE GLOO_BCAST",
        ),
        (
            "training-gradient-5.0.7",
            "training",
            ("node2",),
            r"^rank 3 on node2: its own first gradient: expected 0\.\d+ within 1e-08 of it, got 0\.\d+$",
        ),
        ("training-died-5.0.7", "training", ("node4",), r"^rank 6 on node4: step 3 of epoch 0 .* killed by SIGSEGV"),
        (
            "torchrun-gradient-5.0.7",
            "torchrun",
            ("node4",),
            r"^rank 6 on node4: its own first gradient: expected 1\.17",
        ),
        (
            "torchrun-paused-5.0.7",
            "torchrun",
            ("node3",),
            r"^no sign of life from rank [45] on node3 .*; 7 others wait",
        ),
        (
            "torchrun-agent-5.0.7",
            "torchrun",
            ("node2",),
            r"^no sign of life from ranks 2 and 3 on node2 .*; 6 others wait, in torchrun, which has not started its w",
        ),
        (
            "torchrun-killed-5.0.7",
            "torchrun",
            ("node2",),
            r"^rank 2 on node2 was killed by SIGKILL, and torchrun ended the others$",
        ),
    ],
)
def test_a_fault_in_training_fails_and_names_who(name: str, check: str, hosts: tuple[str, ...], words: str) -> None:
    judgement = judge_training(name, check)
    assert judgement.verdict is Verdict.FAIL
    assert re.search(words, judgement.reason), judgement.reason
    assert judgement.hosts == hosts


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

    assert on_gpus("NCCL_ALLREDUCE NCCL_BCAST").reason.endswith("values right over MPI and NCCL on the GPUs")
    fallen_back = on_gpus("MPI_ALLREDUCE NCCL_BCAST")
    assert fallen_back.verdict is Verdict.FAIL
    assert "tensors on the GPUs were carried by MPI and NCCL and not by NCCL" in fallen_back.reason


def test_gradients_that_are_all_off_blame_nobody() -> None:
    whole = captured_outcome("training-gradient-5.0.7")
    wrong = '"problems": [{"what": "its own first gradient", "expected": "1", "got": "2"}, '
    lines = tuple(
        dataclasses.replace(line, text=line.text.replace('"problems": [{"what": "p', wrong + '{"what": "p'))
        for line in whole.lines
    )
    judgement = registry.select(["training"])[0].judge(training_site(), dataclasses.replace(whole, lines=lines))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, tuple(SLOTS))


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
