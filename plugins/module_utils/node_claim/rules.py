# SPDX-License-Identifier: Apache-2.0
"""Decide whether a node belongs to another cluster, which would lose members; no I/O."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

SCHEMA = 1
_TEXTS = ("cluster", "name", "controller", "inventory", "since")
_LONGEST = 1000  # characters of one value
_MOST_NAMED = 8


def mark_of(data: Any) -> Optional[Dict[str, Any]]:
    """Return the mark of a cluster as a node keeps it; None where the data is not one."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("members"), dict):
        return None
    texts = {name: data.get(name, "") for name in _TEXTS}
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts.values()) or not texts["cluster"]:
        return None
    members = {str(name)[:_LONGEST]: str(address)[:_LONGEST] for name, address in data["members"].items()}
    return {"schema": SCHEMA, **texts, "members": members}


def lost_members(
    mark: Optional[Mapping[str, Any]], cluster: str, names: Iterable[str], addresses: Iterable[str]
) -> List[str]:
    """Return the members that the node's cluster would lose; none where the node is not foreign.

    A node is foreign where another cluster marked it, and that cluster has a member that this inventory does not list.

    Args:
        mark: the mark on the node; None where it has none.
        cluster: the id of the cluster that wants the node.
        names: of all hosts that its inventory lists.
        addresses: of these hosts.
    """
    if mark is None or mark["cluster"] == cluster:
        return []
    known_names, known_addresses = set(names), set(addresses) - {""}
    return sorted(
        name
        for name, address in mark["members"].items()
        if name not in known_names and name not in known_addresses and address not in known_addresses
    )


def fresh_mark(wanted: Mapping[str, Any], before: Optional[Mapping[str, Any]], now: str) -> Optional[Dict[str, Any]]:
    """Return the mark to write; None where the present one says the same.

    Args:
        wanted: cluster, name, controller, inventory and members. ``since`` is the time for a node that is new to the
            cluster.
        before: the present mark.
        now: the time where none is wanted.
    """
    is_same = before is not None and before["cluster"] == wanted["cluster"]
    since = before["since"] if before is not None and is_same else wanted.get("since") or now
    mark = mark_of({**wanted, "schema": SCHEMA, "since": since})
    return None if mark == before else mark


def cluster_words(mark: Mapping[str, Any]) -> str:
    """Return which cluster marked a node, for its audit line."""
    return f"the cluster {mark['cluster']} of {mark['inventory']}, set up by {mark['controller']}"


def foreign_words(mark: Mapping[str, Any], lost: Sequence[str]) -> str:
    """Return why a foreign node is refused, a clause that follows its name."""
    named = ", ".join(lost[:_MOST_NAMED]) + (f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else "")
    return (
        f"belongs to the cluster of {mark['inventory']} (set up by {mark['controller']}, since {mark['since']}), "
        f"which would lose {named}"
    )
