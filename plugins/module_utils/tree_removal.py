# SPDX-License-Identifier: Apache-2.0
"""Remove a file or a whole folder of any depth, without following a link and within a time limit."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path
from typing import List, Tuple

LIMIT_S = 300.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str, limit_s: float = LIMIT_S) -> None:
    """Remove a file, a link or a folder with all below it.

    A folder may be deeper than a path is long. The way up is compared with the way down, so a folder that is moved
    meanwhile leads nowhere else.

    Args:
        path: what goes; its own folder must be trusted.
        limit_s: seconds for all of it.

    Raises:
        OSError: it is missing, cannot be removed, or takes longer.
    """
    until = time.monotonic() + limit_s
    place = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120 - a text
    try:
        name = os.path.basename(path)  # noqa: PTH119 - a text
        if _has_gone(name, place):
            return
        _empty(os.open(name, _FOLDER, dir_fd=place), path, until)
        os.rmdir(name, dir_fd=place)
    finally:
        os.close(place)


def put_aside(path: str, aside: str) -> bool:
    """Rename a file or folder; return False where it has to be removed at its place.

    Overlayfs renames no folder that lies in the image of a container.

    Raises:
        OSError: anything else.
    """
    try:
        Path(path).replace(aside)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def remove_by_name(path: str, marker: str) -> None:
    """Remove a marked tree: first its name in one rename, so that half of one is never found by it.

    Args:
        path: the tree.
        marker: the name of the file in it without which it does not count.

    Raises:
        OSError: as for :func:`remove`.
    """
    folder, name = os.path.split(path)
    aside = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    if not put_aside(path, f"{aside}/removed"):
        remove_in_place(path, marker)
    remove(aside)


def remove_in_place(path: str, marker: str) -> None:
    """Remove a marked tree that cannot be renamed: first its marker, so that no half of it counts.

    Raises:
        OSError: as for :func:`remove`.
    """
    Path(path, marker).unlink(missing_ok=True)
    remove(path)


def _has_gone(name: str, place: int) -> bool:
    """Remove a file, a link or an empty folder; whether that was enough."""
    try:
        os.unlink(name, dir_fd=place)
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.EPERM}:  # EPERM is POSIX's word for a folder
            raise
    else:
        return True
    try:
        os.rmdir(name, dir_fd=place)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


def _empty(here: int, path: str, until: float) -> None:
    """Remove all that is in a folder, which is closed at the end."""
    above: List[Tuple[os.stat_result, str, List[str]]] = []
    try:
        names = _full_folders(here, path, until)
        while names or above:
            if names:
                name = names.pop()
                below = os.open(name, _FOLDER, dir_fd=here)
                above.append((os.fstat(here), name, names))
                os.close(here)
                here = below
                names = _full_folders(here, path, until)
                continue
            before, name, names = above.pop()
            outer = os.open("..", _FOLDER, dir_fd=here)
            os.close(here)
            here = outer
            if not os.path.samestat(os.fstat(here), before):
                raise OSError(errno.EAGAIN, "It was moved while it was being removed", path)
            os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)


def _full_folders(here: int, path: str, until: float) -> List[str]:
    """Remove the files and empty folders of a folder; returns the names of its other folders."""
    left = []
    for name in os.listdir(here):
        if time.monotonic() > until:
            raise OSError(errno.ETIMEDOUT, "It has too many entries to be removed in time", path)
        if not _has_gone(name, here):
            left.append(name)
    return left
