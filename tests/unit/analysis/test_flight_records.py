"""Which rank the others wait for, by the numbers of the calls."""

from __future__ import annotations

import pytest
from clusterctl.analysis.flight_records import Behind, behind
from clusterctl.analysis.rank_places import Place
from clusterctl.analysis.stall import RankSight, judge
from clusterctl.model.job_outcome import FlightGroup

WAITS = FlightGroup(group="0", last=1042, waits=1042, call="all_reduce", sizes="[[4]]")
GONE_ON = FlightGroup(group="0", last=1041)


def group(**more: object) -> FlightGroup:
    return WAITS.model_copy(update=more)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({2: GONE_ON}, "has not called all_reduce #1042"),
        ({2: group(last=1042, waits=1040)}, "is still in a call before all_reduce #1042"),
        ({2: group(call="broadcast")}, "has called something else than all_reduce #1042"),
        ({2: group(sizes="[[8]]")}, "has called something else than all_reduce #1042"),
        ({}, None),
        (dict.fromkeys(range(2, 6), GONE_ON), None),
        ({2: group(last=1050, waits=1042)}, None),
    ],
)
def test_a_rank_that_is_set_apart_is_named(odd: dict[int, FlightGroup], words: str | None) -> None:
    found = behind({rank: (odd.get(rank, WAITS),) for rank in range(8)})
    assert found == (None if words is None else Behind((2,), words, "all_reduce #1042"))


def test_two_groups_that_tell_of_different_ranks_tell_nothing() -> None:
    other = group(group="1")
    late = GONE_ON.model_copy(update={"group": "1"})
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 5 else late) for rank in range(8)}
    assert behind(flights) is None
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 2 else late) for rank in range(8)}
    found = behind(flights)
    assert found is not None
    assert found.ranks == (2,)


def test_the_sentence_has_the_number_of_the_call_and_the_place_of_the_rank() -> None:
    place = Place("torch.cuda.synchronize", "train (train.py:30)")
    ranks = [RankSight(rank, f"node{rank // 2 + 1}", now=place, before=place) for rank in range(8)]
    found = judge(ranks, behind=behind({rank: (WAITS if rank != 5 else GONE_ON,) for rank in range(8)}))
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == ("behind", ("node3",), (5,))
    assert found.sentence == (
        "node3 rank 5 has not called all_reduce #1042 and is in train (train.py:30), 7 others wait in all_reduce #1042"
    )
