"""Which pairs are measured on: suspects first, matched controls beside them, in rounds of disjoint pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.link_model import Indices, Links

_CONTROLS = 2  # links to trusted nodes for each end of a suspect
_MOST_FILLED = 2000  # pairs that are added to rounds in which their nodes would rest


@dataclass(frozen=True)
class Ask:
    """Pairs to measure on: ``rounds`` of disjoint pairs of nodes, played ``repeats`` times."""

    rounds: tuple[tuple[tuple[int, int], ...], ...]
    repeats: int

    @property
    def played(self) -> int:
        """The number of rounds that this takes."""
        return len(self.rounds) * self.repeats


class Rounds:
    """Rounds of disjoint pairs, filled one pair after the other; each pair goes into the first round that has room."""

    def __init__(self, table: Links) -> None:
        """Begin without a round."""
        self._first, self._second = table.first.tolist(), table.second.tolist()
        self._busy = [0] * table.degree.size  # of each node, the rounds in which it plays, as bits
        self._rounds: list[list[int]] = []
        self._known: set[int] = set()

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self._rounds)

    def add(self, link: int, most: int) -> bool:
        """Add a link unless that takes more than so many rounds; whether it is in."""
        if link in self._known:
            return True
        first, second = self._first[link], self._second[link]
        busy = self._busy[first] | self._busy[second]
        free = (~busy & (busy + 1)).bit_length() - 1  # the lowest bit that is not set
        if free >= most:
            return False
        if free == len(self._rounds):
            self._rounds.append([])
        self._rounds[free].append(link)
        self._busy[first] |= 1 << free
        self._busy[second] |= 1 << free
        self._known.add(link)
        return True

    def asked(self, repeats: int) -> Ask:
        """Return the rounds with the numbers of nodes."""
        pairs = ([(self._first[link], self._second[link]) for link in links] for links in self._rounds)
        return Ask(tuple(tuple(sorted(each)) for each in pairs), repeats)


def of_all(table: Links, budget: int) -> Ask | None:
    """Ask for every link as often as the budget of rounds allows; None where it does not allow it once."""
    rounds = Rounds(table)
    for link in _by_circle(table):
        if not rounds.add(link, budget):
            return None
    repeats = budget // max(1, len(rounds))
    return rounds.asked(repeats) if repeats else None


def of_suspects(
    table: Links, suspects: Sequence[int], controls: Iterable[int], budget: int, repeats: int
) -> Ask | None:
    """Ask for suspects, as many as fit, and for controls; then let trusted nodes that would rest play as well.

    Args:
        table: all links that may be asked for.
        suspects: links, the strongest suspicion first.
        controls: links of the same nodes that are trusted.
        budget: rounds.
        repeats: how often each shall be measured at least, where the budget allows that of one round.
    """
    rounds, most = Rounds(table), max(1, budget // repeats)
    for link in suspects:
        rounds.add(link, max(1, (most + 1) // 2) if repeats > 1 else most)
    for link in controls:
        rounds.add(link, most)
    number = len(rounds)
    if not number:
        return None
    others = np.random.default_rng(table.first.size).permutation(table.first.size)[:_MOST_FILLED]
    for link in others.tolist():
        rounds.add(link, number)
    return rounds.asked(max(1, budget // number))


def controls_of(table: Links, ends: Sequence[int], trusted: Indices) -> list[int]:
    """Return for each of these nodes a few of its trusted links to other nodes, always the same ones."""
    others = set(ends)
    source = np.random.default_rng(len(ends))
    good = set(trusted.tolist())
    found = []
    for node in ends:
        count = int(table.degree[node])
        order = source.permutation(count)
        mine = (
            int(table.slots[node, at])
            for at in order
            if int(table.others[node, at]) not in others and int(table.slots[node, at]) in good
        )
        found += [link for link, _ in zip(mine, range(_CONTROLS), strict=False)]
    return found


def _by_circle(table: Links) -> list[int]:
    """Return the links in the order of a round-robin tournament, so that rounds fill up."""
    circle = table.degree.size + table.degree.size % 2 - 1
    last = (table.second == circle).astype(np.int64)
    number = np.where(last == 1, 2 * table.first, table.first + table.second) % max(1, circle)
    return [int(link) for link in np.argsort(number, kind="stable")]
