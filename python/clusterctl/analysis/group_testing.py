"""The search for the nodes that make a job hang or crash: adaptive group testing over nodes.

A job of all nodes failed, and the cause is unknown. The search launches it on groups. A group that fails holds the
fault. A group that passes is known to be good and lends partners to the rest. The search is a pure state machine:
``GroupSearch.next`` says which disjoint groups to launch at once, ``GroupSearch.tell`` takes the results.

Halving a suspected group costs one launch a half; both are launched, since one that is inferred proves nothing. Cut
into four at once it costs the same (four launches for two bits) and takes half the time. So one bad node of N takes at
most 2 * ceil(log2 N) launches, the confirmation two, and the question who launches two: 2 * ceil(log2 N) + 4.
Group testing goes back to R. Dorfman, "The Detection of Defective Members of Large Populations", Annals of Mathematical
Statistics 14 (1943); testing that adapts by halving to F. K. Hwang, "A Method for Detecting All Defective Members in a
Population by Group Testing", Journal of the American Statistical Association 67 (1972). Faults that need several nodes
are found by the shortest failing beginning of a list, and then by the next member with the last one fixed.

Who launches is a variable of the search. One node launches all groups, also those that it is not in, so a fault that
depends on who launches looks like a bad node, or like a fault of all nodes. Before a node is blamed, it launches a job
itself; that confirms it where it fails. Where it passes twice, the first node launches once more: a launch that failed
by chance blames nobody. Where that fails again, another node launches a job with it.
"""

from __future__ import annotations

from itertools import cycle
from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.analysis import group_trials
from clusterctl.analysis.group_trials import Blamed, GroupTrials, Role, cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.analysis.group_trials import Attempt, Group, Steps
    from clusterctl.model.results import Culprit

AGAIN = 3  # so often both ends of a pair pass with other partners
_SHOWN = 8
_NOBODY = "it fails on every node that was tried alone, so it is no single node's fault: look at what they share"
_OTHERS = "each of them passes with others"
_LAUNCHING = "when it launches"
_TIMES = 2  # that a bad node has to pass when it launches: a fault that comes now and then passes once by chance
_OTHER_LAUNCHERS = 2  # so many are tried, since the first of them may be bad as well
_ALWAYS, _NEVER = Role(), Role("never")
_MANY, _CHECKS = 3, 12  # the limit has room for so many bad nodes, and launches for cross-checks


class _SpentError(Exception):
    """No launch is left."""


class _FlakyError(Exception):
    """What failed passes at another time, so that a launch that passes proves nothing."""


