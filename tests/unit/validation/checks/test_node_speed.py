"""The check ``node_speed``: verdicts over what nodes print, and the node's program on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import node_programs
import pytest
from clusterctl.analysis import robust_stats, speed_verdict
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.checks.node_speed import NodeSpeed, NodeSpeedOptions

ROOT = Path(__file__).parents[4]
MPI = "/usr/local/openmpi-5.0.7-aa"
NODES = ("node1", "node2", "node3", "node4", "node5")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return node_programs.load("node_checks")


def site(nodes: tuple[str, ...] = NODES) -> base.Site:
    named = {name: name for name in nodes}
    return base.Site(version="5.0.7", slots=dict.fromkeys(nodes, 2), names=named, libraries=dict.fromkeys(nodes, MPI))


def line(event: str, rank: int, **more: Any) -> OutputLine:
    head = {"clusterctl": 1, "event": event, "check": "node_speed", "rank": rank, "host": NODES[rank]}
    return OutputLine("stderr", 1.0, json.dumps({**head, **more}))


def answer(rank: int, **more: Any) -> OutputLine:
    good = {"ok": True, "compared": 9, "wrong": 0, "library_path": f"{MPI}/lib/libmpi.so.40"}
    return line("result", rank, **{**good, **more})


def speeds(rank: int, part: float = 1.0) -> list[OutputLine]:
    """Return what a node prints that has so much of the usual speed."""
    own = part * (1 + 0.004 * rank)
    wobble = [0.99, 1.0, 1.01, 1.0, 1.02, 0.98]
    memory = {"quantity": "memory_bandwidth", "unit": "B/s", "better": "higher"}
    compute = {"quantity": "compute", "unit": "FLOP/s", "better": "higher"}
    return [
        line("measured", rank, samples=[2e10 * own * one for one in wobble], **memory),
        line("measured", rank, samples=[5e10 * own * one for one in wobble], **compute),
    ]


def judged(lines: list[OutputLine], **outcome: Any) -> base.Judgement:
    ended = {"ending": "exited", "seconds": 9.0, "rc": 0, **outcome}
    return NodeSpeed().judge(site(), JobOutcome(lines=tuple(lines), **ended))


def test_every_node_has_its_figures_and_a_slow_one_is_found_by_them() -> None:
    parts = {rank: 0.5 if rank == 3 else 1.0 for rank in range(5)}
    lines = [one for rank, part in parts.items() for one in (*speeds(rank, part), answer(rank))]
    found = judged(lines)
    assert found.verdict is Verdict.PASS
    assert "; memory median 20.1 GB/s, 10.1 GB/s on node4; compute median 50.2 GFLOP/s" in found.reason
    assert found.reason.endswith("25.3 GFLOP/s on node4")
    assert sorted(figure.nodes for figure in found.figures) == sorted((name,) for name in NODES * 2)
    assert all(len(figure.samples) == 6 and figure.confidence == 0.95 for figure in found.figures)
    result = CheckResult(check="node_speed", verdict=found.verdict, reason=found.reason, figures=found.figures)
    named = speed_verdict.assess(result, robust_stats.OutlierPolicy())
    assert (named.verdict, named.hosts) == (Verdict.FAIL, ("node4",))


def test_a_node_without_a_figure_is_no_pass() -> None:
    lines = [one for rank in range(5) for one in (*speeds(rank), answer(rank))]
    found = judged([one for one in lines if not ("compute" in one.text and "node2" in one.text)])
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ("node2",))
    assert found.reason == "the time was too short to measure the compute of node2"


def test_a_wrong_product_is_a_fail() -> None:
    wrong = {"what": "a product of matrices, thread 0, value 5 (1 of 65536 wrong)", "expected": "3", "got": "4"}
    lines = [one for rank in range(5) for one in speeds(rank)] + [answer(rank) for rank in range(4)]
    found = judged([*lines, answer(4, ok=False, wrong=1, problems=[wrong])], rc=1)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node5",))


def test_the_deadline_grows_with_the_nodes_that_may_have_to_take_turns() -> None:
    check = NodeSpeed(NodeSpeedOptions(budget_s=1.0))
    assert check.measuring_s(site(NODES[:2])) < check.measuring_s(site())
    argv = check.program(site(), 80)
    assert argv[1].endswith("/node_checks.py")
    assert argv[argv.index("--budget") + 1] == "1"


# --- the program ------------------------------------------------------------------------------------------------------


def test_an_array_is_larger_than_the_caches_and_smaller_than_the_memory(program: ModuleType, tmp_path: Path) -> None:
    mib = 2**20
    assert program.array_bytes(tmp_path, 1e12) == 64 * mib
    for number, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        cache = tmp_path / f"cpu{number}" / "cache" / "index3"
        cache.mkdir(parents=True)
        (cache / "size").write_text("24576K\n", encoding="ascii")
        (cache / "shared_cpu_list").write_text(f"{shared}\n", encoding="ascii")
    assert program.array_bytes(tmp_path, 1e12) == 4 * 2 * 24 * mib
    assert program.array_bytes(tmp_path, 512 * mib) == 32 * mib
    assert program.array_bytes(tmp_path, 0) == mib


def test_a_window_is_longer_than_the_kernel_s_period_and_counts_all_threads(program: ModuleType) -> None:
    def make(number: int) -> Any:
        def piece() -> float:
            time.sleep(0.01)
            return float(number + 1)

        return piece

    crew = program.Crew(3, make)
    began = time.monotonic()
    rate = crew.window()
    assert time.monotonic() - began > 0.1
    assert 0 < rate <= (1 + 2 + 3) / 0.01
    crew.dismiss()


def test_where_nodes_share_a_machine_others_work_is_taken_off_and_not_a_group_s_limit(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both threads have half of a processor: others have the other half, or their control group holds them back."""

    def work() -> float:
        """Take some time and count it as the work, so that other tests on the machine do not change the rate."""
        began = time.monotonic()
        time.sleep(0.01)
        return 100 * (time.monotonic() - began)

    window_ns = int(program.WINDOW_S * 1e9)  # half of it, by two processors

    def rate(*, shared: bool, held_ns: int) -> float:
        held = iter([0, held_ns])
        began = time.monotonic()
        monkeypatch.setattr(program.time, "thread_time", lambda: (time.monotonic() - began) / 2)
        monkeypatch.setattr(program, "throttled_s", lambda _groups: next(held) * 1e-9)
        crew = program.Crew(2, lambda _number: work, shared=shared)
        found: float = crew.window()
        crew.dismiss()
        return found

    alone = rate(shared=False, held_ns=0)
    assert rate(shared=True, held_ns=0) == pytest.approx(2 * alone, rel=0.2)
    assert rate(shared=True, held_ns=window_ns) == pytest.approx(alone, rel=0.2)
    monkeypatch.undo()
    assert program.throttled_s(tmp_path) == 0
    (tmp_path / "cpu.stat").write_text("usage_usec 77\nthrottled_usec 1500000\n", encoding="ascii")
    assert program.throttled_s(tmp_path) == 1.5
    (tmp_path / "cpu.stat").write_text("", encoding="ascii")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.stat").write_text("nr_periods 7\nthrottled_time 2500000000\n", encoding="ascii")
    assert program.throttled_s(tmp_path) == 2.5


def test_a_thread_that_fails_is_told_of(program: ModuleType) -> None:
    def make(_number: int) -> Any:
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        program.Crew(2, make)
