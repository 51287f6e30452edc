# SPDX-License-Identifier: Apache-2.0
"""Can the login user write to the folders for temporary files and for shared memory? Nothing is written to find out."""

from __future__ import annotations

import os

from .reading import Json

# A process of root's that acts as a user still has root's real id, about which access(2) asks.
_EFFECTIVE = os.access in os.supports_effective_ids
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, not written
_USUAL_FOLDER = "/tmp"  # noqa: S108 - measured, not written
_FOLDER_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in the order in which Open MPI reads them
# Open MPI 4.1 keeps one folder of this name for a node and a user. One that another user owns stops every launch.
_SESSION_FOLDER = "ompi.{host}.{uid}"


def scratch(variables: dict[str, str], uid: int) -> Json:
    """Return the state of the session's folder for temporary files, of /tmp and of /dev/shm.

    Args:
        variables: the variables of the session.
        uid: the login user.
    """
    chosen = next((variables[name] for name in _FOLDER_VARIABLES if variables.get(name, "").startswith("/")), "")
    paths = dict.fromkeys([chosen.rstrip("/") or _USUAL_FOLDER, _USUAL_FOLDER, _SHARED_MEMORY])
    return {"scratch": [_state(path, uid) for path in paths]}


def _state(path: str, uid: int) -> Json:
    state: Json = {
        "path": path,
        "exists": os.path.isdir(path),
        "free_bytes": 0,
        "total_bytes": 0,
        "free_inodes": None,
        "read_only": False,
        "writable": False,
        "blocked": [],
    }
    if not state["exists"]:
        return state
    space = os.statvfs(path)
    session = f"{path}/{_SESSION_FOLDER.format(host=os.uname().nodename, uid=uid)}"
    taken = os.path.lexists(session) and not _may_write(session)
    state.update(
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        free_inodes=space.f_favail if space.f_files else None,  # btrfs and others have no fixed number
        read_only=bool(space.f_flag & os.ST_RDONLY),
        writable=_may_write(path),
        blocked=[session] if taken else [],
    )
    return state


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)
