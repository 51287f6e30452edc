# SPDX-License-Identifier: Apache-2.0
"""Check that the clocks of the nodes agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

from .model import Problem


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of the controller's, as two bounds in seconds.

    The node's time was read between the start and the end of a task, so the truth lies within the bounds. A slow node
    has wide bounds, but never a wrong result.
    """

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        """The middle of the bounds, which is the best estimate."""
        return (self.low_s + self.high_s) / 2


def clock(before_s: float, node_s: float, after_s: float) -> Clock:
    """Return the bounds from the controller's times before and after the look at the node."""
    return Clock(low_s=node_s - after_s, high_s=node_s - before_s)


def clock_problems(clocks: Mapping[str, Clock], limit_s: float) -> list[Problem]:
    """Return the clocks that are certainly further from the others than the limit.

    The reference is the median of all clocks, including the controller's. So of two nodes, the one that agrees with the
    controller is not reported. A controller whose own clock is wrong causes no report.

    Args:
        clocks: bounds per host.
        limit_s: how far apart two nodes may be.
    """
    if len(clocks) < 2:  # noqa: PLR2004 - one clock has nothing to differ from
        return []
    votes = sorted([*clocks.values(), Clock(0.0, 0.0)], key=lambda one: one.middle_s)
    reference = votes[(len(votes) - 1) // 2]
    found: list[Problem] = []
    for host, its in clocks.items():
        ahead = its.low_s - reference.high_s
        behind = reference.low_s - its.high_s
        if max(ahead, behind) > limit_s:
            found.append(_skewed(host, its.middle_s - reference.middle_s, "most of the cluster"))
    if found:
        return found
    # Every clock is near the middle, but two may be far from each other.
    first = max(clocks, key=lambda host: clocks[host].low_s)
    last = min(clocks, key=lambda host: clocks[host].high_s)
    if clocks[first].low_s - clocks[last].high_s > limit_s:
        apart = clocks[first].middle_s - clocks[last].middle_s
        return [_skewed(first, apart, last), _skewed(last, -apart, first)]
    return []


def _skewed(host: str, seconds: float, whom: str) -> Problem:
    direction = "ahead of" if seconds > 0 else "behind"
    return Problem(
        host,
        "clock",
        f"its clock is {_duration(abs(seconds))} {direction} that of {whom}",
        "set it right and keep it so with a time service (chrony or systemd-timesyncd)",
    )


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
