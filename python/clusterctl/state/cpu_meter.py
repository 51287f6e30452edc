"""Measure the processor time of this process, of all processes below it, and of those that left it meanwhile."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from clusterctl.state import process_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.state.process_table import CpuUse

_MARK = "CLUSTERCTL_CPU_METER"


class CpuMeter:
    """Sums up processor time since it was made; each reading costs one look at all processes of the machine.

    A child that ended and was waited for counts with its parent. A process that left its parent, such as the
    master of a shared ssh connection, has a mark in its environment. It counts as far as the last reading saw it.
    """

    def __init__(self) -> None:
        """Begin; processes that start from now on carry the mark."""
        value = secrets.token_hex(8)
        os.environ[_MARK] = value
        self._mark = f"{_MARK}={value}".encode()
        self._strangers: set[tuple[int, int]] = set()
        self._left: dict[tuple[int, int], float] = {}  # process → what it has used, also after its end
        self._most = 0.0
        self._before = self._sum()

    def seconds(self) -> float | None:
        """Return what was used since the beginning, in seconds; None on a machine without /proc."""
        now = self._sum()
        if now is None or self._before is None:
            return None
        self._most = max(self._most, now - self._before)  # a process may end while its table is read
        return self._most

    def _sum(self) -> float | None:
        uses = process_table.cpu_uses()
        if os.getpid() not in uses:
            return None
        below = tree(uses, os.getpid())
        for pid, use in uses.items():
            key = (pid, use.started_ticks)
            if pid not in below and key not in self._strangers and self._has_left(pid, key, uses):
                self._left[key] = use.seconds
        return sum(uses[pid].seconds for pid in below) + sum(self._left.values())

    def _has_left(self, pid: int, key: tuple[int, int], uses: Mapping[int, CpuUse]) -> bool:
        """Whether a process outside of the tree began below this one; each other process is asked once."""
        if key in self._left:
            return True
        is_younger = key[1] >= uses[os.getpid()].started_ticks
        if is_younger and process_table.carries(pid, self._mark):
            return True
        self._strangers.add(key)
        return False


def tree(uses: Mapping[int, CpuUse], root: int) -> set[int]:
    """Return a process and all that are below it."""
    children: dict[int, list[int]] = {}
    for pid, use in uses.items():
        children.setdefault(use.parent, []).append(pid)
    found, queue = {root}, [root]
    while queue:
        below = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(below)
        queue += below
    return found
