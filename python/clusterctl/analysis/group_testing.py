"""The search for the nodes that make a job hang or crash: adaptive group testing over nodes.

A job of all nodes failed, and the cause is unknown. The search launches it on groups. A group that fails holds the
fault. A group that passes is known to be good and lends partners to the rest. The search is a pure state machine:
``GroupSearch.next`` says which disjoint groups to launch at once, ``GroupSearch.tell`` takes the results.

The strategy is :mod:`clusterctl.analysis.group_strategy`; what the launches prove is in
:mod:`clusterctl.analysis.group_trials`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.analysis import group_flaky
from clusterctl.analysis.group_strategy import GroupStrategy
from clusterctl.analysis.group_trials import Blamed, GroupTrials

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.analysis.group_trials import Group
    from clusterctl.model.culprits import Culprit

_MANY, _CHECKS = 3, 12  # the limit has room for so many bad nodes, and launches for cross-checks


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
        self.limit = _MANY * self.bound + _CHECKS + group_flaky.most_launches(len(nodes)) if limit is None else limit
        self._trials = GroupTrials()
        self._blamed = Blamed(self._names, self._trials, switches)
        self._strategy = GroupStrategy(self._names, self._trials, self._blamed, self.limit, self._launcher)
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
        """The culprits that are known by now."""
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