class _Strategy:
    """The story of one search.

    Attributes:
        by: the node that launches each group of the present step; empty where it is the usual launcher.
    """

    def __init__(
        self, nodes: Sequence[str], trials: GroupTrials, blamed: Blamed, limit: int, launcher: int = 0
    ) -> None:
        """Begin with a job that failed on all of these nodes.

        The launcher launches every group, also where it is not in it. The caller adds each launch to ``trials`` before
        it sends the answer.
        """
        self.by: Group = ()
        self._launcher = launcher
        self._names = tuple(nodes)
        self._all: Group = tuple(range(len(nodes)))
        self._trials, self._blamed, self._limit = trials, blamed, limit
        self._cleared: set[int] = set()  # nodes that may lend themselves though their group failed
        self._open: list[Group] = []  # disjoint groups that fail and that nothing explains yet
        self._certain = False

    def story(self) -> Steps[None]:
        """Search until the result stands in words: yield groups to launch at once, and take which of them failed."""
        few = {1: self._one, 2: self._two, 3: self._three}
        try:
            try:
                self._certain = True
                yield from few.get(len(self._all), self._several)()
            except _FlakyError:
                self._certain = False
                yield from self._flaky()
        except _SpentError:
            still = " and ".join(self._blamed.named(group) for group in sorted(self._open, key=len)[:_SHOWN])
            self._blamed.conclude(
                f"stopped after {len(self._trials)} launches" + (f"; {still} still fail" if still else "")
            )

    def _one(self) -> Steps[None]:
        if (yield from self._comes_again(self._all)):
            self._blamed.add("node", (0,))
            self._blamed.conclude()

    def _two(self) -> Steps[None]:
        alone = yield from self._try((0,), (1,))
        if all(alone):
            yield from self._launcher_or_nobody(self._all, alone)
        elif any(alone):
            node = (alone.index(True),)
            self._blamed.add("node", node)
            yield from self._ask_roles(node)
            self._blamed.conclude()
        elif (yield from self._comes_again(self._all)):
            yield from self._try(self._all)
            self._blamed.add(
                "pair", self._all, "each passes alone, and there is no third node to tell which of them it is"
            )
            self._blamed.conclude()

    def _three(self) -> Steps[None]:
        pairs = ((0, 1), (0, 2), (1, 2))
        bad = []
        for pair in pairs:
            bad += [pair] if (yield from self._try(pair))[0] else []
        if not bad:
            if (yield from self._comes_again(self._all)):
                self._blamed.add("together", self._all, "any two of them pass")
                self._blamed.conclude()
            return
        if len(bad) == len(pairs):
            yield from self._all_pairs()
            return
        if len(bad) == 1:
            yield from self._try(bad[0])
            self._blamed.add("pair", bad[0], (yield from self._pair_words(bad[0])))
        else:
            node = tuple(set(bad[0]) & set(bad[1]))
            self._blamed.add("node", node)
            yield from self._ask_roles(node)
        self._blamed.conclude()

    def _all_pairs(self) -> Steps[None]:
        """Any two of three nodes fail: launch each alone."""
        alone = yield from self._try((0,), (1,), (2,))
        if (yield from self._launcher_or_nobody(self._all, alone)):
            return
        if not any(alone):
            self._blamed.add("together", (0, 1), "any two of the three fail, and each passes alone")
        for node in self._all:
            if alone[node]:
                self._blamed.add("node", (node,))
        self._blamed.conclude()

    def _several(self) -> Steps[None]:
        bad = yield from self._halved()
        if self._blamed.words:
            return
        for node in bad:
            self._blamed.add("node", (node,))
        yield from self._confirm(bad)
        while self._open:
            yield from self._cross(self._open[0])
            if self._blamed.words:
                return
        self._blamed.conclude()

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
            cuts = [cut(tuple(node for node in group if node not in self._cleared), room) for group in suspects]
            failed = yield from self._try_with_partners([piece for cut in cuts for piece in cut])
            hot = [[piece for piece in cut if piece in failed] for cut in cuts]
            explained = {group for group, pieces in zip(suspects, hot, strict=True) if pieces}
            bad += [piece[0] for pieces in hot for piece in pieces if len(piece) == 1]
            everything = len(suspects) == 1 and len(suspects[0]) == len(self._all) and len(hot[0]) == len(cuts[0])
            suspects = [piece for pieces in hot for piece in pieces if len(piece) > 1]
            self._open = [group for group in self._open if group not in explained] + suspects
            if everything:
                yield from self._sizes(suspects[0], suspects[-1])
                if self._blamed.words:
                    return []
        return bad

    def _good(self) -> list[int]:
        """Return nodes that a launch has cleared."""
        doubtful = ({node for group in self._open for node in group} - self._cleared) | self._blamed.nodes
        return sorted((self._trials.passed | self._cleared) - doubtful)

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
        """Have each bad node launch once more with another partner, then launch all others where it is not known."""
        yield from self._ask_roles(bad)
        others = tuple(node for node in self._all if node not in self._blamed.nodes)
        if bad and len(others) > 1 and not self._open and (yield from self._try(others))[0]:
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
                self._blamed.add("together", first[:size], _from(size))
                self._blamed.conclude()
        else:
            (a, b), (c, d) = pairs
            alone = yield from self._try((a,), (b,), (c,), (d,))
            if (yield from self._launcher_or_nobody((a, b, c, d), alone)):
                return
            if not any(alone):
                for crossed in (((a, c), (b, d)), ((a, d), (b, c))):
                    failed = yield from self._try(*crossed)
                    if not all(failed):
                        self._cleared.update(crossed[failed.index(False)])
                        return
                self._blamed.add("together", (a, b), _from(2))
                self._blamed.conclude()
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
        pieces = cut(group, len(group))
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
            self._blamed.add("together", three, "any two of them pass")
        elif third == size - 2 and (yield from self._is_size(size, group)):
            self._blamed.add("together", group[:size], _from(size))
        else:
            self._blamed.add("together", (*group[: third - 1], *three), "no smaller group was found to fail")
        self._blamed.conclude()

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
        others = [node for node in self._all if node not in pair and node not in self._blamed.nodes]
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
        self._blamed.add("pair", pair, (yield from self._pair_words(pair)))
        self._open = [group for group in self._open if not set(pair) & set(group)]
        if rest and not failed[1]:
            self._blamed.conclude()
        elif not self._open:
            self._open = rest

    # --- who launches -------------------------------------------------------------------------------------------------

    def _ask_roles(self, bad: Sequence[int]) -> Steps[None]:
        """Find out whether bad nodes are bad whoever launches, and note it where they are not."""
        others = [node for node in self._all if node not in self._blamed.nodes]
        asked = _partners(bad, list(reversed(self._good())), others, self._launcher)
        if asked:
            found = yield from _roles(asked, self._launcher, self._try)
            if found is None:
                raise _FlakyError
            for node, role in found.items():
                self._blamed.note_role(node, role, self._launcher)
            self._cleared.update(node for node, role in found.items() if role == _NEVER)

    def _launcher_or_nobody(self, nodes: Group, alone: Sequence[bool]) -> Steps[bool]:
        """Where all but the launcher fail alone, blame it if others can launch; return whether the search ends."""
        if not all(fails for node, fails in zip(nodes, alone, strict=True) if node != self._launcher):
            return False
        role = yield from _bad_launcher(self._all, self._launcher, self._try)
        if role is not None:
            self._blamed.add("node", (self._launcher,))
            self._blamed.note_role(self._launcher, role, self._launcher)
            self._blamed.conclude("the others pass when another node launches")
        elif all(alone):
            self._blamed.conclude(_NOBODY)
        return bool(self._blamed.words)

    def _pair_words(self, pair: Group) -> Steps[str]:
        """Let another node launch the pair, and say what came of it."""
        third = next((node for node in self._all if node not in (*pair, self._launcher)), pair[-1])
        failed = yield from self._try(pair, by=(third,))
        return _OTHERS if failed[0] else f"{_OTHERS}, and both pass when {self._names[third]} launches"

    # --- faults that come now and then --------------------------------------------------------------------------------

    def _comes_again(self, group: Group) -> Steps[bool]:
        """Launch a group that failed once more; where it passes, until a flaky fault would have come again."""
        for _ in range(group_trials.COMES_AGAIN):
            if (yield from self._try(group))[0]:
                return True
        self._blamed.conclude(f"it did not come again in {len(self._trials)} launches")
        return False

    def _flaky(self) -> Steps[None]:
        """Find a boundary, or one node whose fault comes now and then."""
        self._blamed.clear()
        self._open = []
        if (yield from group_trials.flaky_boundary(self._all, self._blamed, self._try, self._shortest)):
            self._blamed.conclude()
            return
        self._blamed.conclude((yield from group_trials.flaky_search(self._all, self._trials, self._blamed, self._try)))

    # --- launches -----------------------------------------------------------------------------------------------------

    def _try(self, *groups: Group, by: Group = ()) -> Steps[list[bool]]:
        """Launch disjoint groups at once, and return which failed; ``by`` are launchers in place of the usual one."""
        if len(self._trials) + len(groups) > self._limit:
            raise _SpentError
        self.by = by
        failed = yield groups
        if self._trials.contradicted and self._certain:
            raise _FlakyError
        return failed


