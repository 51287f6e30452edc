"""The launches of a search for bad nodes: which groups of nodes failed, what that proves, and who is blamed for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from clusterctl.analysis import boundary_words
from clusterctl.model import nodeset
from clusterctl.model.results import Culprit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")
CulpritKind: TypeAlias = Literal["node", "pair", "one_way", "together"]
Group: TypeAlias = tuple[int, ...]  # numbers of nodes
Steps: TypeAlias = Generator[tuple[Group, ...], list[bool], T]  # groups to launch at once; which of them failed
Attempt: TypeAlias = Callable[..., Steps[list[bool]]]
_PIECES = 4


class GroupTrials:
    """Every launch so far, with its group and whether it failed.

    Attributes:
        passed: nodes that were in a launch that passed, except alone: a node with a broken network passes alone.
        contradicted: whether two launches cannot both be explained by a fault that comes every time.
    """

    def __init__(self) -> None:
        """Begin without a launch."""
        self._seen: list[tuple[int, bool]] = []  # the group as a bit mask, and whether it failed
        self._by_others: list[tuple[int, bool]] = []  # launches of another node than the usual
        self.passed: set[int] = set()
        self.contradicted = False

    def __len__(self) -> int:
        """Return the number of launches."""
        return len(self._seen) + len(self._by_others)

    def add(self, group: Group, *, failed: bool, by_other: bool = False) -> None:
        """Take the result of one launch; ``by_other`` is one that another node than the usual launched."""
        if by_other:  # it proves something of launchers alone
            self._by_others.append((_mask(group), failed))
            return
        mask = _mask(group)
        # More nodes can only add faults: a fault of a group is a fault of each larger group that holds it.
        self.contradicted |= any(
            (before & mask == mask) if failed else (before & mask == before)
            for before, before_failed in self._seen
            if before_failed != failed
        )
        self._seen.append((mask, failed))
        if not failed and len(group) > 1:
            self.passed.update(group)

    def in_every_failure(self, nodes: Group) -> Group:
        """Return those of the nodes that took part in every launch that failed."""
        common = _mask(nodes)
        for mask, failed in self._seen:
            common &= mask if failed else common
        return tuple(node for node, digit in enumerate(reversed(f"{common:b}")) if digit == "1")

    def with_all_of(self, group: Group) -> list[bool]:
        """Return for each launch that held the whole group whether it failed; of other launchers, those that failed."""
        wanted = _mask(group)
        counted = (*self._seen, *(one for one in self._by_others if one[1]))
        return [failed for mask, failed in counted if mask & wanted == wanted]

    def with_some_of(self, one: Group, other: Group) -> list[bool]:
        """Return for each launch with nodes of both groups whether it failed."""
        sides = _mask(one), _mask(other)
        return [failed for mask, failed in self._seen if mask & sides[0] and mask & sides[1]]

    def without(self, groups: Iterable[Group]) -> list[bool]:
        """Return for each launch that held none of the groups as a whole whether it failed."""
        every = [_mask(group) for group in groups]
        return [failed for mask, failed in self._seen if all(mask & wanted != wanted for wanted in every)]


@dataclass(frozen=True)
class Role:
    """When a node is bad: always, only in a role (``when``), when the launcher launches on it (``way``), or never."""

    kind: Literal["always", "when", "way", "never"] = "always"
    words: str = ""


@dataclass(frozen=True)
class _Blame:
    """One culprit: launches are counted by ``group``, ``when`` is its role, ``more`` follows the evidence."""

    kind: CulpritKind
    nodes: Group
    group: Group
    when: str = ""
    more: str = ""


class Blamed:
    """The culprits that a search has found, and its result in words.

    Attributes:
        nodes: every node that is part of a culprit.
        words: the result in one sentence, empty before the end.
    """

    def __init__(
        self,
        names: Sequence[str],
        trials: GroupTrials,
        switches: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        """Begin without a culprit.

        Args:
            names: the name of each node.
            trials: the launches that are cited as evidence.
            switches: those that each node hangs on, where they are known; a boundary names them.
        """
        self._names, self._trials, self._switches = names, trials, switches
        self._found: list[_Blame] = []
        self._sides: tuple[Group, Group] | None = None
        self.nodes: set[int] = set()
        self.words = ""

    def add_boundary(self, one: Group, other: Group) -> None:
        """Blame what lies between two groups of nodes, and no node."""
        self._sides = one, other

    def add(self, kind: CulpritKind, group: Group, more: str = "") -> None:
        """Blame a group of nodes; ``more`` is said after the evidence."""
        self._found.append(_Blame(kind, group, group, more=more))
        self.nodes.update(group)

    def note_role(self, node: int, role: Role, launcher: int) -> None:
        """Say of a blamed node that it is bad in one role only; for a ``way``, the launcher and the node are blamed.

        A node that is ``never`` bad is not blamed any more.
        """
        if role.kind == "never":
            self._found = [one for one in self._found if one.nodes != (node,)]
            self.nodes.discard(node)
        for number, one in enumerate(self._found):
            if one.kind == "node" and one.nodes == (node,) and role.kind != "always":
                way = role.kind == "way"
                self._found[number] = replace(
                    one,
                    kind="one_way" if way else "node",
                    nodes=(launcher, node) if way else one.nodes,
                    when="" if way else role.words,
                    more=role.words if way else "",
                )

    def clear(self) -> None:
        """Take every blame back."""
        self._found, self.nodes, self._sides = [], set(), None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The culprits with the evidence as it is now."""
        found = [
            Culprit(kind=one.kind, nodes=tuple(self._names[node] for node in one.nodes), words=self._evidence(one))
            for one in self._found
        ]
        if self._sides is not None:
            found.append(self._boundary(*self._sides))
        return tuple(found)

    def named(self, group: Iterable[int]) -> str:
        """Return the names of a group's nodes, folded."""
        return nodeset.folded(self._names[node] for node in group)

    def conclude(self, words: str = "") -> None:
        """End with these words after those of the culprits."""
        found = [culprit.words for culprit in self.culprits]
        without = self._trials.without(one.group for one in self._found)
        if self._found and without:
            found.append(f"{without.count(False)} of {len(without)} launches without passed")
        if not found and not words:
            words = f"it did not come again in {len(self._trials)} launches"
        self.words = "; ".join([*found, words] if words else found)

    def _boundary(self, one: Group, other: Group) -> Culprit:
        both = self._trials.with_some_of(one, other)
        groups = tuple(tuple(self._names[node] for node in group) for group in (one, other))
        return Culprit(
            kind="boundary",
            nodes=(*groups[0], *groups[1]),
            groups=groups,
            words=f"{boundary_words.between(groups, boundary_words.apart(groups, self._switches))}: both pass by "
            f"themselves, and {sum(both)} of {len(both)} launches with nodes of both failed; look at what lies between "
            f"them: {boundary_words.way(groups, self._switches)}",
        )

    def _evidence(self, one: _Blame) -> str:
        having = self._trials.with_all_of(one.group)
        told = f"{sum(having)} of {len(having)} launches with {'it' if len(one.group) == 1 else 'all of them'} failed"
        who = self.named(one.nodes)
        if one.kind == "one_way":
            source, target = (self._names[node] for node in one.nodes)
            who = f"{target} when {source} launches"
        elif one.when:
            who = f"{who} {one.when}"
        return f"{who}: {told}" + (f"; {one.more}" if one.more else "")


def cut(group: Group, room: int) -> list[Group]:
    """Cut a group into four, or in halves where four would leave single nodes without partners, as ``room`` has."""
    pieces = min(len(group), 2 if len(group) < 2 * _PIECES and room < len(group) else _PIECES)
    edges = [len(group) * number // max(1, pieces) for number in range(pieces + 1)]
    return [group[begin:end] for begin, end in itertools.pairwise(edges)]


def _mask(group: Iterable[int]) -> int:
    """Return a group as a bit mask; quick for ten thousand nodes in a row."""
    members = tuple(group)
    if not members:
        return 0
    low, high = min(members), max(members)
    if high - low + 1 == len(members):
        return ((1 << len(members)) - 1) << low
    bits = bytearray(high // 8 + 1)
    for node in members:
        bits[node // 8] |= 1 << node % 8
    return int.from_bytes(bits, "little")
