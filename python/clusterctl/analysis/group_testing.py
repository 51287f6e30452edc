"""The search for the nodes that make a job hang or crash: adaptive group testing over nodes.

A job of all nodes failed, and the cause is unknown. The search launches it on groups: a group that fails holds the
fault, one that passes is known to be good and lends partners to the rest. It is a pure state machine: ``Search.next``
says which disjoint groups to launch at once, ``Search.tell`` hears what came of them.

Halving a suspected group costs one launch a half; both are launched, since one that is inferred proves nothing. Cut
into four at once it costs the same (four launches for two bits) and takes half the time. So one bad node of N takes at
most 2 * ceil(log2 N) launches, and the final confirmation two; the bound of 2 * ceil(log2 N) + 4 has room for two
more. Group testing goes back to R. Dorfman, "The Detection of Defective Members of Large Populations", Annals of
Mathematical Statistics 14 (1943); testing that adapts by halving to F. K. Hwang, "A Method for Detecting All Defective
Members in a Population by Group Testing", Journal of the American Statistical Association 67 (1972). Some faults need
several nodes at once. They are found by the shortest failing beginning of a list, and then by the next member with the
last one fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from itertools import cycle
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from clusterctl.model import nodeset
from clusterctl.model.results import Culprit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")
Kind: TypeAlias = Literal["node", "pair", "together"]
Group: TypeAlias = tuple[int, ...]  # numbers of nodes
Steps: TypeAlias = Generator[tuple[Group, ...], list[bool], T]  # groups to launch at once; which of them failed

AGAIN = 3  # so often a fault that stays away is asked to come again
_AGAIN_HALVES = 6  # and so often the halves of those who were always there
_MANY, _CHECKS = 3, 12  # the limit has room for so many bad nodes, and launches for cross-checks
_PIECES = 4
_SHOWN = 8
_NOBODY = "it fails on every node that was tried alone, so it is no single node's fault: look at what they share"
_OTHERS = "each of them passes with others"


def bound(nodes: int) -> int:
    """Return how many launches the search may take for one bad node among so many: 2 * ceil(log2 N) + 4."""
    return 2 * max(0, nodes - 1).bit_length() + 4


class _SpentError(Exception):
    """No launch is left."""


class _FlakyError(Exception):
    """What failed passes at another time, so that a launch that passes proves nothing."""


class GroupSearch:
    """One search.

    Attributes:
        bound: launches it takes at most for one bad node whose fault comes every time.
        limit: launches that it never exceeds, for any fault.
        launches: launches so far; every started job counts.
        words: what came out in one sentence, empty before the end.
    """

    def __init__(self, nodes: Sequence[str], limit: int | None = None) -> None:
        """Begin with a job that failed on all of these nodes.

        Args:
            nodes: at least one, each once; neighbours stay in one group as long as possible.
            limit: launches that may not be exceeded; None is three times the bound and twelve.

        Raises:
            ValueError: there is no node, or one stands there twice.
        """
        if not nodes or len(set(nodes)) != len(nodes):
            raise ValueError("a search needs nodes, each of them once")
        self._names = tuple(nodes)
        self._all: Group = tuple(range(len(nodes)))
        self.bound = bound(len(nodes))
        self.limit = _MANY * self.bound + _CHECKS if limit is None else limit
        self.launches = 0
        self.words = ""
        self._trials: list[tuple[int, bool]] = []  # the group as a bit mask, and whether it failed
        self._passed: set[int] = set()  # nodes that were in a launch that passed
        self._cleared: set[int] = set()  # of those, nodes that may lend themselves though their group failed
        self._open: list[Group] = []  # disjoint groups that fail and that nothing explains yet
        self._found: list[tuple[Kind, Group, str]] = []  # culprits, and what is to be said of them
        self._explained: set[int] = set()  # their nodes
        self._contradicted = self._certain = False
        self._steps = self._story()
        self._step: tuple[Group, ...] = ()
        self._advance(None)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to launch."""
        return not self._step

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Who is known to be the cause by now."""
        return tuple(
            Culprit(kind=kind, nodes=tuple(self._names[node] for node in group), words=self._told(kind, group, more))
            for kind, group, more in self._found
        )

    def next(self) -> tuple[tuple[str, ...], ...]:
        """Return disjoint groups of nodes to launch at the same time; none when the search is done."""
        return tuple(tuple(self._names[node] for node in group) for group in self._step)

    def tell(self, passed: Sequence[bool]) -> None:
        """Take the answers to :meth:`next`, in its order: whether each launch came to a good end.

        Raises:
            ValueError: it is another number of answers.
        """
        if len(passed) != len(self._step):
            raise ValueError(f"{len(self._step)} answers are expected, not {len(passed)}")
        for group, ok in zip(self._step, passed, strict=True):
            mask = _mask(group)
            # More nodes can only add faults: a fault of a group is a fault of each larger group that holds it.
            self._contradicted |= any(
                (before & mask == before) if ok else (before & mask == mask)
                for before, failed in self._trials
                if failed == ok
            )
            self._trials.append((mask, not ok))
            if ok and len(group) > 1:  # alone, a node with a broken network passes as well
                self._passed.update(group)
        self.launches += len(passed)
        self._advance([not ok for ok in passed])

    def _advance(self, failed: list[bool] | None) -> None:
        try:
            self._step = next(self._steps) if failed is None else self._steps.send(failed)
        except StopIteration:
            self._step = ()

    # --- the story ----------------------------------------------------------------------------------------------------

    def _story(self) -> Steps[None]:
        few = {1: self._one, 2: self._two, 3: self._three}
        try:
            try:
                self._certain = True
                yield from few.get(len(self._all), self._several)()
            except _FlakyError:
                self._certain = False
                yield from self._flaky()
        except _SpentError:
            still = " and ".join(self._named(group) for group in sorted(self._open, key=len)[:_SHOWN])
            self._conclude(f"stopped after {self.launches} launches" + (f"; {still} still fail" if still else ""))

    def _one(self) -> Steps[None]:
        if (yield from self._comes_again(self._all)):
            self._blame("node", (0,))
            self._conclude()

    def _two(self) -> Steps[None]:
        alone = yield from self._try((0,), (1,))
        if all(alone):
            self._conclude(_NOBODY)
        elif any(alone):
            node = (alone.index(True),)
            yield from self._try(node)
            self._blame("node", node)
            self._conclude()
        elif (yield from self._comes_again(self._all)):
            yield from self._try(self._all)
            self._blame("pair", self._all, "each passes alone, and there is no third node to tell which of them it is")
            self._conclude()

    def _three(self) -> Steps[None]:
        pairs = ((0, 1), (0, 2), (1, 2))
        bad = []
        for pair in pairs:
            bad += [pair] if (yield from self._try(pair))[0] else []
        if not bad:
            if (yield from self._comes_again(self._all)):
                self._blame("together", self._all, "any two of them pass")
                self._conclude()
            return
        yield from self._try(bad[0])
        if len(bad) == 1:
            self._blame("pair", bad[0], _OTHERS)
        elif len(bad) < len(pairs):
            self._blame("node", tuple(set(bad[0]) & set(bad[1])))
        else:
            alone = yield from self._try((0,), (1,), (2,))
            if all(alone):
                self._conclude(_NOBODY)
                return
            if not any(alone):
                self._blame("together", (0, 1), "any two of the three fail, and each passes alone")
            for node in self._all:
                if alone[node]:
                    self._blame("node", (node,))
        self._conclude()

    def _several(self) -> Steps[None]:
        bad = yield from self._halved()
        if self.words:
            return
        for node in bad:
            self._blame("node", (node,))
        yield from self._confirm(bad)
        while self._open:
            yield from self._cross(self._open[0])
            if self.words:
                return
        self._conclude()

    # --- halves -------------------------------------------------------------------------------------------------------

    def _halved(self) -> Steps[list[int]]:
        """Cut failing groups until single nodes are left, and return these.

        Groups that fail only as a whole stay open.
        """
        suspects: list[Group] = [self._all]
        bad: list[int] = []
        self._open = [self._all]
        while suspects:
            room = len(self._good())
            cuts = [_cut(tuple(node for node in group if node not in self._cleared), room) for group in suspects]
            failed = yield from self._try_with_partners([piece for cut in cuts for piece in cut])
            hot = [[piece for piece in cut if piece in failed] for cut in cuts]
            explained = {group for group, pieces in zip(suspects, hot, strict=True) if pieces}
            bad += [piece[0] for pieces in hot for piece in pieces if len(piece) == 1]
            everything = len(suspects) == 1 and len(suspects[0]) == len(self._all) and len(hot[0]) == len(cuts[0])
            suspects = [piece for pieces in hot for piece in pieces if len(piece) > 1]
            self._open = [group for group in self._open if group not in explained] + suspects
            if everything:
                yield from self._sizes(suspects[0], suspects[-1])
                if self.words:
                    return []
        return bad

    def _good(self) -> list[int]:
        """Return nodes that a launch has cleared."""
        doubtful = ({node for group in self._open for node in group} - self._cleared) | self._explained
        return sorted((self._passed | self._cleared) - doubtful)

    def _try_with_partners(self, pieces: Sequence[Group]) -> Steps[set[Group]]:
        """Launch pieces at once and return those that failed.

        A single node gets a known-good partner, since a fault may need another node to show.
        """
        found: set[Group] = set()
        waiting = list(pieces)
        while waiting:
            good = self._good()
            partners = iter(good)
            step: dict[Group, Group] = {}
            for piece in waiting:
                partner = next(partners, None) if len(piece) == 1 else None
                if partner is not None:
                    step[piece] = (*piece, partner)
                elif len(piece) > 1 or not good:
                    step[piece] = piece
            failed = yield from self._try(*step.values())
            found.update(piece for piece, fails in zip(step, failed, strict=True) if fails)
            waiting = [piece for piece in waiting if piece not in step]
        return found

    def _confirm(self, bad: Sequence[int]) -> Steps[None]:
        """Launch each bad node once more with another partner, then all others without them, where it is not known."""
        good = self._good()
        if not bad or len(good) < len(bad):
            return
        if not all((yield from self._try(*zip(bad, reversed(good[-len(bad) :]), strict=True)))):
            raise _FlakyError
        others = tuple(node for node in self._all if node not in self._explained)
        if len(others) > 1 and not self._open and (yield from self._try(others))[0]:
            self._open = [others]

    # --- when everything fails ----------------------------------------------------------------------------------------

    def _sizes(self, first: Group, last: Group) -> Steps[None]:
        """Every group failed: tell several bad nodes from a fault that comes with any nodes of that number."""
        pairs = first[:2], last[-2:]
        both_known = pairs == (first, last)
        failed = [True, True] if both_known else (yield from self._try(*pairs))
        if not all(failed):
            self._cleared.update(node for pair, fails in zip(pairs, failed, strict=True) if not fails for node in pair)
            size = len(first) if any(failed) else (yield from self._shortest((), first, 2, len(first)))
            if not any(failed) and (yield from self._is_size(size, last, (*first[: size - 1], last[-1]))):
                self._blame("together", first[:size], _from(size))
                self._conclude()
        else:
            (a, b), (c, d) = pairs
            alone = yield from self._try((a,), (b,), (c,), (d,))
            if all(alone):
                self._conclude(_NOBODY)
            elif not any(alone):
                for crossed in (((a, c), (b, d)), ((a, d), (b, c))):
                    failed = yield from self._try(*crossed)
                    if not all(failed):
                        self._cleared.update(crossed[failed.index(False)])
                        return
                self._blame("together", (a, b), _from(2))
                self._conclude()
            else:
                self._cleared.update(node for node, fails in zip((a, b, c, d), alone, strict=True) if not fails)

    def _is_size(self, size: int, others: Group, mixed: Group = ()) -> Steps[bool]:
        """Whether other nodes fail from the same number on, and so many ``mixed`` ones as well."""
        if mixed and not (yield from self._try(mixed))[0]:
            return False
        if not (yield from self._try(others[-size:]))[0]:
            return False
        return not (yield from self._try(others[1 - size :]))[0]

    # --- faults that need several nodes -------------------------------------------------------------------------------

    def _cross(self, group: Group) -> Steps[None]:
        """Find the nodes that fail together in a group that fails though its pieces pass."""
        if not (yield from self._comes_again(group)):
            return
        pieces = _cut(group, len(group))
        for _ in range(2):  # again, for a fault that comes now and then looks just like this
            failed = yield from self._try(*pieces)
            if any(failed):
                hot = [piece for piece, fails in zip(pieces, failed, strict=True) if fails]
                self._open = [*hot, *(other for other in self._open if other != group)]
                return
        size = yield from self._shortest((), group, 1, len(group))
        last = group[size - 1]
        second = yield from self._shortest((last,), group[: size - 1], 0, size - 1)
        pair = (group[second - 1], last)
        if second == 1 or (yield from self._try(pair))[0]:
            yield from self._check_pair(pair)
            return
        third = yield from self._shortest(pair, group[: second - 1], 0, second - 1)
        three = (group[third - 1], *pair)
        for _ in range(2):
            if not (yield from self._try(group[:size]))[0] or (yield from self._try(group[: size - 1]))[0]:
                raise _FlakyError
        if third == 1 or (yield from self._try(three))[0]:
            self._blame("together", three, "any two of them pass")
        elif third == size - 2 and (yield from self._is_size(size, group)):
            self._blame("together", group[:size], _from(size))
        else:
            self._blame("together", (*group[: third - 1], *three), "no smaller group was found to fail")
        self._conclude()

    def _shortest(self, fixed: Group, pool: Group, passes: int, fails: int) -> Steps[int]:
        """Return how many of the pool's first nodes fail together with ``fixed``, between what is known of it."""
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if (yield from self._try((*pool[:middle], *fixed)))[0]:
                fails = middle
            else:
                passes = middle
        return fails

    def _check_pair(self, pair: tuple[int, int]) -> Steps[None]:
        """Try both ends with other partners, twice, and then the pair beside all the rest; blame what fails."""
        others = [node for node in self._all if node not in pair and node not in self._explained]
        good = [node for node in self._good() if node not in pair]
        partners = cycle(good if len(good) > 1 else others)
        for _ in range(AGAIN if len(others) > 1 else 0):
            failed = yield from self._try(*((end, next(partners)) for end in pair))
            if any(failed):  # one of them without the other, which did not come every time
                raise _FlakyError
        rest = [tuple(others)] if len(others) > 1 else []
        failed = yield from self._try(pair, *rest)
        if not failed[0]:
            raise _FlakyError
        self._blame("pair", pair, _OTHERS)
        self._open = [group for group in self._open if not set(pair) & set(group)]
        if rest and not failed[1]:
            self._conclude()
        elif not self._open:
            self._open = rest

    # --- faults that come now and then --------------------------------------------------------------------------------

    def _comes_again(self, group: Group) -> Steps[bool]:
        """Launch a group that failed once more; where it passes, a few times more, and then the search is over."""
        for _ in range(AGAIN):
            if (yield from self._try(group))[0]:
                return True
        self._conclude(f"it did not come again in {self.launches} launches")
        return False

    def _flaky(self) -> Steps[None]:
        """Find one node whose fault comes now and then: only what fails proves something."""
        self._found, self._explained, self._open = [], set(), []
        while len(suspects := self._always_there()) > 1:
            others = [node for node in self._all if node not in suspects]
            half, lent = (len(suspects) + 1) // 2, len(others) // 2
            halves = (*suspects[:half], *others[:lent]), (*suspects[half:], *others[lent:])
            for _ in range(_AGAIN_HALVES):
                if any((yield from self._try(*halves))):
                    break
            else:
                among = self._named(suspects)
                self._conclude(f"it came now and then and then stayed away; who was always there: {among}")
                return
        if not suspects:
            self._conclude("it comes now and then, and no node was in all launches that failed")
            return
        partners = cycle([node for node in reversed(self._all) if node not in suspects] or [suspects[0]])
        for _ in range(AGAIN):
            if (yield from self._try(tuple(dict.fromkeys((suspects[0], next(partners))))))[0]:
                self._blame("node", suspects)
                self._conclude()
                return
        name = self._names[suspects[0]]
        self._conclude(f"{name} was in all launches that failed, but then it did not come again")

    def _always_there(self) -> Group:
        """Return the nodes that took part in every launch that failed."""
        common = _mask(self._all)
        for mask, failed in self._trials:
            common &= mask if failed else common
        return tuple(node for node, digit in enumerate(reversed(f"{common:b}")) if digit == "1")

    # --- launches and words -------------------------------------------------------------------------------------------

    def _try(self, *groups: Group) -> Steps[list[bool]]:
        """Launch disjoint groups at once, and return which of them failed."""
        if self.launches + len(groups) > self.limit:
            raise _SpentError
        failed = yield groups
        if self._contradicted and self._certain:
            raise _FlakyError
        return failed

    def _blame(self, kind: Kind, group: Group, more: str = "") -> None:
        self._found.append((kind, group, more))
        self._explained.update(group)

    def _told(self, kind: Kind, group: Group, more: str) -> str:
        wanted = _mask(group)
        having = [failed for mask, failed in self._trials if mask & wanted == wanted]
        told = f"{sum(having)} of {len(having)} launches with {'it' if kind == 'node' else 'all of them'} failed"
        return f"{self._named(group)}: {told}" + (f"; {more}" if more else "")

    def _named(self, group: Iterable[int]) -> str:
        return nodeset.folded(self._names[node] for node in group)

    def _conclude(self, words: str = "") -> None:
        found = [culprit.words for culprit in self.culprits]
        every = [_mask(group) for _, group, _ in self._found]
        without = [failed for mask, failed in self._trials if all(mask & wanted != wanted for wanted in every)]
        if found and without:
            found.append(f"{without.count(False)} of {len(without)} launches without passed")
        self.words = "; ".join([*found, words] if words else found)


def _cut(group: Group, room: int) -> list[Group]:
    """Cut a group into four, or in halves where four would leave single nodes without partners, as ``room`` has."""
    pieces = min(len(group), 2 if len(group) < 2 * _PIECES and room < len(group) else _PIECES)
    edges = [len(group) * number // max(1, pieces) for number in range(pieces + 1)]
    return [group[begin:end] for begin, end in itertools.pairwise(edges)]


def _from(size: int) -> str:
    return f"it fails with any {size} nodes, and passes with fewer"


def _mask(group: Iterable[int]) -> int:
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
