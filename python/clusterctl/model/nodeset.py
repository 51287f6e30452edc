"""Lists in words: folded host names such as node[1-3,7], and long lists cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def and_more(words: Sequence[str], most: int, *, separator: str = ", ", noun: str = "") -> str:
    """Return the first words and the count of the others: 'a, b and 3 more nodes'."""
    shown = separator.join(words[:most])
    if len(words) <= most:
        return shown
    last = "; and" if separator.startswith(";") else " and"
    return f"{shown}{last} {len(words) - most} more" + (f" {noun}" if noun else "")
