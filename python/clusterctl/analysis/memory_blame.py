"""Decide whether a process that the kernel killed for lack of memory was one of the job, or other work on the node.

A count of kills names no process. A kill counts as the job's where the kernel's log names it, where the count is of a
group that nobody else has, or where the job's own output tells that a rank there was killed or lost by its peers.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.analysis import rank_deaths

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from clusterctl.model.memory_kills import LoggedKill, MemoryKills

Tie: TypeAlias = Literal["log", "group", "launcher", "worker", "peers"]

# A rank that one of these ended has failed by itself; losing a peer ends a rank otherwise.
_OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_ROOT = 0
# torch/utils/data/_utils/signal_handling.py and dataloader.py
_LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpected)"
)


@dataclass(frozen=True)
class NodeLoss:
    """What a node has lost to the kernel since the job began.

    Attributes:
        count: so many processes, at least.
        own: whether the count is of a group that only the job's user or job has.
        log: the new kills in the kernel's log, None where it could not be read.
        uid: of the job's user on the node.
    """

    count: int
    own: bool = False
    log: tuple[LoggedKill, ...] | None = None
    uid: int = -1


@dataclass(frozen=True)
class MemoryBlame:
    """The nodes that lost processes: ``ours`` with what ties the kill to the job, and ``others`` where nothing does."""

    ours: Mapping[str, Tie] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def losses(before: Mapping[str, MemoryKills], now: Mapping[str, MemoryKills]) -> dict[str, NodeLoss]:
    """Return the nodes that lost processes between two looks; a count that is hidden or was reset tells nothing."""
    found = {}
    for name, seen in now.items():
        old = before.get(name)
        if old is None:
            continue
        wide = seen.all - old.all if min(seen.all, old.all) >= 0 else 0
        # A user's slice is made at the first login, so it may not have been there before the job.
        narrow = seen.own - max(old.own, 0) if seen.own >= 0 and (old.own >= 0 or wide > 0) else 0
        log = None
        if seen.log is not None and old.log is not None:
            known = {one.number for one in old.log}
            log = tuple(one for one in seen.log if one.number not in known)
        count = max(wide, narrow, len(log or ()))
        if count > 0:
            found[name] = NodeLoss(count, narrow > 0, log, seen.uid)
    return found


def untold(before: Mapping[str, MemoryKills], now: Mapping[str, MemoryKills]) -> tuple[str, ...]:
    """Return the nodes of which two looks do not tell whether they lost processes."""
    return tuple(name for name, seen in now.items() if name not in before or not _compare(before[name], seen))


def _compare(old: MemoryKills, seen: MemoryKills) -> bool:
    counted = any(0 <= then <= later for then, later in ((old.all, seen.all), (old.own, seen.own)))
    return counted or (old.log is not None and seen.log is not None)


def blame(
    lost: Mapping[str, NodeLoss],
    output: str,
    names: Mapping[str, str],
    pids: Mapping[str, Collection[int]] | None = None,
) -> MemoryBlame:
    """Return which of the losses were the job's.

    Args:
        lost: of each node that lost processes.
        output: the end of the job's output.
        names: the node of each name and address that the output may use.
        pids: of the job's ranks, by node, as far as they were seen.
    """
    death = rank_deaths.first_death(output)
    died_on = names.get(death.host, "") if death else ""
    own_fault = death is not None and death.signal in _OWN_FAULTS
    ours: dict[str, Tie] = {}
    for name, one in lost.items():
        told = _by_log(one, (pids or {}).get(name, ()))
        if told is not None:
            ours.update({name: "log"} if told else {})
        elif death is not None and died_on == name and death.signal == signal.SIGKILL:
            ours[name] = "launcher"
        elif own_fault:
            continue
        elif one.own:
            ours[name] = "group"
        elif name in _lost_workers(output, names):
            ours[name] = "worker"
        elif rank_deaths.first_exit(output) is None and name == rank_deaths.lost_peer(output, names):
            ours[name] = "peers"
    return MemoryBlame(ours, tuple(name for name in lost if name not in ours))


def _by_log(one: NodeLoss, pids: Collection[int]) -> bool | None:
    """Return whether the log names a process of the job; None where it does not decide."""
    if not one.log or any(kill.uid < 0 for kill in one.log):
        return None
    if any((kill.pid in pids and kill.pid > 0) or (kill.uid == one.uid != _ROOT) for kill in one.log):
        return True
    return None if any(kill.uid == one.uid for kill in one.log) and not pids else False


def _lost_workers(output: str, names: Mapping[str, str]) -> set[str]:
    """Return the nodes where a rank ended that says it has lost the worker of its data loader."""
    if not _LOST_WORKER.search(output):
        return set()
    return {names[end.host] for end in rank_deaths.torchrun_ends(output) if end.host in names}
