# SPDX-License-Identifier: Apache-2.0
"""The processor time that Ansible's ssh connection has used on this node so far, by /proc.

A module adds up its own process and each process above it, up to the sshd of the connection. So the sum includes all
programs that ended on that connection before. A process that left its parent, and another connection, do not count.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

PROC = "/proc"
_PARENT, _TIMES, _STARTED = 1, slice(11, 15), 19  # in /proc/PID/stat behind the name; proc(5)
_CONNECTION = (b"sshd: ", b"sshd-session: ")  # the listener is "/usr/sbin/sshd ...", or says [listener]
_MOST_READ = 1 << 20  # bytes; a process may show all its memory as its command line
_MOST_ABOVE = 64  # processes between a module and its sshd


def used() -> Dict[str, Any]:
    """Return what this connection has used.

    Returns:
        ``connection``: what tells this connection from the next one of the same node. ``seconds``: of user and system
        time, so far. Where no sshd is above this process, both are of this process and its children.
    """
    found = _of_connection(os.getpid())
    if found is None:
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        found = "process {0} {1}".format(os.getpid(), _started(os.getpid())), seconds
    return {"connection": found[0], "seconds": round(found[1], 2)}


def _of_connection(pid: int) -> Optional[Tuple[str, float]]:
    ticks, found = 0, None
    for _above in range(_MOST_ABOVE):
        fields = _stat(pid)
        words = _command_line(pid)
        if not fields or b"ansible-playbook" in words:  # it runs on the controller, below its user's own login
            break
        is_connection = words.startswith(_CONNECTION) and b"[listener]" not in words
        if found and not is_connection:
            break
        ticks += sum(int(word) for word in fields[_TIMES])
        if is_connection:  # an unprivileged one has a privileged one above it
            found = "sshd {0} {1}".format(pid, fields[_STARTED]), ticks / float(os.sysconf("SC_CLK_TCK"))
        pid = int(fields[_PARENT])
    return found


def _started(pid: int) -> str:
    fields = _stat(pid)
    return fields[_STARTED] if fields else ""


def _stat(pid: int) -> List[str]:
    """Return the fields of /proc/PID/stat behind the name; none where there is no such process or no /proc."""
    text = _read(pid, "stat").rpartition(b")")[2]
    fields = text.decode("ascii", "replace").split()
    return fields if len(fields) > _STARTED else []


def _command_line(pid: int) -> bytes:
    return b" ".join(_read(pid, "cmdline").split(b"\0"))


def _read(pid: int, name: str) -> bytes:
    try:
        with Path(PROC, str(pid), name).open("rb") as stream:
            return stream.read(_MOST_READ)
    except OSError:
        return b""
