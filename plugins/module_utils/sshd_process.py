# SPDX-License-Identifier: Apache-2.0
"""Have the node's sshd read its configuration anew."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from . import command

_ANSWER_S = 30
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}


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
