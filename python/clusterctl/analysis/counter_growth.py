"""How fast counters of hardware grow between two looks at a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.analysis import poisson
from clusterctl.model.parts import is_another

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.model.hardware import Hardware

CounterKey = tuple[str, str, str]  # kind, device, name
_CHANCE = 0.001
# Counters that a GPU keeps in its InfoROM (NVIDIA, GPU Memory Error Management), as a disk keeps all of its own.
LASTING = frozenset(
    ("gpu", f"{what} after {why} errors")
    for what, whys in (
        ("rows remapped", ("correctable", "uncorrectable")),
        ("pages retired", ("single bit", "double bit")),
    )
    for why in whys
)


class Growth(NamedTuple):
    """How much a counter grew, and in how many seconds."""

    grown: int
    seconds: float

    @property
    def per_hour(self) -> float:
        """The growth of an hour at this rate; with a growth of 0 it is 0."""
        return self.grown * 3600.0 / self.seconds


def growth(before: Hardware, after: Hardware) -> Mapping[CounterKey, Growth]:
    """Return the growth of each counter that both looks have; a dozen rules ask, and it is computed once.

    A counter that is smaller than before was reset, or it wrapped, and is left out: its growth is unknown. So is one of
    another part in the same place. Over a restart of the node, only what disks and GPUs keep by themselves is compared,
    since drivers begin at 0.

    Args:
        before: the earlier look.
        after: the later look at the same node.
    """
    key = (growth, id(before))
    known = after.kept.get(key)
    if known is None:
        known = after.kept[key] = (before, _growth(before, after))  # it holds the look, so that the id stays its own
    found: Mapping[CounterKey, Growth] = known[1]
    return found


def _growth(before: Hardware, after: Hardware) -> Mapping[CounterKey, Growth]:
    seconds = after.time - before.time
    return {key: Growth(grown, seconds) for key, grown in _differences(before, after) if grown >= 0}


def shrunk(before: Hardware, after: Hardware) -> tuple[CounterKey, ...]:
    """Return the counters that are smaller than before: they were reset or wrapped, and their growth is unknown."""
    return tuple(key for key, grown in _differences(before, after) if grown < 0)


def _differences(before: Hardware, after: Hardware) -> Iterator[tuple[CounterKey, int]]:
    """Yield the difference of each counter that can be compared."""
    if after.time <= before.time:
        return
    earlier = {(one.kind, one.device, one.name): one.value for one in before.counters}
    same_start = before.boot_id == after.boot_id
    for kind, device, name, value in after.counters:
        key = (kind, device, name)
        if key in earlier and (same_start or kind == "disk" or (kind, name) in LASTING):
            old, new = before.part(kind, device), after.part(kind, device)
            if old is None or new is None or not is_another(old, new):
                yield key, value - earlier[key]


def is_above(found: Growth, per_hour: float, at_least: int = 1) -> bool:
    """Whether a counter grows faster than a limit, and chance hardly explains it.

    Events at the rate of the limit would be a Poisson process. Such a process grows as much in fewer than one of a
    thousand intervals of that length.

    Args:
        found: the growth.
        per_hour: the limit. With 0, any growth is above it.
        at_least: smaller growth is never above it.
    """
    if found.grown < at_least:
        return False
    return poisson.at_least(found.grown, per_hour * found.seconds / 3600.0) < _CHANCE
