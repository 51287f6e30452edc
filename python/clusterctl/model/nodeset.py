"""Folded lists of host names such as node[1-3,7]."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def folded(names: Iterable[str]) -> str:
    """Return host names as one word, node[1-3,7]."""
    given = list(names)
    if len(given) <= 1:
        return "".join(given)
    from ClusterShell.NodeSet import NodeSet, NodeSetException  # noqa: PLC0415 - 60 ms, for lists only

    try:
        return str(NodeSet.fromlist(given))
    except NodeSetException:
        return ",".join(given)
