# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a source in the background while Ansible goes on; the task that needs the file waits for it.

It runs as a process of its own, which ends with ansible-playbook. It says nothing. What it could not fetch, the task
that needs the file tries again, and says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
