# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in the background while Ansible goes on: the build of an artifact, and the download of a source.

The task that needs an artifact takes over the result. A build goes on in a copy of Ansible's worker, which ends with
ansible-playbook. Its result comes in a file of the cache. The copy holds the lock of that file until it ends. Without a
result, the task that needs the artifact does the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_LOOK_S = 0.5


def end_with(parent: int) -> None:
    """Interrupt this process when another one has ended, and return at once.

    SIGINT and SIGTERM raise KeyboardInterrupt in the main thread from now on, so that it can clean up.

    Args:
        parent: number of the other process.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except PermissionError:
            pass
        except OSError:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # it may wait for a server
            return
        time.sleep(_LOOK_S)


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
        disk_files.wait_for(handle, waiting, note)
        place.unlink(missing_ok=True)
        try:
            told: dict[str, Any] = json.load(handle)
        except ValueError:
            return None
        return told


# Fetch a source in the background while Ansible goes on; the task that needs the file waits for it.
#
# It runs as a process of its own, which ends with ansible-playbook. It says nothing. What it could not fetch, the task
# that needs the file tries again, and says why.

_MODULE = "ansible_collections.clusterctl.hpc.plugins.plugin_utils.background"
_DEPTH = _MODULE.count(".")  # folders between this file and the one that holds ansible_collections


def is_needed(name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: Path) -> bool:
    """Return whether a build may need the file: the cache has neither it nor an artifact of this name and version."""
    if any((cache_dir / "artifacts").glob(f"{name}-{version}-*.json")):
        return False
    return bool(sources) and source.cached(name, version, sources, cache_dir) is None


def begin_fetch(
    name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: Path, parent: int
) -> subprocess.Popen[bytes]:
    """Begin to fetch, and return at once.

    Args:
        name: as in :func:`source.fetch`.
        version: as there.
        sources: as there.
        cache_dir: as there.
        parent: number of the process with which this one ends.

    Raises:
        OSError: the process cannot be started.
    """
    asked = {"name": name, "version": version, "sources": list(sources), "cache_dir": str(cache_dir), "parent": parent}
    root = str(Path(__file__).parents[_DEPTH])
    started = subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    with contextlib.suppress(BrokenPipeError), started.stdin as told:  # type: ignore[union-attr] # it is a pipe
        told.write(json.dumps(asked).encode())
    return started


def main() -> None:
    """Fetch what standard input asks for."""
    asked = json.load(sys.stdin)
    end_with(int(asked["parent"]))  # by an interrupt, so that the partial file is removed
    with contextlib.suppress(ArtifactError, OSError, KeyboardInterrupt):
        source.fetch(asked["name"], asked["version"], asked["sources"], Path(asked["cache_dir"]), variable="")


if __name__ == "__main__":
    main()
