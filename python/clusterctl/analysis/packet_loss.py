"""Links on which packets are lost, as TCP itself has counted them: who is behind them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.model import nodeset, units
from clusterctl.model.culprits import Culprit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from clusterctl.model.results import Figure, PairMatrix

SENT_AGAIN = "sent_again"  # the quantity: the part of a link's segments that was sent a second time
_MOST = 0.01  # of the segments; a healthy fabric loses one in many thousands, and TCP halves its speed for each
_SHARE = 0.5  # of a node's links, from which on it is the node
_FEWEST = 2  # lossy links of a node; one is a pair


def links(figures: Sequence[Figure], matrices: Sequence[PairMatrix]) -> tuple[Culprit, ...]:
    """Return who is behind the links that send too much again.

    A node is named for at least two of them that are half of its links or more, the node with most first; the links
    that are left are named as pairs. Where all links of three nodes or more do it, it is all of them together.

    Args:
        figures: of a check; those of other quantities are left out.
        matrices: tell which links were measured.
    """
    every = {frozenset(link) for matrix in matrices for link in matrix.links}
    lost = {
        frozenset(one.nodes): one.value
        for one in figures
        if one.quantity == SENT_AGAIN and one.value >= _MOST and frozenset(one.nodes) in every
    }
    order = tuple(dict.fromkeys(name for matrix in matrices for name in matrix.nodes))
    if len(every) > 1 and every == lost.keys():
        words = f"all links send {_range(lost.values())} of their TCP segments again, so packets are lost everywhere"
        return (Culprit(kind="together", nodes=order, quantity=SENT_AGAIN, words=words),)
    links_of = Counter(name for link in every for name in link)
    found = []
    while lost:
        lossy_of = Counter(name for link in lost for name in link)
        worst = max(order, key=lambda name: (lossy_of[name], -links_of[name]))
        if lossy_of[worst] < max(_FEWEST, _SHARE * links_of[worst]):
            break
        its = {link: share for link, share in lost.items() if worst in link}
        others = [name for name in order if name != worst and any(name in link for link in its)]
        found.append(_culprit((worst,), f"on its links to {nodeset.folded(others)}", its.values()))
        lost = {link: share for link, share in lost.items() if link not in its}
    for link, share in lost.items():
        found.append(_culprit(tuple(sorted(link, key=order.index)), "between them", [share]))
    return tuple(found)


def _culprit(nodes: tuple[str, ...], where: str, shares: Collection[float]) -> Culprit:
    words = f"{' and '.join(nodes)}: {_range(shares)} of the TCP segments {where} were sent again, so packets are lost"
    return Culprit(kind="node" if len(nodes) == 1 else "pair", nodes=nodes, quantity=SENT_AGAIN, words=words)


def _range(shares: Collection[float]) -> str:
    """Return '4.8 %', or '4.1 to 5.2 %' where they differ."""
    low, high = (units.percent(end) for end in (min(shares), max(shares)))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"
