"""Words for a culprit: what was measured, how far it lies from what is usual, and what lies between groups of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.model import nodeset, units
from clusterctl.model.results import Culprit
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.results import Better, Figure, PairMatrix, Unit

_SPELT = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC", "gpu": "GPU"}
_MANY_TIMES = 2.0  # from here on a ratio is said as such, below it in per cent


def what(of: Figure | PairMatrix) -> str:
    """Return what was measured: 'bandwidth of 1 MiB'."""
    operation, device = getattr(of, "operation", ""), getattr(of, "device", "")
    words = quantity(f"{operation} {of.quantity}" if operation else of.quantity, of.size_bytes)
    return f"{words} on {device}" if device else words


def quantity(name: str, size_bytes: int | None) -> str:
    """Return a quantity with the size of its messages, where it has one."""
    words = " ".join(_SPELT.get(word, word) for word in name.replace("_", " ").split())
    return words if size_bytes is None else f"{words} of {units.size_words(size_bytes)}"


def beside(value: float, expected: float, unit: Unit, whose: str) -> str:
    """Return '110 MB/s, 90 % below its neighbours' 1.1 GB/s'."""
    ratio = value / expected
    if ratio >= _MANY_TIMES:
        by = f"{ratio:,.3g} times"
    else:
        by = f"{units.percent(abs(ratio - 1))} {'below' if ratio < 1 else 'above'}"
    return f"{units.value_words(value, unit)}, {by} {whose} {units.value_words(expected, unit)}"


def sign(better: Better) -> int:
    """Return what makes the logarithm of a bad value a large one."""
    return -1 if better == "higher" else 1


def culprit(of: Figure | PairMatrix, nodes: Sequence[str], ratio: float, words: str, **more: Any) -> Culprit:
    """Return nodes that stand out in a figure or matrix; ``more`` has at least kind, score and tested."""
    return Culprit(nodes=tuple(nodes), quantity=of.quantity, size_bytes=of.size_bytes, ratio=ratio, words=words, **more)


# --- What lies between groups of nodes: the switches that the nodes of one group hang on and no others ----------------

_MOST_SWITCHES = 4  # named in a sentence
_UNKNOWN = "a switch or its uplink"


def between(groups: Sequence[Sequence[str]], switches: Sequence[tuple[str, ...]] = ()) -> str:
    """Return 'between node[1-8] and node[9-16]', or 'between node[1-8] on leaf1 and node[9-16] on leaf2'."""
    folded = [nodeset.folded(names) for names in groups]
    if switches:
        folded = [f"{names} on {_switches(its)}" for names, its in zip(folded, switches, strict=True)]
    return f"between {', '.join(folded[:-1])} and {folded[-1]}"


def apart(groups: Sequence[Sequence[str]], switches: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the switches of each group, () where a node has none or two groups share one."""
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
