# SPDX-License-Identifier: Apache-2.0
"""Let links of artifacts lead to other folders while a host builds, and back afterwards, also after a killed build."""

from __future__ import annotations

import ctypes
import json
import math
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Mapping

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import processes

# The link of an artifact: which folder it leads to, and how it is switched to another one by one rename.

# Write what a power cut must not undo to the disk: all files of a folder, or the names in it.


def files_below(folder: str) -> None:
    """Write the file system of a folder to its disk; one call is 30 times as fast as one for each file.

    Raises:
        OSError: the disk refused a part.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs"):
            os.sync()
        elif library.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    finally:
        os.close(descriptor)


def names_in(folder: str) -> None:
    """Write the names in a folder to its disk.

    Raises:
        OSError: the disk refused it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark(folder: str, name: str, data: bytes) -> None:
    """Write the marker of a folder, which is on the disk only if all other files below the folder are.

    Raises:
        OSError: the disk is full, or refused a part.
    """
    files_below(folder)
    with Path(folder, name).open("wb") as out:
        out.write(data)
        os.fchmod(out.fileno(), 0o644)
        out.flush()
        os.fsync(out.fileno())
    names_in(folder)


def target_of(link: str, tree: str) -> str:
    """Return what a link holds: a name beside it, so that the folder may also be reached by another path."""
    return Path(tree).name if Path(tree).parent == Path(link).parent else tree


def by_tree(paths: Iterable[str], links: Mapping[str, str]) -> List[str]:
    """Return paths that begin with a link, with its folder instead.

    Args:
        paths: absolute paths; one that begins with none of the links is left out.
        links: by link, the folder.
    """
    return [
        tree + path[len(link) :]
        for path in paths
        for link, tree in links.items()
        if path == link or path.startswith(f"{link}/")
    ]


def links_to_switch(results: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Return by link the folder to which it is to lead, for the links that lead elsewhere or do not exist.

    Args:
        results: of artifacts that were installed on one host; one that did not run counts as none.
    """
    return {
        str(result["link"]): str(result["tree"])
        for result in results
        if result.get("tree") and result.get("link") and result.get("before") != result["tree"]
    }


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
    names_in(os.path.dirname(link))  # noqa: PTH120 - a text


# Name the ranks of this host, and the processes that use a folder which a link is about to leave.

_MOST_NAMED = 3
_LONGEST_COMMAND = 60
_CURE = "wait for their end, or give --while-busy"


class JobsError(ArtifactError):
    """Jobs stand in the way of a switch; ``problems`` is what the run's record says of it."""

    def __init__(self, host: str, jobs: str) -> None:
        """Take the jobs in words."""
        super().__init__(f"{host}: {jobs}; {_CURE}.")
        self.problems = [{"host": host, "check": "jobs", "problem": jobs, "cure": _CURE}]


def refuse(links: Mapping[str, str], host: str) -> None:
    """Refuse to switch links while jobs run here; a link that leads to its folder already, or is new, is no matter.

    Args:
        links: by link, the folder to which it is to lead.
        host: name of the host, for the message.

    Raises:
        JobsError: ranks run here, or processes that use a folder which a link is about to leave.
    """
    now = {link: tree_of(link) for link in links}
    leaving = {now[link] for link, tree in links.items() if now[link] not in {"", tree}}
    for root in sorted({os.path.dirname(tree) for tree in leaving}):  # noqa: PTH120 - a text
        jobs = words(processes.busy(wanted=True, root=root)["busy"], leaving)
        if jobs:
            raise JobsError(host, jobs)


def words(found: List[Dict[str, Any]], leaving: "set[str]") -> str:
    """Return the jobs among processes, in words; '' without one."""
    busy = [process for process in found if process["rank"] or leaving & set(process["trees"])]
    shown = [
        f"{'rank' if process['rank'] else 'process'} {process['pid']} of {process['user']}:"
        f" {process['command'][:_LONGEST_COMMAND]}"
        for process in busy
    ]
    rest = len(shown) - _MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"jobs run here: {'; '.join(shown[:_MOST_NAMED])}{more}" if shown else ""


RECORD = "/var/lib/clusterctl/borrowed-links.json"  # by link, the folder to which it led before the build


@contextmanager
def borrowed(links: Mapping[str, str], host: str, *, while_busy: bool) -> Iterator[None]:
    """Let links lead to other folders for the time of a build, and then to their former ones.

    A file on this host names the former folders meanwhile, so that :func:`give_back` puts a killed build right. Another
    build that borrows links on this host waits until this one has ended.

    Args:
        links: by link, the folder for the build.
        host: name of the host, for messages.
        while_busy: whether jobs on this host are no obstacle.

    Raises:
        JobsError: jobs run here.
        OSError: a link could not be switched; all lead where they led before.
    """
    if not links:
        give_back()
        yield
        return
    with _alone(math.inf):
        _put_back()
        if not while_busy:
            refuse(links, host)
        now = {link: tree_of(link) for link in links}
        before = {link: now[link] for link, tree in links.items() if now[link] != tree}
        if before:
            disk_files.write(RECORD, json.dumps(before))
        try:
            for link in before:
                switch(link, links[link])
            yield
        finally:
            if before:
                _put_back()


def give_back(patience_s: float = 0.0) -> bool:
    """Let the links that a killed build has borrowed lead to their former folders again.

    Args:
        patience_s: how long to wait for a build that goes on. After that, the links stay with it.

    Returns:
        Whether no link is borrowed now.

    Raises:
        OSError: a link could not be switched; the next call tries again.
    """
    if not Path(RECORD).exists():
        return True
    with suppress(TimeoutError), _alone(patience_s):
        _put_back()
        return True
    return False


def _alone(patience_s: float) -> ContextManager[Any]:
    """Hold the right to borrow links on this host, which goes with the process. Whoever may open the file may hold it.

    Raises:
        TimeoutError: another process has had it for so long.
    """
    Path(RECORD).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    waiting = "waiting for a build that has borrowed links"
    return disk_files.held(f"{RECORD}.flock", waiting, lambda _text: None, within_s=patience_s, mode=0o600)


def _put_back() -> None:
    try:
        before = json.loads(Path(RECORD).read_bytes())
    except (OSError, ValueError):
        return
    for link, tree in before.items():
        if tree and tree_of(link) != tree:
            switch(link, tree)
        elif not tree and Path(link).is_symlink():
            Path(link).unlink()
    with suppress(FileNotFoundError):
        Path(RECORD).unlink()
