# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder of this user for what Ansible would make anew in each run, one for each state of the programs."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from ansible.release import __version__ as ansible_version

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "CLUSTERCTL_KEPT"  # of the environment; without it, nothing is kept
COLLECTION = Path(__file__).absolute().parents[2]
_OLD_S = 30 * 24 * 3600.0


def of(kind: str, *parts: str) -> Path | None:
    """Return the folder; None where nothing is to be kept, or where another user could write into the folder.

    Args:
        kind: what is kept.
        parts: folders of the collection's plugins; a change of a file in them leads to another folder.
    """
    named = os.environ.get(VARIABLE, "")
    if not named or not _is_private(Path(named)):
        return None
    base = Path(named) / kind
    files = sorted(path for part in parts for path in (COLLECTION / "plugins" / part).rglob("*.py"))
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    versions = (sys.implementation.cache_tag, sys.hexversion, sys.prefix, ansible_version, jinja2.__version__)
    folder = base / hashlib.sha256(repr((versions, states)).encode()).hexdigest()[:16]
    try:
        for missing in (base, folder):
            missing.mkdir(mode=0o700, exist_ok=True)
        os.utime(folder)
        _forget_old(base)
    except OSError:
        return None
    return folder if _is_private(base) and _is_private(folder) else None


def holds(path: str) -> bool:
    """Tell whether a file is the collection's; Ansible's finder reaches it by a link, and names files by it."""
    return path.startswith(_places(COLLECTION))


@functools.cache
def _places(collection: Path) -> tuple[str, ...]:
    return f"{collection}/", f"{collection.resolve()}/"


def origin_reader() -> Callable[[object], str]:
    """Return what tells the path of the file that a text of Ansible's stands in, '' where that is unknown.

    Raises:
        ImportError: ansible-core is older than 2.19.
    """
    from ansible._internal._datatag._tags import Origin  # noqa: PLC0415 - not in 2.18

    def origin(text: object) -> str:
        tag = Origin.get_tag(text)
        return str(tag.path or "") if tag else ""

    return origin


def _is_private(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _forget_old(base: Path) -> None:
    """Remove the folders of states that nobody has used for a month."""
    for folder in base.iterdir():
        if folder.lstat().st_mtime < time.time() - _OLD_S and _is_private(folder):
            shutil.rmtree(folder, ignore_errors=True)
