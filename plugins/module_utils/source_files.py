# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder of source belong to its package. Roles and ``clusterctl`` must find the same ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Tuple

# What tools leave in a folder of source.
_LEFT_OUT = {
    *(".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".tox", ".nox", ".mypy_cache", ".ruff_cache"),
    *(".pytest_cache", ".cache", "node_modules", ".idea", ".vscode"),
}
_LEFT_OUT_ON_TOP = {"build", "dist"}
_LEFT_OUT_ENDS = (".pyc", ".pyo", ".egg-info")


def files(folder: Path) -> Iterator[Tuple[Path, str]]:
    """Yield files and links, also to folders, each with its name in the folder; sockets and pipes are left out.

    Raises:
        OSError: a file is gone.
    """
    for top, folders, names in os.walk(folder):
        here = Path(top).relative_to(folder)
        on_top = here == Path()
        folders[:] = [one for one in folders if not _left_out(one, on_top=on_top)]
        linked = [one for one in folders if (Path(top) / one).is_symlink()]
        for name in [*linked, *(one for one in names if not _left_out(one, on_top=False))]:
            path = Path(top) / name
            if path.is_symlink() or path.is_file():
                yield path, (here / name).as_posix()


def _left_out(name: str, *, on_top: bool) -> bool:
    return name in _LEFT_OUT or name.endswith(_LEFT_OUT_ENDS) or (on_top and name in _LEFT_OUT_ON_TOP)