def _from(size: int) -> str:
    return f"it fails with any {size} nodes, and passes with fewer"


def _roles(bad: Mapping[int, int], launcher: int, attempt: Attempt) -> Steps[dict[int, Role] | None]:
    """Launch each bad node once more, by itself, and find its role where that passes; None where it passes and fails.

    ``bad`` has a good partner for each bad node; partners are not shared, and none is the launcher unless there is no
    other. ``attempt`` launches groups at once, and returns which of them failed.
    """
    # The launcher has launched already: its partner does it now. The others have not: each launches a job of its own.
    left = {node: (partner, node) if node == launcher else (node, partner) for node, partner in bad.items()}
    for time in range(_TIMES):
        failed = yield from attempt(*left.values(), by=tuple(pair[0] for pair in left.values()))
        if time and any(failed):
            return None
        left = {node: pair for (node, pair), fails in zip(left.items(), failed, strict=True) if not fails}
        if not left:
            return {}
    failed = yield from attempt(*left.values(), by=(launcher,) * len(left))
    found = {node: _NEVER for node, fails in zip(left, failed, strict=True) if not fails}
    left = {node: pair for node, pair in left.items() if node not in found}
    found.update({node: Role("when", _LAUNCHING) for node in left if node == launcher})
    alone = [node for node in left if node not in found and bad[node] == launcher]
    found.update({node: Role("way", "there is no third node to launch") for node in alone})
    asked = {node: bad[node] for node in left if node not in found}
    if asked:
        failed = yield from attempt(*((partner, node) for node, partner in asked.items()), by=tuple(asked.values()))
        for node, fails in zip(asked, failed, strict=True):
            found[node] = (
                Role("when", "when it does not launch") if fails else Role("way", "it passes when other nodes launch")
            )
    return found


