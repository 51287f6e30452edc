"""What several quantities, sizes and two runs say together: one culprit for each node, link and direction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.analysis import culprit_words, packet_loss
from clusterctl.analysis.robust_stats import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import Culprit

_LINKS = ("pair", "one_way")  # kinds of culprits that are about a link
_FEW_NAMED = 6  # up to here the thresholds alone keep chance out
AGREE = 2.0  # two runs tell of the same fault where neither's logarithm is more than so many times the other's
_AGREE_BY_CHANCE = 3  # one in so many pairs of draws from an exponential tail agrees within that


def merge(culprits: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """Fold what several quantities and sizes say into one culprit for each node, link and direction, worst first.

    The strongest evidence speaks for all. A link is left out where one of its ends is named as a node, unless the same
    matrix names both: then the link is slow beyond what the node explains. The kernel's count of lost packets names its
    link whatever speeds say of the ends. A link that is slow in one direction is named with that direction alone.
    """
    every = _directed(culprits)
    nodes = {name for one in every if one.kind == "node" for name in one.nodes}
    both = {(name, one.quantity, one.size_bytes) for one in every if one.kind == "node" for name in one.nodes}
    kept: dict[tuple[str, object], list[Culprit]] = {}
    for one in every:
        ends = [name for name in one.nodes if name in nodes] if one.kind in _LINKS else []
        if one.quantity == packet_loss.SENT_AGAIN or all((name, one.quantity, one.size_bytes) in both for name in ends):
            kept.setdefault((one.kind, _who(one)), []).append(one)
    return tuple(sorted((_folded(group) for group in kept.values()), key=_badness, reverse=True))


def _directed(culprits: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """Give a pair the direction of its link where one is known; a link with both directions is a pair.

    The direction in which packets are lost is counted by the kernel. So it stands before those that speeds tell: lost
    acknowledgements can make the way back the slower one.
    """
    every = tuple(culprits)
    ways: dict[frozenset[str], set[tuple[str, ...]]] = {}
    one_way = [one for one in every if one.kind == "one_way"]
    for one in one_way:
        ways.setdefault(frozenset(one.nodes), set()).add(one.nodes)
    ways |= {frozenset(one.nodes): {one.nodes} for one in one_way if one.quantity == packet_loss.SENT_AGAIN}
    found = []
    for one in every:
        known = ways.get(frozenset(one.nodes), set()) if one.kind in _LINKS else set()
        if known:
            (first, *others) = sorted(known)
            changed: dict[str, object] = {"kind": "pair" if others else "one_way", "nodes": first}
            if one.kind == "pair" and not others:
                changed.update(score=None, ratio=None)  # so that the one with the direction speaks for both
            found.append(one.model_copy(update=changed))
        else:
            found.append(one)
    return tuple(found)


def _who(one: Culprit) -> object:
    """Return what tells the nodes of a culprit from those of others: in order for one way, else as a set."""
    if one.kind == "boundary":
        return frozenset(map(frozenset, one.groups))
    return one.nodes if one.kind == "one_way" else frozenset(one.nodes)


def confirm(
    first: Sequence[Culprit], second: Sequence[Culprit], policy: OutlierPolicy = DEFAULT
) -> tuple[Culprit, ...]:
    """Return the culprits that both of two independent runs name, with the weaker evidence, worst first.

    A link has to be slow by about as much in both. A direction that only one of the runs names is a pair. Noise with a
    heavy tail can make a run name so many that chance alone names some of them twice. Then only as many are believed as
    agree better than chance (:func:`_convincing`).
    """
    first, second = _undirected(first, second), _undirected(second, first)
    found: list[Culprit] = []
    for kind in ("boundary", "node", *_LINKS, "together"):
        before = {_who(one): one for one in first if one.kind == kind}
        after = [one for one in second if one.kind == kind]
        both = [(before[_who(one)], one) for one in after if _who(one) in before]
        if kind in _LINKS:
            both = [each for each in both if _times(*each) <= AGREE]
        tested = min((one.tested for each in both for one in each if one.tested), default=0)
        most = max(len(before), len(after))
        if tested and most > max(_FEW_NAMED, math.sqrt(_AGREE_BY_CHANCE * policy.false_alarms * tested)):
            both = _convincing(both, len(before) * len(after) / tested, policy.false_alarms)
        found += [min(each, key=_badness) for each in both]
    return tuple(sorted(found, key=_badness, reverse=True))


def by_chance(named: Sequence[Culprit], runs: Sequence[Sequence[Culprit]]) -> float:
    """Return how many links chance alone would put into all of these runs; 0 where none is named.

    What a run names beside the links that all of them name tells how often it names a healthy one.
    """
    tested = min((one.tested for one in named if one.kind in _LINKS and one.tested), default=0)
    if not tested:
        return 0.0
    who = _links_of(named)
    return tested * math.prod(len(_links_of(run) - who) / tested for run in runs)


def _links_of(culprits: Iterable[Culprit]) -> set[frozenset[str]]:
    return {frozenset(one.nodes) for one in culprits if one.kind in _LINKS and one.tested}


def _undirected(culprits: Sequence[Culprit], other: Sequence[Culprit]) -> list[Culprit]:
    """Return the culprits of a run; a link whose direction the other run does not know is a pair."""
    pairs = {frozenset(one.nodes) for one in other if one.kind == "pair"}
    return [
        one.model_copy(update={"kind": "pair", "nodes": tuple(sorted(one.nodes))})
        if one.kind == "one_way" and frozenset(one.nodes) in pairs
        else one
        for one in culprits
    ]


def _convincing(
    both: Sequence[tuple[Culprit, Culprit]], by_chance: float, share: float
) -> list[tuple[Culprit, Culprit]]:
    """Return those that agree so well that at most ``share`` of them are there by chance.

    Of two draws from an exponential tail, one is at most r times the other with probability (r - 1) / (r + 1); times
    the number that both runs name by chance, that is how many agree so well by chance. As many are taken as keep that
    below their share: the procedure of Benjamini & Hochberg (*Controlling the False Discovery Rate*, Journal of the
    Royal Statistical Society B 57, 1995).
    """
    expected = sorted(
        ((by_chance * (1 - 2 / (1 + _times(*each))), place) for place, each in enumerate(both)),
    )
    enough = max((rank for rank, (chance, _) in enumerate(expected, start=1) if chance <= share * rank), default=0)
    return [both[place] for _, place in expected[:enough]]


def _times(one: Culprit, other: Culprit) -> float:
    """Return how many times the one's distance in logarithms is the other's; 1 where they cannot be compared."""
    if not one.ratio or not other.ratio or (one.quantity, one.size_bytes) != (other.quantity, other.size_bytes):
        return 1.0  # another size spoke loudest this time
    low, high = sorted((abs(math.log(one.ratio)), abs(math.log(other.ratio))))
    return high / low if low else math.inf


def _folded(group: Sequence[Culprit]) -> Culprit:
    """Return the strongest of a group, with what the others show; lost packets are said first, for they are a cause."""
    strongest = max(group, key=_badness)
    lost = [one.words for one in group if one.quantity == packet_loss.SENT_AGAIN]
    also = [
        culprit_words.quantity(one.quantity, one.size_bytes)
        for one in group
        if (one.quantity, one.size_bytes) != (strongest.quantity, strongest.size_bytes)
        and one.quantity != packet_loss.SENT_AGAIN
    ]
    others = list(dict.fromkeys(also))
    verb = "is" if len(others) == 1 else "are"
    words = f"{strongest.words} (so {verb} {', '.join(others)})" if others else strongest.words
    changed: dict[str, object] = {"words": words}
    if lost and strongest.quantity != packet_loss.SENT_AGAIN:
        changed = {"words": f"{lost[0]}; {words.partition(': ')[2]}"}
        if (
            strongest.kind in _LINKS
        ):  # losses slow a link by another amount in each run, so two runs need not agree on it
            changed["ratio"] = None
    return strongest.model_copy(update=changed)


def _badness(one: Culprit) -> tuple[float, float]:
    return (one.score or 0.0, abs(math.log(one.ratio)) if one.ratio else 0.0)
