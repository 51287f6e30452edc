"""What NCCL's RAS tells of a job that stands still; the answers are composed (``tests/data/nccl_ras``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.analysis.flight_records import Behind
from clusterctl.analysis.nccl_ras import behind

DATA = Path(__file__).parents[2] / "data" / "nccl_ras"
RANKS = {("10.0.0.1" if rank < 4 else "10.0.0.2", 100 + rank): rank for rank in range(8)}


def lines(name: str) -> list[str]:
    text = (DATA / f"{name}.txt").read_text(encoding="utf-8")
    return text.replace("{pid}", "101").replace("{node}", "10.0.0.1").splitlines()


def rank_of(node: str, pid: int) -> int | None:
    return RANKS.get((node, pid))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("one_behind", Behind((1,), "has not launched AllReduce #1042, by NCCL's RAS", "AllReduce #1042")),
        ("two_behind", None),
        ("silent", Behind((5,), "does not answer NCCL's RAS", "")),
    ],
)
def test_the_few_that_lag_or_are_silent_are_named(name: str, found: Behind | None) -> None:
    told = behind(lines(name), rank_of, 8)
    if name == "two_behind":
        assert told is not None
        assert told.ranks == (2, 3)
    else:
        assert told == found


@pytest.mark.parametrize(
    "change",
    [
        lambda one: [line.replace("process 101", "process 999") for line in one],
        lambda one: [line.replace("3 ranks", "1 ranks") for line in one if "Rank 1 has" not in line],
        lambda one: [line.replace("operation 1041", "operation 1043") for line in one],
        lambda _one: ["No communicator data collected!", "  Rank 1 has launched up to operation 3 -- GPU 1"],
        lambda _one: ["ERROR: internal error", "", "\0" * 40],
        lambda _one: [],
    ],
)
def test_an_answer_that_sets_no_known_rank_apart_names_none(change: object) -> None:
    assert behind(change(lines("one_behind")), rank_of, 8) is None  # type: ignore[operator]


def test_more_than_half_of_the_ranks_are_not_the_few() -> None:
    assert behind(lines("two_behind"), rank_of, 4) is None


def test_two_communicators_that_name_different_ranks_name_none() -> None:
    text = "\n".join(lines("two_behind")).rpartition("  Rank 3 -- GPU 3")
    other = f"{text[0]}  Rank 4 -- GPU 0 managed by process 104 on node 10.0.0.2\n"
    assert behind(other.splitlines(), rank_of, 8) is None
