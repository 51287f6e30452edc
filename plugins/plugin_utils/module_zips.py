# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the archives that Ansible makes of modules, so that a run does not make them anew.

Ansible packs each module with the files that it imports, once in a run, in its folder for temporary files. A run that
plays all roles makes about twenty. This puts those of an earlier run there, and takes the new ones at the end. It does
so for modules of this collection and of ansible-core alone, whose files the name of the kept folder stands for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible import constants
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import kept_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = ("ansible_collections.clusterctl.hpc.", "ansible.modules.")
_PLACE = "ansiballz_cache"  # of ansible-core 2.9 and later


def use() -> bool:
    """Give this run the archives of earlier ones, and keep its own at its end; tells whether it does."""
    kept = kept_folder.of("modules", "modules", "module_utils")
    if kept is None:
        return False
    place = Path(str(constants.DEFAULT_LOCAL_TMP)) / _PLACE
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        for archive in _archives(kept):
            _copy(archive, place)
    except OSError:
        return False
    atexit.register(keep, place, kept, os.getpid())
    return True


def keep(place: Path, kept: Path, process: int) -> None:
    """Keep what is new; a worker that ends leaves that to the main process."""
    if os.getpid() != process:
        return
    with contextlib.suppress(OSError):
        for archive in _archives(place):
            _copy(archive, kept)


def _archives(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_OURS) and path.suffix != ".lock" and path.is_file() and not path.is_symlink():
            yield path


def _copy(archive: Path, folder: Path) -> None:
    """Copy an archive where there is none; it has its name once it is whole."""
    if (folder / archive.name).exists():
        return
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    try:
        shutil.copyfile(archive, name)
        Path(name).rename(folder / archive.name)
    except OSError:
        Path(name).unlink()
        raise
