"""What NCCL's RAS tells of a job that stands still: answers of one GPU's ranks, and a composed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.analysis.flight_records import Behind, behind_by_ras
from factory import captured_ras

COMPOSED = Path(__file__).parents[2] / "data" / "nccl_ras" / "two_behind.txt"
RANKS = {("10.0.0.1" if rank < 4 else "10.0.0.2", 100 + rank): rank for rank in range(8)}


def late() -> list[str]:
    """Return the answer of a job whose rank 2 stays away; it becomes the process of rank 1 among eight."""
    (answer,) = captured_ras("late").answers
    return answer.replace("process 1095", "process 101").splitlines()


def lines() -> list[str]:
    return COMPOSED.read_text(encoding="utf-8").splitlines()


def rank_of(node: str, pid: int) -> int | None:
    return RANKS.get((node, pid))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("late", [Behind((2,), "has not launched AllReduce #9, by NCCL's RAS", "AllReduce #9")]),
        ("stopped", [None, Behind((0,), "does not answer NCCL's RAS", "")]),
    ],
)
def test_the_rank_that_nccl_itself_told_of_on_a_gpu_is_named(name: str, found: list[Behind | None]) -> None:
    """Before a rank was stopped nothing was wrong, so none is named then."""
    captured = captured_ras(name)
    told = [
        behind_by_ras(answer.splitlines(), lambda node, pid: captured.ranks.get(pid) if node == "10.0.0.1" else None, 3)
        for answer in captured.answers
    ]
    assert told == found
    assert told[-1] is not None
    assert told[-1].ranks == (captured.culprit,)


@pytest.mark.parametrize(("node", "rank"), [("10.0.0.1", 1), ("10.0.0.2", 5)])
def test_a_process_is_known_by_its_number_and_its_node(node: str, rank: int) -> None:
    text = captured_ras("stopped").answers[1].replace("rocess 924 on node 10.0.0.1", f"rocess 924 on node {node}")
    told = behind_by_ras(text.splitlines(), lambda place, _pid: {"10.0.0.1": 1, "10.0.0.2": 5}[place], 8)
    assert told == Behind((rank,), "does not answer NCCL's RAS", "")


def test_two_that_lag_in_two_communicators_are_named() -> None:
    told = behind_by_ras(lines(), rank_of, 8)
    assert told is not None
    assert told.ranks == (2, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: [line.replace("process 101", "process 999") for line in one],
        lambda one: [line.replace("2 ranks", "1 ranks") for line in one if "Rank 2 has" not in line],
        lambda one: [line.replace("operation 8", "operation 10") for line in one],
        lambda _one: ["No communicator data collected!", "  Rank 1 has launched up to operation 3 -- GPU 1"],
        lambda _one: ["ERROR: internal error", "", "\0" * 40],
        lambda _one: [],
    ],
)
def test_an_answer_that_sets_no_known_rank_apart_names_none(change: object) -> None:
    assert behind_by_ras(change(late()), rank_of, 8) is None  # type: ignore[operator]


def test_more_than_half_of_the_ranks_are_not_the_few() -> None:
    assert behind_by_ras(lines(), rank_of, 4) is None


def test_two_communicators_that_name_different_ranks_name_none() -> None:
    text = "\n".join(lines()).rpartition("  Rank 3 -- GPU 3")
    other = f"{text[0]}  Rank 4 -- GPU 0 managed by process 104 on node 10.0.0.2\n"
    assert behind_by_ras(other.splitlines(), rank_of, 8) is None
