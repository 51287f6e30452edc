"""Search for the node that makes a job hang or crash, by launching the job on groups of nodes.

:mod:`clusterctl.analysis.group_testing` decides on the groups. Groups without a common node are launched at once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.analysis import group_testing
from clusterctl.model import nodeset
from clusterctl.model.results import Launch, Search
from clusterctl.validation.checks import causes, wrong_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import CheckResult

    Starter = Callable[[tuple[str, ...], str, threading.Event], Launch]

FEWEST = 3  # two nodes cannot be told apart: a smaller group has a single node
_AT_ONCE = 16


def is_wanted(found: CheckResult, outcome: JobOutcome) -> bool:
    """Whether a search can explain how a check ended.

    A search is for jobs of three nodes or more that hung until the deadline or crashed. Its check names more or fewer
    than one node, and no culprit is known. It is not for nodes that no longer answer ssh. For wrong values, the checks
    after it may tell the node (:func:`clusterctl.validation.checks.wrong_data.undecided`).
    """
    if not found.is_bad or len(found.hosts) == 1 or found.culprits or any(sweep.problem for sweep in outcome.sweeps):
        return False
    if found.next_step:  # the nodes are overcommitted: smaller groups would end in time, and prove nothing
        return False
    return len({rank.host for rank in found.ranks}) >= FEWEST and causes.broke(found, outcome)


def launched(nodes: Sequence[str], found: CheckResult, outcome: JobOutcome, *, wrong: bool = False) -> Launch:
    """Return what a launch on a group tells the search; wrong answers count as a failure in a search for them."""
    broke = outcome.ending in {"lost", "not_started"} or causes.broke(found, outcome)
    broke = broke or (wrong and bool(wrong_data.traces(found.ranks)))
    return Launch(nodes=tuple(nodes), ok=not broke, seconds=found.seconds, words=found.reason)


def find(
    check: str,
    nodes: Sequence[str],
    launch: Starter,
    on_step: Callable[[str], None] | None = None,
    *,
    limit: int | None = None,
    launcher: str | None = None,
    switches: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Search:
    """Search for bad nodes among those on which a check hung or crashed.

    Args:
        check: its name.
        nodes: the nodes that took part; neighbours in this order stay together as long as possible.
        launch: runs the check on some of these nodes, launched by one that may be another, under a deadline of its own
            (:func:`launched` makes its answer). Several threads call it at once, with groups without a common node. It
            gives up as soon as the event is set (``supervised_job.run`` takes it as ``stop``).
        on_step: hears in words what is launched next, in the caller's thread.
        limit: the highest number of launches; None is the search's own.
        launcher: the node that launched the check; None is the first.
        switches: those that each node hangs on, where they are known; a boundary names them.

    Returns:
        The search with every launch in it, those of one step side by side.

    Raises:
        KeyboardInterrupt: the launches have been stopped, and their nodes are clear.
    """
    search = group_testing.GroupSearch(nodes, limit, launcher, switches)
    launches: list[Launch] = []
    stop = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bisect") as pool:
        while not search.done:
            groups, launchers = search.next(), search.launchers
            if on_step is not None:
                on_step(_step(groups, len(launches), search.bound))
            futures = [pool.submit(launch, *one, stop) for one in zip(groups, launchers, strict=True)]
            try:
                step = [future.result() for future in futures]
            except BaseException:
                stop.set()
                raise
            launches += step
            search.tell([one.ok for one in step])
    return Search(
        check=check, bound=search.bound, launches=tuple(launches), culprits=search.culprits, words=search.words
    )


def _step(groups: Sequence[Sequence[str]], before: int, bound: int) -> str:
    shown = " | ".join(nodeset.folded(group) for group in groups)
    first, last = before + 1, before + len(groups)
    which = f"launch {first}" if first == last else f"launches {first} to {last} at once"
    return f"searching for the bad node, {which} (one bad node takes {bound} at most): {shown}"
