# SPDX-License-Identifier: Apache-2.0
"""What an unfinished run leaves on a node: programs still at work, staged files, half trees, pushed packs."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable, Collection, Iterator, List, NamedTuple, Sequence, Set

from ansible_collections.clusterctl.hpc.plugins.module_utils import brought, origins, tree_removal, user_identity
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import of_process

PACKS = "/var/cache/clusterctl/packs"
_RUN = b"CLUSTERCTL_RUN="  # run, user and controller as JSON; the playbooks set it
_STAGED = re.compile(r"\.(?:.+\.clusterctl-|origins\.|cluster\.json\.|clusterctl-)[a-z0-9_]{8}")
_LINK = re.compile(rf"\.(?:{'|'.join(brought.NAMES)})\.[a-z0-9_]{{8}}")
_PAYLOAD = "ansible_clusterctl.hpc.*_payload_????????"  # the folder of a module of this collection while it runs
_POLL_S = 0.25
_LONGEST_NAME = 200  # characters of a run's name
_SECURE = 23  # AT_SECURE of getauxval(3): a program whose file gave it more rights than its caller has
_TICKS = 19  # of the fields after the name in /proc/PID/stat: the start, in ticks since the boot


class Worker(NamedTuple):
    """A process of a run on this node."""

    pid: int
    run: str
    name: str
    started: float  # seconds since 1970


def workers(processes: str = "/proc") -> List[Worker]:
    """Return the processes that a run of any controller has on this node, this one included.

    Only processes of this process's own user count. Any user may set the variable for a process.
    """
    found = []
    for place in Path(processes).iterdir():
        if not place.name.isdigit() or not _is_ours(place):
            continue
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            block = of_process(str(place / "environ"))
            given = next((entry for entry in block.split(b"\0") if entry.startswith(_RUN)), b"")
            if given:
                run = str(json.loads(given[len(_RUN) :]).get("run", ""))[:_LONGEST_NAME]
                name = (place / "comm").read_text(encoding="utf-8", errors="replace").strip()
                found.append(Worker(int(place.name), run, name, started(place)))
    return found


def _is_ours(place: Path) -> bool:
    """Whether a process has this user's ids alone, and got none of them from a setuid program."""
    try:
        if place.stat().st_uid != os.geteuid():
            return False
        rows = (place / "status").read_bytes().split(b"\n")
        ids = next((row.split()[1:] for row in rows if row.startswith(b"Uid:")), [])
        pairs = dict(struct.iter_unpack("@NN", (place / "auxv").read_bytes()))
    except (OSError, struct.error):
        return False
    return set(map(int, ids)) == {os.geteuid()} and pairs.get(_SECURE) == 0


def started(place: Path) -> float:
    """Return when a process started, in seconds since 1970; ``place`` is its folder in /proc.

    Raises:
        OSError: it has ended.
    """
    ticks = int((place / "stat").read_bytes().rpartition(b")")[2].split()[_TICKS])
    rows = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
    boot = next(int(row.split()[1]) for row in rows if row.startswith("btime "))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def still_at_work(killed: Collection[str], patience_s: float, say: Callable[[str], None]) -> List[Worker]:
    """Wait until no process of an unfinished run is at work; returns those that outlast the patience.

    Args:
        killed: names of runs.
        patience_s: how long to wait; an installation of packages takes minutes, and must not be cut off.
        say: takes a line of progress.
    """
    deadline = time.monotonic() + patience_s
    while True:
        left = [worker for worker in workers() if worker.run in killed]
        if not left or time.monotonic() >= deadline:
            return left
        say(f"waiting for {left[0].name} (process {left[0].pid}) of the unfinished run {left[0].run}")
        time.sleep(_POLL_S)


def of_unfinished(
    folders: Sequence[str],
    packs: Collection[str],
    root: str = brought.ROOT,
    temporary: str = "/tmp",  # noqa: S108 - names that only modules of ours have
) -> List[str]:
    """Return what unfinished runs left on this node.

    Args:
        folders: where packs are pushed to and builds are made.
        packs: names of packs that the controller has; a kept pack that it lacks saves the next run a build.
        root: where the artifacts are.
        temporary: where modules unpack themselves.
    """
    found: Set[str] = {path for folder in folders for path in brought.left_in(folder)}
    found |= {path for path in brought.trees_and_links(root)[0] if Path(path).name.startswith(".")}
    found |= {str(path) for path in _below(root) if _LINK.fullmatch(path.name) and path.is_symlink()}
    found |= {str(path) for folder in _places(root) for path in _below(folder) if _STAGED.fullmatch(path.name)}
    for path in _below(PACKS):
        if path.name.endswith(".partial") or path.name.rpartition(".")[0].replace(".tar", "") in packs:
            found.add(str(path))
    # btime has whole seconds only
    first = min(started(Path("/proc/self")), *(worker.started for worker in workers()), time.time()) - 2
    mounted = brought.mount_points()
    for path in Path(temporary).glob(_PAYLOAD):
        if str(path) in mounted:
            continue
        with suppress(OSError):
            state = path.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and state.st_mtime < first:
                found.add(str(path))
    return sorted(found)


def remove(path: str) -> None:
    """Remove a file, a link or a folder; it may be gone already.

    In the folder of a user, root acts as this user. A folder that is reached through a user's link stays as it is.

    Raises:
        OSError: it cannot be removed, or not in time.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 - a text
    with suppress(FileNotFoundError):
        if path_state.link_of_another(folder):
            return
        owner = Path(folder).stat().st_uid
        try:
            user = pwd.getpwuid(owner) if os.geteuid() == 0 and owner else None
        except KeyError:
            return  # of a user who is gone; whoever has the number now is unknown
        with user_identity.acting_as(user):
            tree_removal.remove(path)


def _places(root: str) -> Iterator[str]:
    """Yield the folders in which files are staged beside their targets."""
    known = [*brought.texts([root]), *brought.FILES, *brought.ALWAYS_THERE, *origins.load()["paths"]]
    yield from {str(Path(path).parent) for path in known}
    for top in (*brought.folders([root]), brought.STATE):
        for folder, _unused, _unused in os.walk(top):
            yield folder


def _below(folder: str) -> List[Path]:
    with suppress(OSError):
        return list(Path(folder).iterdir())
    return []
