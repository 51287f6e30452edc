"""Which rank keeps a collective from going on, by PyTorch's flight recorder and by NCCL's RAS.

The flight recorder numbers the calls of each group.

Ranks wait in the call with one number. The rank that has not called it yet is the cause, or the one that called
something else, or the one that is still in an earlier call.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.model.job_outcome import FlightGroup


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


# --- Read NCCL's RAS: which processes of a job have launched fewer collectives than the others, or do not answer it ---

_COMMUNICATOR = re.compile(r"#(?P<name>\d+-\d+) \([0-9a-f]+\) (?P<error>[A-Z]+)$")
_KIND = re.compile(r"\s+Communicator ranks have different (?P<kind>\w+) operation counts$")
_SOME = re.compile(
    r"\s+(?P<ranks>\d{1,9}) ranks have (?:launched up to operation (?P<number>\d{1,18})|not launched any operat)"
)
_ONE = re.compile(r"\s+Rank \d+ has (?:launched up to operation (?P<number>\d{1,18})|not launched any operations) -- ")
_PROCESS = re.compile(r"managed by process (?P<pid>\d{1,9}) on node (?P<node>\S+)$")
_SILENT = re.compile(r"\s+Process (?P<pid>\d{1,9}) on node (?P<node>\S+) managing GPU")


@dataclass(frozen=True)
class _Launched:
    """How many processes have launched so many operations of a kind, and those of them that are named."""

    number: int
    ranks: int
    processes: tuple[tuple[str, int], ...] = ()


def behind_by_ras(lines: Iterable[str], rank_of: Callable[[str, int], int | None], ranks: int) -> Behind | None:
    """Return the few ranks for which the others wait; None where RAS sets none apart.

    Args:
        lines: the answer.
        rank_of: returns the job's rank of a process, by node as RAS names it and process number.
        ranks: how many the job has.
    """
    text = list(lines)
    found = [few for kind, launched in _counts(text) if (few := _fewest(kind, launched, rank_of)) is not None]
    if len({one.ranks for one in found}) == 1 and len(found[0].ranks) * 2 < ranks:
        return found[0]
    silent = [rank_of(match["node"], int(match["pid"])) for line in text if (match := _SILENT.match(line))]
    named = tuple(sorted({rank for rank in silent if rank is not None}))
    if found or None in silent or not named or len(named) * 2 >= ranks:
        return None
    return Behind(named, "does not answer NCCL's RAS", "")


def _counts(lines: Sequence[str]) -> list[tuple[str, list[_Launched]]]:
    """Return, for each communicator and kind of operation, how far its processes are."""
    found: list[tuple[str, list[_Launched]]] = []
    inside = False
    for line in lines:
        if match := _KIND.match(line):
            found.append((match["kind"], []))
            inside = True
        elif _COMMUNICATOR.match(line) or not line.startswith(" "):
            inside = False
        elif inside:
            _add(found[-1][1], line)
    return found


def _add(launched: list[_Launched], line: str) -> None:
    process = _PROCESS.search(line)
    named = ((process["node"], int(process["pid"])),) if process else ()
    if match := _SOME.match(line):
        launched.append(_Launched(int(match["number"] or 0), int(match["ranks"])))
    elif match := _ONE.match(line):
        launched.append(_Launched(int(match["number"] or 0), 1, named))
    elif named and launched:
        last = launched[-1]
        launched[-1] = _Launched(last.number, last.ranks, (*last.processes, *named))


def _fewest(kind: str, launched: Sequence[_Launched], rank_of: Callable[[str, int], int | None]) -> Behind | None:
    """Return the processes that have launched less than the most common number, where all of them are named."""
    if not launched:
        return None
    number = Counter({one.number: one.ranks for one in launched}).most_common(1)[0][0]
    few = [one for one in launched if one.number < number]
    ranks = [rank_of(*process) for one in few for process in one.processes]
    if not few or None in ranks or len(ranks) != sum(one.ranks for one in few):
        return None
    known = tuple(sorted({rank for rank in ranks if rank is not None}))
    return Behind(known, f"has not launched {kind} #{number}, by NCCL's RAS", f"{kind} #{number}")
