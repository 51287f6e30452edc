"""The launches of a search for bad nodes: which groups of nodes failed, what that proves, and who is blamed for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

from clusterctl.analysis import culprit_words
from clusterctl.model import nodeset
from clusterctl.model.results import Culprit

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
        """Begin without a culprit."""
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
            words=f"{culprit_words.between(groups, culprit_words.apart(groups, self._switches))}: both pass by "
            f"themselves, and {sum(both)} of {len(both)} launches with nodes of both failed; look at what lies between "
            f"them: {culprit_words.way(groups, self._switches)}",
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


# --- The part of the search for faults that come now and then: how often to launch again, and how a flaky node is found
# A launch that passes proves little of such a fault; one that fails proves that the node was in it. So the suspects are
# the nodes of all launches that failed, and their halves are launched side by side until one fails. How often that is
# tried follows from two numbers alone: how seldom the fault may come, and how often it may be missed.

RATE = 0.3  # the bounds hold for faults that come in so many launches or more
MISSED = 0.05  # how often such a fault may stay without a name
_COMES = 0.2  # of that, the share for the question whether it comes again at all; as much for the last question
_LEAST_SIDE, _CROSSED = 2, 3  # nodes on each side of a boundary, and pairs across it that have to fail
_AGAIN_CERTAIN = 2  # failures that the last node has to show, so that nobody is named for one launch


def repeats(missed: float, rate: float = RATE) -> int:
    """Return how many launches miss a fault with at most this probability, where it comes in a share of them.

    Raises:
        ValueError: there is no such number.
    """
    if not 0 < missed < 1 or not 0 < rate < 1:
        raise ValueError(f"no number of launches misses {missed:g} of the faults that come in {rate:g} of them")
    return math.ceil(math.log(missed) / math.log1p(-rate))


COMES_AGAIN = repeats(_COMES * MISSED)


def for_halves(suspects: int) -> int:
    """Return how often the halves of a group are launched at most, so that all halvings together miss their share."""
    halvings = max(1, (suspects - 1).bit_length())
    return repeats((1 - 2 * _COMES) * MISSED / halvings)


def most_launches(nodes: int) -> int:
    """Return how many launches the search for a flaky node may take: twice what it takes by expectation, and the ends.

    All halvings together rarely need more: each ends with the first launch that fails.
    """
    halvings = max(1, (nodes - 1).bit_length())
    expected = 2 * halvings / RATE
    return math.ceil(2 * expected) + 4 * COMES_AGAIN + halvings + 4 + _CROSSED


def flaky_boundary(nodes: Group, blamed: Blamed, attempt: Attempt, shortest: Callable[..., Steps[int]]) -> Steps[bool]:
    """Find out whether only what lies between two neighbouring groups is bad; return whether it is blamed.

    Nodes that fail with some partners and pass with others look like a flaky node. The longest beginning of the list
    that passes is one group, if the rest passes too, and if each of two or three pairs of both fails. No single node is
    in all of these pairs.
    """
    if len(nodes) < 2 * _LEAST_SIDE:
        return False
    size = yield from shortest((), nodes, 1, len(nodes))
    one, other = nodes[: size - 1], nodes[size - 1 :]
    if min(len(one), len(other)) < _LEAST_SIDE or any((yield from attempt(one, other))):
        return False
    crossed = list(zip(reversed(one), other, strict=False))[:_CROSSED]
    if not all((yield from attempt(*crossed))) or any((yield from attempt(one, other))):
        return False
    blamed.add_boundary(one, other)
    return True


def flaky_search(nodes: Group, trials: GroupTrials, blamed: Blamed, attempt: Attempt) -> Steps[str]:
    """Find one node whose fault comes now and then: only what fails proves something; return the words of the end."""
    most = for_halves(len(nodes))
    while len(suspects := trials.in_every_failure(nodes)) > 1:
        others = [node for node in nodes if node not in suspects]
        half, lent = (len(suspects) + 1) // 2, len(others) // 2
        halves = (*suspects[:half], *others[:lent]), (*suspects[half:], *others[lent:])
        for _ in range(most):
            if any((yield from attempt(*halves))):
                break
        else:
            return f"it came now and then and then stayed away; who was always there: {blamed.named(suspects)}"
    if not suspects:
        return "it comes now and then, and no node was in all launches that failed"
    partners = cycle([node for node in reversed(nodes) if node not in suspects] or [suspects[0]])
    failures = 0
    for _ in range(COMES_AGAIN * _AGAIN_CERTAIN):
        failures += (yield from attempt(tuple(dict.fromkeys((suspects[0], next(partners))))))[0]
        if failures == _AGAIN_CERTAIN:
            blamed.add("node", suspects)
            return ""
    return f"{blamed.named(suspects)} was in all launches that failed, but then it did not come again"
