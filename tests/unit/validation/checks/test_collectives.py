"""The sweeps: factors, bandwidths, verdicts over what real ranks printed, and the node's own rules."""

from __future__ import annotations

import dataclasses
import json
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clusterctl import suite
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome
from clusterctl.model.results import Figure, Verdict
from clusterctl.validation.checks import base, collectives, registry
from clusterctl.validation.checks.collectives import Collectives, HorovodSweep, NcclSweep, SweepOptions
from factory import captured_outcome
from node_programs import load

NODES = ("node1", "node2", "node3", "node4")
SIZES = (8, 65536, 1 << 20, 1 << 22)


# --- factors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "factors"),
    [
        ("allreduce", (1, 1.75, 1.96875)),
        ("allgather", (0.5, 0.875, 0.984375)),
        ("reduce_scatter", (0.5, 0.875, 0.984375)),
        ("alltoall", (0.5, 0.875, 0.984375)),
        ("broadcast", (1, 1, 1)),
    ],
)
def test_factors_are_those_of_nccl_tests(operation: str, factors: tuple[float, ...]) -> None:
    # NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Summary", for 2, 8 and 64 ranks
    assert tuple(collectives.factor(operation, ranks) for ranks in (2, 8, 64)) == factors


def test_every_operation_of_a_suite_has_a_factor_and_others_have_none() -> None:
    assert all(collectives.factor(operation, 4) > 0 for operation in suite.OPERATIONS)
    with pytest.raises(ValueError, match="no factor is known for 'gather'"):
        collectives.factor("gather", 4)
    with pytest.raises(ValueError, match="0 ranks have no bandwidth"):
        collectives.factor("allreduce", 0)


def test_bandwidths_follow_from_the_time_and_their_interval_is_turned_round() -> None:
    seconds = {"value": 0.5, "low": 0.4, "high": 0.8, "confidence": 0.95, "samples": (0.4, 0.5, 0.8)}
    time = Figure(quantity="time", operation="allreduce", backend="mpi", size_bytes=1000, unit="s", **seconds)
    algorithm, over_bus = collectives.bandwidths(time, 4)
    assert (algorithm.quantity, algorithm.value, algorithm.low, algorithm.high) == (
        "algorithm_bandwidth",
        2e3,
        1250,
        2.5e3,
    )
    assert (over_bus.quantity, over_bus.value, over_bus.low, over_bus.high) == ("bus_bandwidth", 3e3, 1875, 3.75e3)
    assert (over_bus.unit, over_bus.better, over_bus.samples, over_bus.confidence) == ("B/s", "none", (), 0.95)
    assert [one.quantity for one in collectives.bandwidths(time, 1)] == ["algorithm_bandwidth"]


# --- verdicts ---------------------------------------------------------------------------------------------------------


def captured(name: str, left_out: str = "") -> JobOutcome:
    return captured_outcome(name, "sweeps", without=left_out)


def site() -> base.Site:
    return base.Site(version="5.0.7", slots=dict.fromkeys(NODES, 2), names={node: node for node in NODES})


def test_a_healthy_sweep_gives_three_figures_for_each_operation_and_size() -> None:
    judgement = Collectives(SweepOptions(sizes=SIZES, confidence=0.9)).judge(site(), captured("mpi-5.0.7"))
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.startswith("8 ranks on 4 nodes, 87,588,928 values right; allreduce of 4 MiB: ")
    assert judgement.reason.endswith("B/s of bus bandwidth")
    found = {(one.quantity, one.operation, one.size_bytes): one for one in judgement.figures}
    points = {(operation, size) for operation in suite.OPERATIONS for size in SIZES}
    points -= {(operation, 8) for operation in ("allgather", "reduce_scatter", "alltoall")}  # two values, eight ranks
    assert set(found) == {
        (quantity, *point) for point in points for quantity in ("time", "algorithm_bandwidth", "bus_bandwidth")
    }
    time, over_bus = found["time", "allreduce", 1 << 20], found["bus_bandwidth", "allreduce", 1 << 20]
    assert (time.nodes, time.backend, time.unit, time.better) == ((), "mpi", "s", "lower")
    assert over_bus.value == pytest.approx((1 << 20) / time.value * 1.75)
    sure = found["time", "broadcast", 65536]
    assert sure.low is not None
    assert sure.high is not None
    assert (sure.confidence, sure.low <= sure.value <= sure.high) == (0.9, True)
    assert len(sure.samples) >= 5


