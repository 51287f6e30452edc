"""Links so slow that a size could not be measured on them in the time that sufficed for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import nodeset, units
from clusterctl.model.culprits import Culprit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.results import PairMatrix

_MOST = 0.5  # of the links: where more are missing, the time was too short for all


def links(matrices: Sequence[PairMatrix]) -> tuple[Culprit, ...]:
    """Return who is behind the links that were measured at other sizes and are missing at one.

    One missing link is a pair; several are blamed on the node that all of them share, and on none where they share
    none.
    """
    if len({(matrix.nodes, matrix.first, matrix.second) for matrix in matrices}) <= 1:
        return ()  # all sizes have the same links
    played = {link for matrix in matrices for link in matrix.links}
    found = []
    for matrix in matrices:
        absent = played - set(matrix.links)
        shared = set.intersection(*(set(link) for link in absent)) if absent else set()
        if not shared or len(absent) > _MOST * len(played):
            continue
        nodes = tuple(name for name in matrix.nodes if name in shared)
        others = [name for name in matrix.nodes if name not in shared and any(name in link for link in absent)]
        what = f"{matrix.quantity} of {units.size_words(matrix.size_bytes)}"
        if len(nodes) == 1:
            words = f"{nodes[0]}: its links to {nodeset.folded(others)} are too slow to measure the {what}"
        else:
            words = f"{' and '.join(nodes)}: the link between them is too slow to measure the {what}"
        found.append(
            Culprit(
                kind="node" if len(nodes) == 1 else "pair",
                nodes=nodes,
                quantity=matrix.quantity,
                size_bytes=matrix.size_bytes,
                words=f"{words} in the time of the others",
            )
        )
    return tuple(found)
