"""Start a job again that a node has stopped: without the suspects, or on halves of the nodes to find them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.jobs import run as jobs
from clusterctl.model.nodeset import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.jobs.prefixer import Take
    from clusterctl.jobs.run import RunOptions
    from clusterctl.jobs.watched_run import RunEnd
    from clusterctl.model.hosts import AnyInventory


_LONG_ENOUGH = 3  # times the patience: a half that runs so long without a stall goes on


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
    """Start, and start again without the suspects; see :func:`run`.

    Args:
        start: runs the program once.
        options: of the first run.
        asked: what is done about a run that stopped.
        tell: gets sentences for the user.
    """
    out: tuple[str, ...] = ()
    for left in range(asked.restarts, -1, -1):
        ending = start(_without(options, out))
        suspects = ending.suspects
        if not suspects and ending.stood_still and asked.search:
            suspects = _searched(start, options, ending.hosts, tell)
        if not suspects or not left:
            return ending.code
        out = (*out, *suspects)
        if len(suspects) >= len(ending.hosts):
            tell("It is not started again: no node would be left.")
            return ending.code
        tell(f"Starting again without {folded(out)}; {left - 1} more restarts are allowed.")
    return ending.code


def _searched(
    start: Callable[[RunOptions], RunEnd], options: RunOptions, hosts: Sequence[str], tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Run the program on halves of the nodes, and on halves of a half that stops, until single nodes are left."""
    found: list[str] = []
    groups = [list(hosts)]
    while groups:
        group = groups.pop(0)
        if len(group) == 1:
            found += group
            continue
        middle = (len(group) + 1) // 2
        for half in (group[:middle], group[middle:]):
            tell(f"Search: starting on {folded(half)}.")
            ending = start(_only(options, half))
            if ending.suspects:
                found += ending.suspects
            elif ending.stood_still or ending.code not in {0, jobs.TIMED_OUT}:
                groups.append(half)
            else:
                tell(f"Search: the program {'goes on' if ending.code else 'ends well'} on {folded(half)}.")
    named = tuple(dict.fromkeys(found))
    if named and len(named) < len(hosts):
        tell(f"Search: the program stops on {folded(named)}. To run without it: --exclude {folded(named)}.")
        return named
    tell("Search: no node stops the program by itself; the cause is not known.")
    return ()


def _without(options: RunOptions, out: Sequence[str]) -> RunOptions:
    return _limited(options, [options.inventory.limit or "all", *(f"!{name}" for name in out)]) if out else options


def _only(options: RunOptions, hosts: Sequence[str]) -> RunOptions:
    launch_node = options.launch_node if options.launch_node in hosts else None
    enough = _LONG_ENOUGH * options.stall_after_s
    timeout_s = enough if options.timeout_s is None else min(enough, options.timeout_s)
    return replace(_limited(options, hosts), launch_node=launch_node, timeout_s=timeout_s)


def _limited(options: RunOptions, parts: Sequence[str]) -> RunOptions:
    return replace(options, inventory=replace(options.inventory, limit=",".join(parts)))
