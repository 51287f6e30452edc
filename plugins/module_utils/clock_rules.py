# SPDX-License-Identifier: Apache-2.0
"""Which clocks are wrong: each node's clock was read between two readings of the controller's.

A node can tell any time. So the controller's clock is one of the votes, and no node that agrees with it is named alone.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple


class Bounds(NamedTuple):
    """How far a clock is ahead of the controller's, as two bounds in seconds."""

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        """The middle of the bounds, which is the best estimate."""
        return (self.low_s + self.high_s) / 2

    def beyond(self, other: Bounds) -> float:
        """Return by how much the two certainly differ, in seconds; less than 0 where they may agree."""
        return max(self.low_s - other.high_s, other.low_s - self.high_s)


CONTROLLER = Bounds(0.0, 0.0)


class Judgement(NamedTuple):
    """The clocks that differ, each with the seconds by which it is ahead of most clocks.

    ``together``: the clocks disagree, and it is unknown which of them are right, so all are in ``wrong``.
    """

    wrong: Dict[str, float]
    reference: Bounds
    together: bool = False


def judge(clocks: Mapping[str, Bounds], limit_s: float) -> Judgement:
    """Return the nodes whose clock certainly differs from the median by more than the limit.

    The controller's clock is a vote, and decides a tie. A controller whose clock is wrong causes no report while the
    nodes agree with each other. All nodes are returned where no majority has the median. So they are where most nodes
    contradict the controller and a few agree with it.
    """
    votes = sorted((*clocks.values(), CONTROLLER), key=lambda one: one.middle_s)
    half = len(votes) // 2
    reference = min(votes[(len(votes) - 1) // 2], votes[half], key=lambda one: abs(one.middle_s))
    wrong = {host: its.middle_s - reference.middle_s for host, its in clocks.items() if its.beyond(reference) > limit_s}
    agreeing = len(clocks) - len(wrong) + (CONTROLLER.beyond(reference) <= limit_s)
    vouched = any(clocks[host].beyond(CONTROLLER) <= limit_s for host in wrong)
    if len(clocks) < 2 or not wrong:  # noqa: PLR2004 - one clock has nothing to differ from
        return Judgement({}, reference)
    if agreeing <= half or vouched:
        ahead = {host: its.middle_s - reference.middle_s for host, its in clocks.items()}
        return Judgement(ahead, reference, together=True)
    return Judgement(wrong, reference)


def furthest(clocks: Mapping[str, Bounds]) -> Tuple[str, str]:
    """Return the hosts whose clocks are certainly ahead of, and behind all others."""
    return max(clocks, key=lambda host: clocks[host].low_s), min(clocks, key=lambda host: clocks[host].high_s)
