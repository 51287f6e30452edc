# SPDX-License-Identifier: Apache-2.0
"""The folder of the cluster's software: who may write there, and whether another folder has software of clusterctl."""

from __future__ import annotations

import os
import re
import stat

from .reading import Json, list_folder, read_text, user_name

DEFAULT = "/usr/local"
MARKER = ".clusterctl.json"
_TREE = re.compile(r"[A-Za-z0-9_]+-[^/]+-[0-9a-f]{16}")
_NOTE = re.compile(r"# clusterctl: added PATH (.+)")  # of the role environment
_FIRST = "/openmpi/bin"


def prefix(path: str) -> Json:
    """Return what is known of the folder of the software, and further folders that hold some of clusterctl."""
    others = [other for other in candidates(read_text("/etc/environment", "")) if other != path and has_software(other)]
    existing = _existing(path)
    state = {
        "path": path,
        "problem": "" if path == DEFAULT else problem(path),
        "read_only": bool(os.statvfs(existing[-1]).f_flag & os.ST_RDONLY),
        "others": others,
        "trees": trees(path),
    }
    return {"prefix": state}


def candidates(environment: str) -> list[str]:
    """Return the folders that may hold software: the default, and those that /etc/environment (a text) tells of."""
    notes = (_NOTE.fullmatch(line.strip()) for line in environment.split("\n"))
    words = [word for note in notes if note for word in note.group(1).split()]
    return sorted(
        {DEFAULT, *(word[: -len(_FIRST)] for word in words if word.startswith("/") and word.endswith(_FIRST))}
    )


def has_software(path: str) -> bool:
    """Tell whether a folder holds an artifact."""
    return any(os.path.isfile(f"{path}/{name}/{MARKER}") for name in trees(path))


def trees(path: str) -> list[str]:
    """Return the names in a folder that are those of artifacts, whole or not."""
    return sorted(name for name in list_folder(path) if _TREE.fullmatch(name))


def problem(path: str) -> str:
    """Return why root must not install below a folder, as a clause; '' where it may. What is missing root makes."""
    for folder in _existing(path):
        state = os.lstat(folder)
        mode = stat.S_IMODE(state.st_mode)
        if stat.S_ISLNK(state.st_mode):
            return f"{folder} is a link, and the path is to be that of the folder itself ({os.path.realpath(folder)})"
        if not stat.S_ISDIR(state.st_mode):
            return f"{folder} is not a folder"
        if state.st_uid != 0:
            return f"{folder} belongs to {user_name(state.st_uid)}, who could replace the software"
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and state.st_gid != 0):
            return f"{folder} can be written by others than root (mode {mode:04o}), who could replace the software"
        if mode & 0o005 != 0o005:  # noqa: PLR2004 - to read and to enter
            return f"{folder} can be entered by root alone (mode {mode:04o})"
    return ""


def _existing(path: str) -> list[str]:
    """Return the folders on the way to a path that are there, / first; a link ends the way."""
    found = ["/"]
    for name in path.strip("/").split("/"):
        folder = f"{found[-1].rstrip('/')}/{name}"
        if not os.path.lexists(folder):
            break
        found.append(folder)
        if os.path.islink(folder):
            break
    return found
