"""Start a job again that a node has stopped: without the suspects, or on halves of the nodes to find them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.jobs import run as jobs
from clusterctl.model.job_outcome import TIMED_OUT
from clusterctl.model.nodeset import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.jobs.output_lines import Take
    from clusterctl.jobs.run import RunOptions
    from clusterctl.jobs.watched_run import RunEnd
    from clusterctl.model.hosts import AnyInventory


_LONG_ENOUGH = 3  # times the patience: a half that runs so long without a stall goes on
_LONGER = 1.5  # times the run that stopped: a half gets so long to come as far as that one


@dataclass(frozen=True)
class RelaunchOptions:
    """What the user asked for: so many restarts without the suspects, and a search where no suspect is known."""

    restarts: int = 0
    search: bool = False


def run(
    inventory: AnyInventory, options: RunOptions, asked: RelaunchOptions, take: Take, tell: Callable[[str], None]
) -> int:
    """Run the program as :func:`clusterctl.jobs.run.run`, and start it again as asked; return the last exit code."""

    def start(one: RunOptions) -> RunEnd:
        return jobs.run_watched(inventory, one, take, tell)

    return relaunched(start, replace(options, ends_at_stall=True), asked, tell)


def relaunched(
    start: Callable[[RunOptions], RunEnd], options: RunOptions, asked: RelaunchOptions, tell: Callable[[str], None]
) -> int:
    """Start, and start again without the suspects; see :func:`run`."""
    out: tuple[str, ...] = ()
    again = options
    every: tuple[str, ...] = ()
    for left in range(asked.restarts, -1, -1):
        began = time.monotonic()
        ending = start(again)
        options = replace(options, look=None)  # it was the look of the first run
        every = every or ending.hosts
        suspects = ending.suspects
        if not suspects and ending.stood_still and asked.search:
            suspects = _Search(start, options, time.monotonic() - began, tell).among(ending.hosts)
        if not suspects or not left:
            return ending.code
        out = (*out, *suspects)
        if len(suspects) >= len(ending.hosts):
            tell("It is not started again: no node would be left.")
            return ending.code
        again = _without(options, out, every)
        ranks = "" if again.wish.ranks is None else f", with {again.wish.ranks} ranks"
        tell(f"Starting again without {folded(out)}{ranks}; {left - 1} more restarts are allowed.")
    return ending.code


class _Search:
    """Run the program on halves of the nodes, and on halves of a half that stops, until single nodes are left."""

    def __init__(
        self, start: Callable[[RunOptions], RunEnd], options: RunOptions, stopped_s: float, tell: Callable[[str], None]
    ) -> None:
        self._start, self._options, self._tell = start, options, tell
        self._enough_s = max(_LONG_ENOUGH * options.stall_after_s, _LONGER * stopped_s)
        self._runs, self._hosts = 0, 0

    def among(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes on which the program stops, and tell where the cause is if it is no single node."""
        self._hosts = len(hosts)
        most = most_runs(self._hosts)
        found: list[str] = []
        groups = [tuple(hosts)]
        while groups and self._runs + 2 <= most:
            group = groups.pop(0)
            if len(group) == 1:
                found += group
                continue
            middle = (len(group) + 1) // 2
            halves = (group[:middle], group[middle:])
            endings = [self._run(half) for half in halves]
            stopped = [half for half, one in zip(halves, endings, strict=True) if one.stood_still and not one.suspects]
            found += [name for one in endings for name in one.suspects]
            groups += stopped
            if not stopped and not any(one.suspects for one in endings):
                self._tell(f"Search: {_boundary(halves, endings)}.")
        found += [group[0] for group in groups if len(group) == 1]
        left = [name for group in groups if len(group) > 1 for name in group]
        return self._concluded(tuple(dict.fromkeys(found)), left)

    def _run(self, half: Sequence[str]) -> RunEnd:
        self._tell(f"Search: starting on {folded(half)}.")
        self._runs += 1
        options = _limited(replace(self._options, timeout_s=self._enough_s), half)
        ending = self._start(_fitted(options, half, self._hosts))
        if not ending.stood_still and not ending.suspects:
            self._tell(f"Search: the program {_end_words(ending)} on {folded(half)}.")
        return ending

    def _concluded(self, named: tuple[str, ...], left: Sequence[str]) -> tuple[str, ...]:
        if left:
            self._tell(f"Search: ended after {self._runs} runs; it was not searched further among {folded(left)}.")
        if named and len(named) < self._hosts:
            self._tell(f"Search: the program stops on {folded(named)}. To run without it: --exclude {folded(named)}.")
            return named
        self._tell("Search: no node stops the program by itself; the cause is not known.")
        return ()


def most_runs(hosts: int) -> int:
    """Return how many runs a search takes at most: enough for two bad nodes among so many, each in its own half."""
    return max(2, 4 * math.ceil(math.log2(max(2, hosts))) - 2)


def _boundary(halves: Sequence[Sequence[str]], endings: Sequence[RunEnd]) -> str:
    """Return what is known of a group that stops while its halves do not."""
    first, second = (folded(half) for half in halves)
    failed = [ending for ending in endings if not _goes_on(ending)]
    if failed:
        return (
            f"the program failed where it should have been looked at (code {failed[0].code}); it may not run on so "
            f"few nodes, so nothing is known of {first} and {second}"
        )
    return (
        f"the program stops on {first} and {second} together, and on neither alone; look at what lies between them, "
        "such as a switch or a firewall, or at a fault that needs as many ranks"
    )


def _goes_on(ending: RunEnd) -> bool:
    return ending.code in {0, TIMED_OUT}


def _end_words(ending: RunEnd) -> str:
    if not _goes_on(ending):
        return f"fails with code {ending.code}"
    return "goes on" if ending.code else "ends well"


def _without(options: RunOptions, out: Sequence[str], hosts: Sequence[str]) -> RunOptions:
    limited = _limited(options, [options.inventory.limit or "all", *(f"!{name}" for name in out)])
    return _fitted(limited, [name for name in hosts if name not in out], len(hosts))


def _fitted(options: RunOptions, hosts: Sequence[str], of: int) -> RunOptions:
    """Return options with the share of the ranks that some of so many hosts take, and a launch node among them."""
    ranks = options.wish.ranks
    share = None if ranks is None else max(1, ranks * len(hosts) // of)
    launch_node = options.launch_node if options.launch_node in hosts else None
    return replace(options, wish=replace(options.wish, ranks=share), launch_node=launch_node)


def _limited(options: RunOptions, parts: Sequence[str]) -> RunOptions:
    return replace(options, inventory=replace(options.inventory, limit=",".join(parts)))
