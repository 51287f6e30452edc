# SPDX-License-Identifier: Apache-2.0
"""Which mpirun, prted and orted a session finds, and whether those of the installed Open MPI can run."""

from __future__ import annotations

import os

from .reading import Json

_NAMES = ("mpirun", "prterun", "prted", "orted")


def programs(search_path: str, own_folder: str) -> Json:
    """Return each program as the session finds it, and the state of the installed one.

    Args:
        search_path: PATH of the session.
        own_folder: where the programs of the installed Open MPI are.
    """
    folders = [folder.rstrip("/") for folder in search_path.split(":") if folder.startswith("/")]
    found = []
    for name in _NAMES:
        path = next((f"{folder}/{name}" for folder in folders if _can_run(f"{folder}/{name}")), "")
        own = f"{own_folder}/{name}"
        found.append(
            {
                "name": name,
                "path": path,
                "real": os.path.realpath(path) if path else "",
                "own": own,
                "own_real": os.path.realpath(own),
                "own_state": _state(own),
            }
        )
    return {"launch": found}


def _can_run(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _state(path: str) -> str:
    if _can_run(path):
        return "ok"
    return "not executable" if os.path.exists(path) else "missing"
