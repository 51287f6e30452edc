# SPDX-License-Identifier: Apache-2.0
"""Plan of a chain of nodes: who takes the pack from whom, and who is passed over because it died or is slow.

It does no I/O. Each method returns the changes as a mapping of a node to its new source.
"""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

# A node is slow if it takes less than this share of what its source takes meanwhile. At half or more, the source would
# lose as much by giving twice as the nodes behind would gain.
SLOW_SHARE = 0.5
WINDOW_S = 3.0  # the shortest time over which the two are compared
WORTH_S = 10.0  # time that a node still needs, from which on it is passed over
_LEAST_SHARE = 1 / 64  # of the pack, which the source takes meanwhile: several pieces


class ChainPlan:
    """The tree of nodes; it begins as a chain."""

    def __init__(self, head: str, size: int) -> None:
        """Begin with the head alone, which holds the pack or receives it from the controller."""
        self.head, self.size = head, size
        self.source: Dict[str, str] = {}  # by node
        self.slow: Set[str] = set()  # they give to nobody
        self._have: Dict[str, int] = {head: 0}
        self._since: Dict[str, Tuple[float, int, int]] = {}  # when a comparison began, with what node and source had
        self._tried: Dict[str, float] = {}  # bytes/s before the head took over a node's takers, until theirs are known
        self._gives: Set[str] = set()  # the head could not serve their takers faster
        self._last = head

    def join(self, node: str) -> Dict[str, str]:
        """Add a node at the end of the chain."""
        self.source[node] = self._last
        self._have[node] = 0
        self._last = node
        return {node: self.source[node]}

    def takers(self, source: str) -> List[str]:
        """Return the nodes that take from a node and still lack a part."""
        return [node for node, giver in self.source.items() if giver == source and self._have[node] < self.size]

    def have(self, node: str) -> int:
        """Return how many bytes a node has, as far as it has said."""
        return self._have.get(node, 0)

    def progress(self, node: str, have: int, now: float) -> None:
        """Note how much a node has; ``now`` is of time.monotonic()."""
        if node in self._have:
            self._have[node] = have
            if node in self.source and node not in self._since:  # the login to its source has ended
                self._since[node] = (now, have, self._have[self.source[node]])

    def leave(self, node: str) -> Dict[str, str]:
        """Take a node out that died or refused; its takers take from its own source."""
        if node not in self.source:
            return {}
        changes = self.pass_over(node)
        source = self._giver(node)
        del self.source[node], self._have[node]
        self.slow.discard(node)
        for taker, giver in self.source.items():
            if giver == node:  # it has all
                self.source[taker] = source
        if self._last == node:
            self._last = source
        return changes

    def pass_over(self, node: str) -> Dict[str, str]:
        """Let nobody take from a node: its takers take from its own source."""
        self.slow.add(node)
        self._tried.pop(node, None)
        return self._move(self.takers(node), self._giver(node))

    def _move(self, takers: List[str], source: str) -> Dict[str, str]:
        changes = dict.fromkeys(takers, source)
        self.source.update(changes)
        for taker in changes:
            self._since.pop(taker, None)
        return changes

    def _giver(self, node: str) -> str:
        source = self.source[node]
        while source in self.slow:
            source = self.source[source]
        return source

    def around_slow_nodes(self, now: float) -> Dict[str, str]:
        """Pass over a node that takes much less than its source does.

        A source with two slow takers is slow itself, unless it is the head. A head may receive faster than it can send,
        so a node that it passes over gets its takers back, once, where they are no faster without it.
        """
        for node, before in list(self._tried.items()):
            takers = [one for one in self.takers(self.head) if one not in self.slow]
            rates = [rate for one in takers for rate in self._rate(one, now)]
            if rates:
                del self._tried[node]
            if rates and min(rates) < before:
                return self._give_back(node, takers)
        for node, source in self.source.items():
            began, own, _its = self._since.get(node, (now, 0, 0))
            if self._lags(node, now) and node not in self.slow | self._gives and self.takers(node):
                if not any(self.source.get(other) == source for other in self.slow):
                    changes = self.pass_over(node)
                    if source == self.head:
                        self._tried[node] = (self._have[node] - own) / (now - began)
                    return changes
                if source != self.head:
                    return self.pass_over(source)
        return {}

    def _rate(self, node: str, now: float) -> List[float]:
        """Return the bytes/s that a node took since it came to its source; nothing before it is known."""
        began, own, _its = self._since.get(node, (now, 0, 0))
        return [(self._have[node] - own) / (now - began)] if now - began >= WINDOW_S else []

    def _give_back(self, node: str, takers: List[str]) -> Dict[str, str]:
        self.slow.discard(node)
        self._gives.add(node)
        return self._move(takers, node)

    def _lags(self, node: str, now: float) -> bool:
        """Whether a node has taken too little since the last comparison; the next one begins now."""
        source = self.source[node]
        began, own, its = self._since.get(node, (now, 0, 0))
        took, came = self._have[node] - own, self._have[source] - its
        if now - began < WINDOW_S or came < self.size * _LEAST_SHARE:
            return False
        self._since[node] = (now, self._have[node], self._have[source])
        return took < SLOW_SHARE * came and (self.size - self._have[node]) * (now - began) > WORTH_S * took