def test_a_flipped_bit_is_named_with_rank_node_operation_and_size() -> None:
    judgement = Collectives().judge(site(), captured("corrupted-5.0.7"))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason.startswith("rank 5 on node3: allreduce of 8 bytes, value 1 (1 of 2 wrong): expected 484")
    assert judgement.figures == ()


def test_a_rank_whose_send_buffer_changed_is_to_blame_for_everybody_s_wrong_answers() -> None:
    outcome = captured("corrupted-5.0.7")
    lines = []
    for line in outcome.lines:
        event = json.loads(line.text) if line.text.startswith("{") else {}
        if event.get("event") == "result":
            what = "allreduce of 8 bytes, value 1 (1 of 2 wrong)"
            problems = [{"what": what, "expected": "484.0", "got": "485.0"}]
            if event["rank"] == 6:
                problems.insert(0, {"what": f"its own send buffer after {what}", "expected": "1.0", "got": "2.0"})
            event |= {"ok": False, "wrong": 1, "problems": problems}
        lines.append(dataclasses.replace(line, text=json.dumps(event) if event else line.text))
    judgement = Collectives().judge(site(), dataclasses.replace(outcome, lines=tuple(lines)))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node4",))
    assert judgement.reason.startswith("rank 6 on node4: its own send buffer after allreduce of 8 bytes")


def test_right_answers_without_a_figure_are_no_pass() -> None:
    judgement = Collectives().judge(site(), captured("mpi-5.0.7", left_out='"measured"'))
    assert judgement.verdict is Verdict.ERROR
    assert judgement.reason == "nothing was measured; left out: nothing"


def test_what_was_left_out_is_said() -> None:
    outcome = captured("mpi-5.0.7")
    told = '"points": "14 of 17", "left_out": "alltoall from 65536 bytes on"'
    texts = [line.text.replace('"points": "17 of 17"', told) for line in outcome.lines]
    lines = tuple(dataclasses.replace(line, text=text) for line, text in zip(outcome.lines, texts, strict=True))
    judgement = Collectives().judge(site(), dataclasses.replace(outcome, lines=lines))
    assert judgement.reason.endswith("; left out: alltoall from 65536 bytes on")


# --- launching --------------------------------------------------------------------------------------------------------


def test_options_reach_the_program_and_the_deadline_grows_with_them() -> None:
    options = SweepOptions(operations=("allreduce", "alltoall"), sizes=(8, 1 << 20), budget_s=2.0, precision=0.1)
    check = Collectives.of(options)
    words = check.program(site(), 60.0)
    assert words[1].endswith("/sweep_checks.py")
    asked = dict(zip(words[2::2], words[3::2], strict=True))
    assert {name: asked[name] for name in ("--operations", "--sizes", "--budget", "--confidence", "--precision")} == {
        "--operations": "allreduce,alltoall",
        "--sizes": "8,1048576",
        "--budget": "2",
        "--confidence": "0.95",
        "--precision": "0.1",
    }
    assert check.deadline_s == 60 + 4 * 13
    mine = SweepOptions(deadline_s=7)
    made = registry.build(registry.builtin("nightly").model_copy(update={"checks": {"collectives": mine}}))
    assert [(one.name, one.deadline_s) for one in made] == [("collectives", 7)]


def test_who_takes_part() -> None:
    cpu = NodeStack(framework="pytorch", horovod="0.28.1", horovod_with="pytorch")
    assert (Collectives().absent(NodeStack()), HorovodSweep().absent(cpu)) == ("", "")
    assert HorovodSweep().absent(NodeStack()) == "no Horovod"
    assert NcclSweep().absent(NodeStack()) == "no GPU and no NCCL"
    words = HorovodSweep().program(dataclasses.replace(site(), stack=dict.fromkeys(NODES, cpu)), 60.0)
    assert words[-2:] == ("--devices", "cpu")


# --- the node's program -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("sweep_checks")


def test_the_program_and_the_suite_know_the_same_operations(program: ModuleType) -> None:
    assert program.OPERATIONS == suite.OPERATIONS


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_what_must_arrive_is_what_a_collective_makes_of_what_is_sent(program: ModuleType, ranks: int) -> None:
    for size in (4 * 24, 4 * 1200):
        datas = [program.Data(np, rank, ranks) for rank in range(ranks)]
        share = size // 4 // ranks

        def sent(operation: str, size: int = size, datas: list[Any] = datas) -> list[Any]:
            return [data.sent(program.Point(operation, size)) for data in datas]

        total = sum(sent("allreduce"))
        for rank, data in enumerate(datas):
            part = slice(rank * share, (rank + 1) * share)
            right = {
                "allreduce": total,
                "broadcast": sent("broadcast")[0],
                "allgather": np.concatenate(sent("allgather")),
                "reduce_scatter": sum(sent("reduce_scatter"))[part],
                "alltoall": np.concatenate([given[part] for given in sent("alltoall")]),
            }
            for operation, answer in right.items():
                expected = data.expected(program.Point(operation, size))
                assert expected.dtype == np.float32
                assert np.array_equal(expected, answer)
    assert ranks == 1 or not np.array_equal(sent("allreduce")[0], sent("allreduce")[1])


