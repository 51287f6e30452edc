"""Find whoever makes a job hang or crash, by launching it on groups of nodes.

What decides is :mod:`clusterctl.analysis.group_testing`. Groups that share no node are launched at once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clusterctl.analysis import group_testing
from clusterctl.model import nodeset, results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import CheckResult, Launch

    Starter = Callable[[tuple[str, ...], threading.Event], Launch]

FEWEST = 3  # with two nodes, a group that could tell them apart has no partner
_AT_ONCE = 16
_NO_ANSWER = "an answer"  # what rank_program.py expected of a rank that died or raised an exception


def is_wanted(found: CheckResult, outcome: JobOutcome) -> bool:
    """Whether a check ended in a way that a search can explain.

    It is for jobs of three nodes or more that hung until the deadline, or crashed, where the check itself could not
    name one node. A wrong answer is none: the rank that gave it is known, and so is a node that no longer answers ssh.
    """
    if not found.is_bad or len(found.hosts) == 1 or any(sweep.problem for sweep in outcome.sweeps):
        return False
    return len({rank.host for rank in found.ranks}) >= FEWEST and _broke(found, outcome)


def launched(nodes: Sequence[str], found: CheckResult, outcome: JobOutcome) -> Launch:
    """Return what a launch on a group tells the search; right or wrong answers are none of its business."""
    broke = outcome.ending in {"lost", "not_started"} or _broke(found, outcome)
    return results.Launch(nodes=tuple(nodes), ok=not broke, seconds=found.seconds, words=found.reason)


def _broke(found: CheckResult, outcome: JobOutcome) -> bool:
    """Whether the job hung or crashed."""
    if outcome.ending != "exited":
        return outcome.ending == "deadline"
    wrong = [problem for rank in found.ranks for problem in rank.problems if problem.expected != _NO_ANSWER]
    return outcome.rc != 0 and not wrong


def find(
    check: str,
    nodes: Sequence[str],
    launch: Starter,
    on_step: Callable[[str], None] | None = None,
    *,
    limit: int | None = None,
) -> results.Search:
    """Search among nodes on which a check hung or crashed.

    Args:
        check: its name.
        nodes: who took part; neighbours in this order stay together as long as possible.
        launch: runs the check on some of these nodes under a deadline of its own (:func:`launched` makes its answer).
            It is called from several threads at once, with groups that share no node, and gives up as soon as the
            event is set (``job.run`` takes it as ``stop``).
        on_step: hears in words what is launched next; called from the caller's thread.
        limit: launches that may not be exceeded; None is the search's own.

    Returns:
        The search with every launch in it, those of one step side by side.

    Raises:
        KeyboardInterrupt: the launches have been stopped, and nothing of them is left.
    """
    story = group_testing.GroupSearch(nodes, limit)
    launches: list[Launch] = []
    stop = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hunt") as pool:
        while not story.done:
            groups = story.next()
            if on_step is not None:
                on_step(_step(groups, len(launches), story.bound))
            futures = [pool.submit(launch, group, stop) for group in groups]
            try:
                step = [future.result() for future in futures]
            except BaseException:
                stop.set()
                raise
            launches += step
            story.tell([one.ok for one in step])
    return results.Search(
        check=check, bound=story.bound, launches=tuple(launches), culprits=story.culprits, words=story.words
    )


def _step(groups: Sequence[Sequence[str]], before: int, bound: int) -> str:
    shown = " | ".join(nodeset.folded(group) for group in groups)
    first, last = before + 1, before + len(groups)
    which = f"launch {first}" if first == last else f"launches {first} to {last} at once"
    return f"looking for who it is, {which} (one bad node takes {bound} at most): {shown}"
