"""Words for what lies between groups of nodes: the switches that the nodes of one group hang on and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_SWITCHES = 4  # named in a sentence
_UNKNOWN = "a switch or its uplink"


def between(groups: Sequence[Sequence[str]], switches: Sequence[tuple[str, ...]] = ()) -> str:
    """Return 'between node[1-8] and node[9-16]', or 'between node[1-8] on leaf1 and node[9-16] on leaf2'."""
    folded = [nodeset.folded(names) for names in groups]
    if switches:
        folded = [f"{names} on {_switches(its)}" for names, its in zip(folded, switches, strict=True)]
    return f"between {', '.join(folded[:-1])} and {folded[-1]}"


def apart(groups: Sequence[Sequence[str]], switches: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the switches of each group where all nodes of all groups have some and no two groups share one, else ().

    Args:
        groups: the nodes on the sides of a boundary.
        switches: those that each node hangs on, where they are known.
    """
    if not all(switches.get(name) for names in groups for name in names):
        return ()
    found = [set().union(*(switches[name] for name in names)) for names in groups]
    if len(set().union(*found)) < sum(map(len, found)):
        return ()
    return tuple(tuple(sorted(its)) for its in found)


def way(groups: Sequence[Sequence[str]], switches: Mapping[str, tuple[str, ...]]) -> str:
    """Return what lies between the groups, as far as it is known: 'the uplinks of leaf1 and leaf2, and ...'."""
    names = [name for its in apart(groups, switches) for name in its]
    if names:
        return f"the uplinks of {_switches(names)}, and the switches that join them"
    every = {switches.get(name, ()) for names in groups for name in names}
    if len(every) == 1 and len(one := every.pop()) == 1:
        return f"the inside of {one[0]}, the switch of all these nodes"
    return _UNKNOWN


def _switches(names: Sequence[str]) -> str:
    """Return 'leaf1', 'leaf1 and leaf2', or 'leaf1, leaf2, leaf3, leaf4 and 2 more'."""
    if 1 < len(names) <= _MOST_SWITCHES:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return and_more(names, _MOST_SWITCHES)