def test_sizes_that_cannot_be_shared_out_are_left_out(program: ModuleType) -> None:
    found = [tuple(point) for point in program.points(("allreduce", "alltoall"), (4096, 8, 100, 2), 3)]
    assert found == [("allreduce", 8), ("allreduce", 100), ("allreduce", 4096), ("alltoall", 4096)]


class Alone:
    """A backend of one rank; ``spoilt`` is an operation that gives a wrong value."""

    name, rank, size = "alone", 0, 1

    def __init__(self, spoilt: str = "") -> None:
        self.spoilt, self.runs = spoilt, 0

    def gathered(self, value: float) -> list[float]:
        return [value]

    def first_says(self, value: float) -> float:
        return value

    def meet(self) -> None:
        pass

    wait = meet

    def load(self, point: Any, given: Any, room: int) -> None:
        assert room == len(given)
        self.given, self.got = given, given.copy()
        if point.operation == self.spoilt:
            self.got[-1] += 1

    def run(self) -> None:
        self.runs += 1

    def sent(self) -> Any:
        return self.given

    def received(self) -> Any:
        return self.got


def swept(program: ModuleType, backend: Alone, *, deadline: float = 60.0, room: float = 1e9) -> tuple[Any, list[Any]]:
    """Run a sweep of one rank; return its report and what was said."""
    said: list[Any] = []
    arguments = SimpleNamespace(
        operations=("allreduce", "broadcast"),
        sizes=(4096, 65536),
        budget=0.05,
        confidence=0.95,
        precision=0.5,
        deadline=deadline,
    )
    voice = SimpleNamespace(say_in_turn=lambda event, **words: said.append((event, words)))
    board = SimpleNamespace(step="", spoken=False)
    report = program.rank_program.Rank(SimpleNamespace(rank=0, size=1), board, arguments)
    report.voice = voice
    program.Sweep(report, backend, np).go(room)
    return report, said


def test_every_point_is_measured_until_it_is_sure(program: ModuleType) -> None:
    report, said = swept(program, Alone())
    assert [(words["operation"], words["bytes"], words["backend"]) for _, words in said] == [
        (operation, size, "alone") for size in (4096, 65536) for operation in ("allreduce", "broadcast")
    ]
    assert all(len(words["samples"]) >= program.AT_LEAST for _, words in said)
    assert (report.facts, report.findings.wrong) == ({"points": "4 of 4", "machine": program.measure.machine()}, 0)
    assert 0 <= report.figures["cpu_own_s"] <= report.figures["cpu_all_s"]


def test_a_wrong_value_is_noted_and_nothing_is_measured_after_it(program: ModuleType) -> None:
    report, said = swept(program, Alone("broadcast"))
    assert [words["operation"] for _, words in said] == ["allreduce"]
    assert report.findings.wrong == 2
    assert report.findings.problems[0]["what"] == "broadcast of 4096 bytes from rank 0, value 1023 (1 of 1024 wrong)"


def test_what_there_is_no_time_or_memory_for_is_left_out_and_said(program: ModuleType) -> None:
    report, said = swept(program, Alone(), room=5000)
    assert report.facts == {
        "points": "2 of 4",
        "machine": program.measure.machine(),
        "left_out": "allreduce from 65536 bytes on, broadcast from 65536 bytes on",
    }
    assert len(said) == 2
    assert swept(program, Alone(), deadline=0.0)[1] == []


def test_unknown_operations_are_refused(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    parser = program.rank_program.parser("test", ["collectives"])
    program.add_options(parser)
    asked = parser.parse_args(["--check", "collectives", "--operations", "allreduce,alltoall", "--sizes", "8,1024"])
    assert (asked.operations, asked.sizes) == (["allreduce", "alltoall"], [8, 1024])
    with pytest.raises(SystemExit):
        parser.parse_args(["--check", "collectives", "--operations", "allreduce,gather"])
    assert "argument --operations: no operations: gather" in capsys.readouterr().err
