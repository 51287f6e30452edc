"""Clusters of known truth for the search: which groups of nodes fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterctl.analysis.group_testing import GroupSearch


class Fault(Protocol):
    """Something that makes a job fail."""

    def hits(self, nodes: Sequence[int]) -> bool:
        """Whether a job of these nodes fails."""


@dataclass(frozen=True)
class BadNodes:
    """Each makes every job fail that it is in; alone only if ``alone``, for a broken network shows to others only."""

    nodes: frozenset[int]
    alone: bool = True

    def hits(self, nodes: Sequence[int]) -> bool:
        return bool(self.nodes & set(nodes)) and (self.alone or len(nodes) > 1)


@dataclass(frozen=True)
class Together:
    """All of these have to take part."""

    nodes: frozenset[int]

    def hits(self, nodes: Sequence[int]) -> bool:
        return self.nodes <= set(nodes)


@dataclass(frozen=True)
class FromSize:
    """Any so many nodes fail."""

    size: int

    def hits(self, nodes: Sequence[int]) -> bool:
        return len(nodes) >= self.size


@dataclass(frozen=True)
class Across:
    """What lies between two racks is bad: every job with nodes of both fails."""

    rack: frozenset[int]

    def hits(self, nodes: Sequence[int]) -> bool:
        return 0 < len(self.rack & set(nodes)) < len(set(nodes))


@dataclass(frozen=True)
class Several:
    """Any of several faults."""

    faults: tuple[Fault, ...]

    def hits(self, nodes: Sequence[int]) -> bool:
        return any(fault.hits(nodes) for fault in self.faults)


@dataclass(frozen=True)
class InRole:
    """A node that is bad only when it launches, or only when it takes part and another node launches."""

    node: int
    launching: bool

    def launched(self, launcher: int, nodes: Sequence[int]) -> bool:
        return launcher == self.node if self.launching else self.node in nodes and launcher != self.node

    def hits(self, nodes: Sequence[int]) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Unreached:
    """A node that nobody reaches and that reaches nobody: each job with it fails, and each job that it launches."""

    node: int

    def launched(self, launcher: int, nodes: Sequence[int]) -> bool:
        return self.node in (launcher, *nodes) and {launcher, *nodes} != {self.node}

    def hits(self, nodes: Sequence[int]) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Way:
    """One node cannot launch on another, and both are fine with all others."""

    source: int
    target: int

    def launched(self, launcher: int, nodes: Sequence[int]) -> bool:
        return launcher == self.source and self.target in nodes

    def hits(self, nodes: Sequence[int]) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Flaky:
    """A fault that comes with this probability in a launch."""

    fault: Fault
    probability: float
    dice: random.Random

    def hits(self, nodes: Sequence[int]) -> bool:
        return self.fault.hits(nodes) and self.dice.random() < self.probability


@dataclass
class Once:
    """A fault, and one launch that fails by chance; the job that is searched for has failed before."""

    fault: Fault
    late: int  # the number of that launch
    launches: int = 0

    def hits(self, nodes: Sequence[int]) -> bool:
        self.launches += 1
        return self.launches == self.late or self.fault.hits(nodes)


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    launches: int
    steps: int  # one after the other; the groups of a step run at once
    hung: int  # steps in which a group failed, each of which takes a deadline
    culprits: frozenset[tuple[str, frozenset[int]]]
    search: GroupSearch


def seeded(seed: int) -> random.Random:
    """Return dice that fall the same way every time."""
    return random.Random(seed)  # noqa: S311 - they choose who is bad


def names(nodes: int) -> list[str]:
    return [f"node{number}" for number in range(nodes)]


def _fails(fault: Fault, launcher: int, nodes: Sequence[int]) -> bool:
    launched = getattr(fault, "launched", None)
    return bool(launched(launcher, nodes)) if launched else fault.hits(nodes)


def play(nodes: int, fault: Fault, launcher: int = 0) -> Found:
    """Let a search find a fault after ``launcher`` launched a job on all nodes."""
    search = GroupSearch(names(nodes), launcher=f"node{launcher}")
    steps = hung = 0
    while not search.done:
        groups = [[int(name.removeprefix("node")) for name in group] for group in search.next()]
        flat = [node for group in groups for node in group]
        assert len(flat) == len(set(flat)), "groups that are launched at once share a node"
        assert all(groups), "an empty group"
        launchers = [int(name.removeprefix("node")) for name in search.launchers]
        failed = [_fails(fault, *one) for one in zip(launchers, groups, strict=True)]
        search.tell([not fails for fails in failed])
        steps += 1
        hung += any(failed)
        assert search.launches <= search.limit
    assert search.words
    culprits = frozenset(
        (one.kind, frozenset(int(name.removeprefix("node")) for name in one.nodes)) for one in search.culprits
    )
    return Found(search.launches, steps, hung, culprits, search)
