# SPDX-License-Identifier: Apache-2.0
"""Plan of a chain of nodes: who takes the pack from whom, and who takes over when a node dies or is slow.

It does no I/O. Each method returns the changes as a mapping of a node to its new source.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Optional, Set, Tuple

# A node is slow if, over the window, it takes less than this share of the best rate between the head and itself.
# At half or more, its source would lose as much by giving twice as the nodes behind would gain.
SLOW_SHARE = 0.5
WINDOW_S = 3.0
REST_S = 6.0  # after a change, until rates are compared again
WORTH_S = 10.0  # time that a node still needs, from which on a way around it is looked for
_MOST_LOSSES = 4  # of one node, until it is given up


class ChainPlan:
    """The tree of nodes; it begins as a chain."""

    def __init__(self, head: str, size: int) -> None:
        """Begin with the head alone, which holds the pack or receives it from the controller."""
        self.head, self.size = head, size
        self.source: Dict[str, str] = {}  # by node
        self.slow: Set[str] = set()  # they give to nobody
        self._slow_rate: Dict[str, float] = {}
        self._have: Dict[str, int] = {head: 0}
        self._history: Dict[str, Deque[Tuple[float, int]]] = {head: deque()}
        self._bad: Set[Tuple[str, str]] = set()  # (node, source): a connection that was lost
        self._losses: Dict[str, int] = {}
        self._last = head
        self._rest_until = 0.0
        self._best = 0.0  # bytes/s
        self._compares_head = True

    def join(self, node: str) -> Dict[str, str]:
        """Add a node at the end of the chain."""
        if self._last not in self._have or self._last in self.slow:
            self._last = self._last_giver()
        self.source[node] = self._last
        self._have[node] = 0
        self._history[node] = deque()
        self._last = node
        return {node: self.source[node]}

    def _last_giver(self) -> str:
        givers = [node for node in self._have if node not in self.slow]
        return givers[-1] if givers else self.head

    def takers(self, source: str) -> List[str]:
        """Return the nodes that take from a node and still lack a part."""
        return [node for node, giver in self.source.items() if giver == source and self._have[node] < self.size]

    def have(self, node: str) -> int:
        """Return how many bytes a node has, as far as it has said."""
        return self._have.get(node, 0)

    def progress(self, node: str, have: int, now: float) -> None:
        """Note how much a node has; ``now`` is of time.monotonic()."""
        if node not in self._have:
            return
        self._have[node] = have
        past = self._history[node]
        past.append((now, have))
        while len(past) > 2 and past[1][0] <= now - WINDOW_S:  # noqa: PLR2004 - one entry before the window stays
            past.popleft()

    def leave(self, node: str) -> Dict[str, str]:
        """Take a node out that died or refused; its takers take from its own source."""
        if node not in self.source:
            return {}
        source = self.source.pop(node)
        orphans = [taker for taker, giver in self.source.items() if giver == node]
        self._have.pop(node, None)
        self._history.pop(node, None)
        if self._last == node:
            self._last = source
        changes = {}
        for orphan in orphans:
            self.source[orphan] = source
            if self._have[orphan] < self.size:
                changes[orphan] = source
        return changes

    def lost(self, node: str, source: str) -> Optional[Dict[str, str]]:
        """Find another source for a node that lost its connection; None where every way was tried."""
        if self.source.get(node) != source:
            return {}  # the order that changed it is on its way
        self._bad.add((node, source))
        self._losses[node] = self._losses.get(node, 0) + 1
        if self._losses[node] > _MOST_LOSSES:
            return None
        for giver in self._givers(node):
            if (node, giver) not in self._bad:
                self.source[node] = giver
                return {node: giver}
        return None

    def _givers(self, node: str) -> List[str]:
        """Return who could give to a node: those on its way from the head first, then those with the most."""
        way = self._way(node)
        below = self._below(node)
        others = [other for other in self._have if other not in below and other not in way and other not in self.slow]
        return [*way, *sorted(others, key=lambda other: -self._have[other])]

    def _way(self, node: str) -> List[str]:
        """Return the nodes between a node and the head, the nearest first, the head last."""
        way: List[str] = []
        while node in self.source:
            node = self.source[node]
            way.append(node)
        return way

    def _below(self, node: str) -> Set[str]:
        below = {node}
        while True:
            more = {taker for taker, giver in self.source.items() if giver in below} - below
            if not more:
                return below
            below |= more

    def distrust(self, source: str) -> Dict[str, str]:
        """Let nobody take from a node that gave a damaged piece."""
        self.slow.add(source)
        return self._move(self.takers(source), self.source.get(source, self.head), 0.0)

    def _move(self, takers: List[str], source: str, now: float) -> Dict[str, str]:
        changes = {}
        for taker in takers:
            if self.source[taker] != source and taker != source:
                self.source[taker] = source
                changes[taker] = source
        if changes:
            self._rest_until = now + REST_S
        if self._last in self.slow:
            self._last = self._last_giver()
        return changes

    def _rate(self, node: str, now: float) -> Optional[float]:
        """Return the bytes per second that a node took over the window; None before the window is full."""
        past = self._history[node]
        if len(past) < 2 or past[-1][0] - past[0][0] < WINDOW_S * 0.8:  # noqa: PLR2004 - two points
            return None
        return (past[-1][1] - past[0][1]) / max(WINDOW_S * 0.8, now - past[0][0])

    def around_slow_nodes(self, now: float) -> Dict[str, str]:
        """Lead the chain around a node that takes much less than the nodes before it.

        A source with two slow takers is slow itself: its takers then take from its own source.
        """
        if now < self._rest_until:
            return {}
        rates = {node: rate for node in self._have if (rate := self._rate(node, now)) is not None}
        compared = [rate for node, rate in rates.items() if node != self.head or self._compares_head]
        self._best = max([self._best, *compared])
        for node in self._in_order():
            rate, source = rates.get(node), self.source[node]
            if rate is None or node in self.slow or not self.takers(node) or not self._is_behind(node, rate):
                continue
            slow_ones = [other for other in self.slow if self.source.get(other) == source]
            if slow_ones and source == self.head:  # the rate of the head's own copy is no measure
                self._compares_head, self._best = False, 0.0
                if rate > max(self._slow_rate.get(other, 0.0) for other in slow_ones) / SLOW_SHARE:
                    return {}  # the change was right
                self.slow.difference_update(slow_ones)
                return self._move([node], slow_ones[0], now)
            if slow_ones:
                self.slow.add(source)
                return self._move(self.takers(source), self.source[source], now)
            self.slow.add(node)
            self._slow_rate[node] = rate
            return self._move(self.takers(node), source, now)
        return {}

    def _is_behind(self, node: str, rate: float) -> bool:
        """Whether a node takes so slowly that a way around it is worth a change."""
        behind = self._have[self.source[node]] - self._have[node]
        left = self.size - self._have[node]
        return rate < SLOW_SHARE * self._best and behind > self._best * WINDOW_S / 2 and left > rate * WORTH_S

    def _in_order(self) -> List[str]:
        return sorted(self.source, key=lambda node: len(self._way(node)))
