# SPDX-License-Identifier: Apache-2.0
"""Have the node's sshd read its configuration anew, and wait for logins that began with the old one."""

from __future__ import annotations

import os
import pwd
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Set

from . import command
from .node_look.reading import of_process

_ANSWER_S = 30
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_POLL_S = 0.05
# In the titles of sshd's processes for a connection whose user is not known yet; -R is a process without a title yet.
_UNDECIDED = (b"[accepted]", b"[net]", b"\0-R\0")


def reload() -> None:
    """Have the running sshd read its configuration; open sessions stay."""
    for unit in ("ssh", "sshd"):
        if command.run(["systemctl", "reload", unit], _ANSWER_S, _ENVIRONMENT).ok:
            return
    candidates = [Path("/run/sshd.pid"), Path("/var/run/sshd.pid")]
    pids = [1]
    for path in candidates:
        with suppress(OSError, ValueError):
            pids.insert(0, int(path.read_text().split()[0]))
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd":
                os.kill(pid, signal.SIGHUP)
                return


def undecided_logins(processes: str = "/proc") -> Set[int]:
    """Return the processes of sshd that serve a connection and have not decided yet about its login.

    They are root's, or of the user without rights that sshd reads from the network with. Any user may take the title.
    """
    owners = {os.geteuid(), 0}
    with suppress(KeyError):
        owners.add(pwd.getpwnam("sshd").pw_uid)
    found = set()
    for place in Path(processes).iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                if place.stat().st_uid not in owners:
                    continue
                title = of_process(str(place / "cmdline"))
                program = os.path.basename(title.split(b"\0", 1)[0])  # noqa: PTH119 - bytes
                if program.startswith(b"sshd") and any(mark in title for mark in _UNDECIDED):
                    found.add(int(place.name))
    return found


def await_undecided_logins(patience_s: float) -> None:
    """Wait until the logins that sshd has not decided about now are decided; they keep the configuration of before."""
    waiting = undecided_logins()
    end = time.monotonic() + patience_s
    while waiting and time.monotonic() < end:
        time.sleep(_POLL_S)
        waiting &= undecided_logins()
