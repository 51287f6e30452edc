# SPDX-License-Identifier: Apache-2.0
"""Processes that wait in the kernel and cannot be interrupted (state D of proc(5)).

One look proves nothing, because every read of a disk waits so for a moment. A process that has not run at all between
two looks is stuck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_MOST = 50
_UTIME, _STIME = 11, 12  # fields of /proc/PID/stat after the command and the state; see proc(5)


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the time that each such process has run for; its growth between two looks is what counts."""
    told = 0
    for name in tree.names("/proc"):
        if not name.isdigit():
            continue
        text = tree.text(f"/proc/{name}/stat") or ""
        command, _unused, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) <= _STIME or fields[0] != "D":
            continue
        told += 1
        if told > _MOST:
            answer.unseen("blocked processes", f"more than {_MOST}; only the first were read")
            break
        where = tree.text(f"/proc/{name}/wchan") or ""
        device = f"{name} ({command})" + (f" in {where}" if where not in {"", "0"} else "")
        answer.counter("process", device, "ran", int(fields[_UTIME]) + int(fields[_STIME]))
    tree.problems.clear()  # processes end, and those of others may be closed
