"""Links on which packets are lost, as TCP itself has counted them: which links, and who is behind them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from clusterctl.analysis import robust_stats
from clusterctl.model import nodeset, units
from clusterctl.model.results import Culprit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from clusterctl.model.results import Figure, PairMatrix

SENT_AGAIN = "sent_again"  # the quantity: the part of a link's segments that was sent a second time, since it was lost
_LEAST = 0.01  # of the segments; a healthy fabric loses one in many thousands, and TCP halves its speed for each
# The same where the receiver's kernel has seen the gaps: a link that loses 1 % shows 0.4 to 2.6 %, as it loses clumps.
_LEAST_SEEN = 0.004
_SEEN = 0.5  # segments that came early, for each that was lost; late ones that were sent twice in vain leave no gap
_TIMES = 4.0  # what the other links lose
_LEVEL = 0.05  # how often a run may name any link by chance; a second run has to name the same one
_CLUMP = 16  # segments that are lost at once, for a full buffer drops what a card hands over in one piece
_LEAST_RATE, _MOST_RATE = 0.0005, 0.003  # of healthy links: that of a few segments tells little, and all may be bad
_SHARE = 0.5  # of a node's links, from which on it is the node
_FEWEST = 2  # lossy links of a node; one is a pair


@dataclass(frozen=True)
class Counts:
    """The segments with data that were sent on some connections, and those that were lost."""

    sent: float = 0.0
    lost: float = 0.0

    @property
    def share(self) -> float:
        """The part that was lost."""
        return self.lost / self.sent if self.sent else 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.sent + other.sent, self.lost + other.lost)


def lossy(
    ways: Mapping[tuple[str, str], Counts],
    everything: Counts,
    number: int,
    early: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> dict[tuple[str, str], float]:
    """Return the share of lost segments of the ways that lose more than chance makes of what the others lose.

    A way is a sender and a receiver. What it lost is held against a Poisson distribution at the rate of the better half
    of the ways, so a way that sent little needs to lose little. Segments are lost in clumps, which count once.

    Args:
        ways: those that lost some.
        everything: the counts of all ways together.
        number: of all ways.
        early: by way, the segments that came to the receiver before an earlier one.
    """
    number = max(number, len(ways))
    ordered = sorted(ways.values(), key=lambda counts: counts.share)
    above = ordered[max(0, len(ordered) - number // 2) :]  # the worse half, of which only these lost any
    worse = sum(above, Counts())
    rest = Counts(max(0.0, everything.sent - worse.sent), max(0.0, everything.lost - worse.lost))
    rate = min(_MOST_RATE, max(_LEAST_RATE, 2 * rest.share))
    seen = max(_LEAST_SEEN, _TIMES * rest.share)
    return {
        way: counts.share
        for way, counts in ways.items()
        if counts.share >= (min(_LEAST, seen) if early.get(way, 0.0) >= _SEEN * counts.lost else _LEAST)
        and robust_stats.poisson_at_least(counts.lost / _CLUMP, rate * counts.sent / _CLUMP) < _LEVEL / number
    }


def links(figures: Sequence[Figure], matrices: Sequence[PairMatrix]) -> tuple[Culprit, ...]:
    """Return who is behind the links that lose packets.

    A node is named for at least two of them that are half of its links or more, the node with most first; the links
    that are left are named as pairs, or with their sender and receiver where one direction alone loses packets. Where
    all links of three nodes or more do it, it is all of them together. Figures of other quantities are left out. Each
    names a sender and a receiver.
    """
    if not any(one.quantity == SENT_AGAIN for one in figures):
        return ()
    every = {frozenset(link) for matrix in matrices for link in matrix.links}
    ways = {
        (one.nodes[0], one.nodes[1]): one.value
        for one in figures
        if one.quantity == SENT_AGAIN and len(one.nodes) == 2 and frozenset(one.nodes) in every  # noqa: PLR2004
    }
    lost = {frozenset(way) for way in ways}
    order = tuple(dict.fromkeys(name for matrix in matrices for name in matrix.nodes))
    if len(every) > 1 and every == lost:
        words = f"packets are lost everywhere: all links lose {_range(ways.values())} of their TCP segments"
        return (Culprit(kind="together", nodes=order, quantity=SENT_AGAIN, words=words),)
    links_of = Counter(name for link in every for name in link)
    found = []
    while lost:
        lossy_of = Counter(name for link in lost for name in link)
        worst = max(order, key=lambda name: (lossy_of[name], -links_of[name]))
        if lossy_of[worst] < max(_FEWEST, _SHARE * links_of[worst]):
            break
        found.append(_node(worst, {way: share for way, share in ways.items() if frozenset(way) in lost}, order))
        lost = {link for link in lost if worst not in link}
    rest = sorted(lost, key=lambda link: sorted(map(order.index, link)))
    return (*found, *(_link({way: ways[way] for way in ways if frozenset(way) == link}, order) for link in rest))


def _node(name: str, ways: Mapping[tuple[str, str], float], order: Sequence[str]) -> Culprit:
    """Return a node as a culprit; where it only sends what is lost, or only receives it, the words say so."""
    its = {way: share for way, share in ways.items() if name in way}
    others = nodeset.folded([other for other in order if other != name and any(other in way for way in its)])
    where = f"on its links to {others}"
    if all(way[0] == name for way in its):
        where = f"from it to {others}"
    elif all(way[1] == name for way in its):
        where = f"to it from {others}"
    return _culprit("node", (name,), name, where, its.values())


def _link(ways: Mapping[tuple[str, str], float], order: Sequence[str]) -> Culprit:
    if len(ways) == 1:
        ((sender, receiver),) = ways
        return _culprit("one_way", (sender, receiver), f"{sender} to {receiver}", "that way", ways.values())
    ends = tuple(sorted(next(iter(ways)), key=order.index))
    return _culprit("pair", ends, " and ".join(ends), "between them", ways.values())


def _culprit(
    kind: Literal["node", "pair", "one_way"],
    nodes: tuple[str, ...],
    whom: str,
    where: str,
    shares: Collection[float],
) -> Culprit:
    words = f"{whom}: packets are lost, {_range(shares)} of the TCP segments {where}"
    return Culprit(kind=kind, nodes=nodes, quantity=SENT_AGAIN, words=words)


def _range(shares: Collection[float]) -> str:
    """Return '4.8 %', or '4.1 to 5.2 %' where they differ."""
    low, high = (units.percent(end) for end in (min(shares), max(shares)))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"
