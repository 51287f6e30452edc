"""Which counters of a node grow faster than their limits, since the first look of a run or else since the last run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.analysis.counter_growth import Growth, growth, is_above

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.analysis.counter_growth import CounterKey
    from clusterctl.diagnosis.counter_limits import GrowthLimit
    from clusterctl.model.hardware import HardwareLooks

_UNITS = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


class Growing(NamedTuple):
    """A counter that grows too fast, by how much, and its limit."""

    kind: str
    device: str
    name: str
    grown: Growth
    limit: GrowthLimit

    @property
    def how(self) -> str:
        """By how much, and in what time."""
        return f"{self.grown.grown} in {span(self.grown.seconds)}"


def above(looks: HardwareLooks, limits: Mapping[tuple[str, str], GrowthLimit]) -> tuple[Growing, ...]:
    """Return the counters of a node that grow faster than their limits, each once.

    Args:
        looks: all looks at the node.
        limits: by kind and name of a counter.
    """
    found: dict[CounterKey, Growing] = {}
    for before in looks.baselines:
        for key, one in growth(before, looks.now).items():
            limit = limits.get((key[0], key[2]))
            if limit and key not in found and is_above(one, limit.per_hour, limit.at_least):
                found[key] = Growing(*key, one, limit)
    return tuple(found.values())


def span(seconds: float) -> str:
    """Return a time in words, in the unit in which it is short."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
