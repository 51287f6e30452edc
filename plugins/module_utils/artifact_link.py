# SPDX-License-Identifier: Apache-2.0
"""The link of an artifact: which folder it leads to, and how it is switched to another one by one rename."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_sync


def target_of(link: str, tree: str) -> str:
    """Return what a link holds: a name beside it, so that the folder may also be reached by another path."""
    return Path(tree).name if Path(tree).parent == Path(link).parent else tree


def tree_of(link: str) -> str:
    """Return the folder to which a link leads; '' without a link."""
    path = Path(link)
    return os.path.normpath(path.parent / path.readlink()) if path.is_symlink() else ""


def problem(link: str) -> str:
    """Return a sentence where something else than a link has the link's path; '' where the link may be switched."""
    if os.path.lexists(link) and not Path(link).is_symlink():
        return f"{link} is not a link, so clusterctl did not make it; move it away and run again."
    return ""


def stage(link: str, tree: str) -> str:
    """Make the new link under a name of its own beside the old one, and return its path.

    A link that a killed run staged is removed; only one run at a time works on a host.
    """
    folder, name = os.path.split(link)
    for left in Path(folder).glob(f".{name}.*"):
        if left.is_symlink():
            left.unlink()
    staged = f"{folder}/.{name}.{os.urandom(4).hex()}"  # symlink() refuses an existing name
    Path(staged).symlink_to(target_of(link, tree))
    return staged


def put(link: str, staged: str) -> None:
    """Put a staged link in its place, so that every reader sees the old one or the new one; '' removes the link."""
    if staged:
        Path(staged).replace(link)
    else:
        Path(link).unlink()


def switch(link: str, tree: str) -> None:
    """Let a link lead to a folder.

    Raises:
        OSError: it leads where it led before.
    """
    staged = stage(link, tree)
    try:
        put(link, staged)
    except OSError:
        Path(staged).unlink()
        raise
    disk_sync.names_in(os.path.dirname(link))  # noqa: PTH120 - a text
