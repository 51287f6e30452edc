# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an artifact in the background while Ansible goes on; the task that needs it takes over the result.

The work goes on in a copy of Ansible's worker, which ends with ansible-playbook. Its result comes in a file of the
cache. The copy holds the lock of that file until it ends. Without a result, the task that needs the artifact does the
work.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import waited_lock
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.end_with import end_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def begin(place: Path, playbook: int, work: Callable[[], dict[str, Any]]) -> None:
    """Begin the work in a process of its own, and return at once.

    Args:
        place: file for the result; its folder is made.
        playbook: number of the process of ansible-playbook, with which the work ends.
        work: returns the result of the task.

    Raises:
        OSError: there is neither a process nor a file for it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "w", encoding="utf-8", opener=_private) as told:
        fcntl.flock(told, fcntl.LOCK_EX)
        if os.fork():
            return  # the copy has the lock as well
        try:
            os.setsid()
            end_with(playbook)
            result = work()
            told.write(json.dumps(result, default=str))  # a failure carries an object of Ansible
            told.flush()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # an ssh that still waits for the host; the host ends its build with it
            os._exit(0)  # what Ansible's worker does at its end is that worker's


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def result(place: Path, waiting: str, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Wait for the work and return its result; None where nothing was begun, or where it ended without a result.

    Args:
        place: as in :func:`begin`.
        waiting: what ``note`` hears while the work goes on.
        note: takes a line of life.
    """
    try:
        handle = place.open(encoding="utf-8")
    except FileNotFoundError:
        return None
    with handle:
        waited_lock.wait_for(handle, waiting, note)
        place.unlink(missing_ok=True)
        try:
            told: dict[str, Any] = json.load(handle)
        except ValueError:
            return None
        return told
