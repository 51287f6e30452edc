# SPDX-License-Identifier: Apache-2.0
"""Fetch a source in the background while Ansible goes on; the task that needs the file waits for it.

It runs as a process of its own, which ends with ansible-playbook. It says nothing. What it could not fetch, the task
that needs the file tries again, and says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.end_with import end_with

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODULE = "ansible_collections.clusterctl.hpc.plugins.plugin_utils.early_fetch"
_DEPTH = _MODULE.count(".")  # folders between this file and the one that holds ansible_collections


def is_needed(name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: Path) -> bool:
    """Return whether a build may need the file: the cache has neither it nor an artifact of this name and version."""
    if any((cache_dir / "artifacts").glob(f"{name}-{version}-*.json")):
        return False
    return bool(sources) and source.cached(name, version, sources, cache_dir) is None


def begin(
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
