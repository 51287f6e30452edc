"""How fast counters of hardware grow between two looks at a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.analysis import poisson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.hardware import Hardware

CounterKey = tuple[str, str, str]  # kind, device, name
_CHANCE = 0.001


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

    A counter that is smaller than before was reset, or it wrapped, and is left out: its growth is unknown. Looks before
    and after a restart of the node have nothing in common, since drivers begin at 0.

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
    if seconds <= 0 or before.boot_id != after.boot_id:
        return {}
    earlier = {(one.kind, one.device, one.name): one.value for one in before.counters}
    found: dict[CounterKey, Growth] = {}
    for one in after.counters:
        key = (one.kind, one.device, one.name)
        if key in earlier and one.value >= earlier[key]:
            found[key] = Growth(one.value - earlier[key], seconds)
    return found


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