def _bad_launcher(nodes: Group, launcher: int, attempt: Attempt) -> Steps[Role | None]:
    """Tell a bad launcher from a fault of all nodes, after every launch failed; None is a fault of all nodes."""
    others = tuple(node for node in nodes if node != launcher)
    for other in others[:_OTHER_LAUNCHERS]:
        if not (yield from attempt(others, by=(other,)))[0]:
            fails = (yield from attempt((other, launcher), by=(other,)))[0]
            return _ALWAYS if fails else Role("when", _LAUNCHING)
    return None


def _partners(bad: Sequence[int], good: Sequence[int], others: Sequence[int], launcher: int) -> dict[int, int]:
    """Return a partner for each bad node, known-good ones first; a node for which none is left has none."""
    free = [node for node in dict.fromkeys((*good, *others)) if node not in bad and node != launcher]
    found = dict(zip(bad, free, strict=False))
    left = [node for node in bad if node not in found and node != launcher]
    if left and launcher not in bad:
        found[left[0]] = launcher
    return found


def bound(nodes: int) -> int:
    """Return how many launches the search may take for one bad node among so many: 2 * ceil(log2 N) + 4."""
    return 2 * max(0, nodes - 1).bit_length() + 4


class GroupSearch:
    """One search.

    Attributes:
        bound: launches it takes at most for one bad node whose fault comes every time.
        limit: launches that it never exceeds, for any fault.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        limit: int | None = None,
        launcher: str | None = None,
        switches: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        """Begin with a job that failed on all of these nodes.

        Args:
            nodes: at least one, each once; neighbours stay in one group as long as possible.
            limit: launches that may not be exceeded; None is three times the bound, twelve, and
                those for a fault that comes now and then.
            launcher: the node that launched the job, and launches every group; None is the first.
            switches: those that each node hangs on, where they are known; a boundary names them.

        Raises:
            ValueError: there is no node, one stands there twice, or the launcher is not one of them.
        """
        if not nodes or len(set(nodes)) != len(nodes):
            raise ValueError("a search needs nodes, each of them once")
        if launcher is not None and launcher not in nodes:
            raise ValueError(f"the launcher {launcher} is not one of the nodes")
        self._names = tuple(nodes)
        self._launcher = self._names.index(launcher) if launcher is not None else 0
        self.bound = bound(len(nodes))
        self.limit = _MANY * self.bound + _CHECKS + group_trials.most_launches(len(nodes)) if limit is None else limit
        self._trials = GroupTrials()
        self._blamed = Blamed(self._names, self._trials, switches)
        self._strategy = _Strategy(self._names, self._trials, self._blamed, self.limit, self._launcher)
        self._steps = self._strategy.story()
        self._step: tuple[Group, ...] = ()
        self._advance(None)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to launch."""
        return not self._step

    @property
    def launches(self) -> int:
        """The number of launches so far; every started job counts."""
        return len(self._trials)

    @property
    def words(self) -> str:
        """The result in one sentence, empty before the end."""
        return self._blamed.words

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        return self._blamed.culprits

    def next(self) -> tuple[tuple[str, ...], ...]:
        """Return disjoint groups of nodes to launch at the same time; none when the search is done."""
        return tuple(tuple(self._names[node] for node in group) for group in self._step)

    @property
    def launchers(self) -> tuple[str, ...]:
        """The node that launches each group of :meth:`next`; outside of the group, it has no ranks of its own."""
        by = self._strategy.by or (self._launcher,) * len(self._step)
        return tuple(self._names[node] for node in by)

    def tell(self, passed: Sequence[bool]) -> None:
        """Take the answers to :meth:`next`, in its order: whether each launch came to a good end.

        Raises:
            ValueError: it is another number of answers.
        """
        if len(passed) != len(self._step):
            raise ValueError(f"{len(self._step)} answers are expected, not {len(passed)}")
        for group, ok in zip(self._step, passed, strict=True):
            self._trials.add(group, failed=not ok, by_other=bool(self._strategy.by))
        self._advance([not ok for ok in passed])

    def _advance(self, failed: list[bool] | None) -> None:
        try:
            self._step = next(self._steps) if failed is None else self._steps.send(failed)
        except StopIteration:
            self._step = ()
