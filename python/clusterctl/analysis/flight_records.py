"""Which rank keeps a collective from going on, by PyTorch's flight recorder, which numbers the calls of each group.

Ranks wait in the call with one number. The rank that has not called it yet is the cause, or the one that called
something else, or the one that is still in an earlier call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.stall import FlightGroup


@dataclass(frozen=True)
class Behind:
    """The ranks that keep the others waiting, what they did in words, and the call that the others wait in."""

    ranks: tuple[int, ...]
    words: str
    call: str


def behind(flights: Mapping[int, Sequence[FlightGroup]]) -> Behind | None:
    """Return the few ranks for which most ranks of a process group wait; None where none are set apart.

    Args:
        flights: how far each rank is in each of its groups.
    """
    by_group: dict[str, dict[int, FlightGroup]] = {}
    for rank, groups in flights.items():
        for one in groups:
            by_group.setdefault(one.group, {})[rank] = one
    found = [few for group in by_group.values() if (few := _in_group(group)) is not None]
    return found[0] if len({one.ranks for one in found}) == 1 else None


def _in_group(ranks: Mapping[int, FlightGroup]) -> Behind | None:
    waiting = Counter(one.waits for one in ranks.values() if one.waits >= 0)
    if not waiting:
        return None
    number, count = waiting.most_common(1)[0]
    there = [one for one in ranks.values() if one.waits == number]
    call, size = Counter((one.call, one.sizes) for one in there).most_common(1)[0][0]
    name = f"{call} #{number}"
    tests = (
        ([rank for rank, one in ranks.items() if one.last < number], f"has not called {name}"),
        ([rank for rank, one in ranks.items() if 0 <= one.waits < number], f"is still in a call before {name}"),
        (
            [rank for rank, one in ranks.items() if one.waits == number and (one.call, one.sizes) != (call, size)],
            f"has called something else than {name}",
        ),
    )
    for few, words in tests:
        if few and len(few) * 2 < len(ranks) and len(few) < count:
            return Behind(tuple(sorted(few)), words, name)
    return None
