# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Remove from a node what unfinished runs left there."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: leftovers
short_description: Remove what unfinished runs left
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Waits until programs of unfinished runs have ended on the host. Then it removes staged files and links, half trees,
    pushed packs, folders of builds, and packs that the controller has fetched.
  - On the controller, it removes partial files from the cache that no process holds.
options:
  runs:
    description: The names of the unfinished runs.
    type: list
    elements: str
    default: []
  folders:
    description: Folders of the host to which packs are pushed and in which software is built.
    type: list
    elements: path
    default: [/var/tmp]
  prefix:
    description: Folder of the cluster's software.
    type: path
    default: /usr/local
  cache_dir:
    description: The cache of the controller.
    type: str
    required: true
  patience_s:
    description: How many seconds to wait for programs of unfinished runs.
    type: float
    default: 300
  packs:
    description: Set by the action plugin.
    type: list
    elements: str
    default: []
  host:
    description: Set by the action plugin.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Removes nothing.}
  diff_mode: {support: none, description: There is no content to show.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: always}
watch: {description: Always empty., type: list, returned: always}
"""

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

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    audited_module,
    brought,
    disk_files,
    origins,
    tree_removal,
    user_identity,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import of_process

# What an unfinished run leaves on a node: programs still at work, staged files, half trees, pushed packs.

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


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "runs": {"type": "list", "elements": "str", "default": []},
            "folders": {"type": "list", "elements": "path", "default": ["/var/tmp"]},  # noqa: S108 - names of ours
            "prefix": {"type": "path", "default": "/usr/local"},
            "cache_dir": {"type": "str", "required": True},
            "patience_s": {"type": "float", "default": 300.0},
            "packs": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    p = module.params
    left = [] if module.check_mode else still_at_work(p["runs"], p["patience_s"], module.debug)
    if left:
        first = left[0]
        module.fail_json(
            msg=f"{p['host']}: {first.name} (process {first.pid}) of the unfinished run {first.run} is still at work;"
            " wait until it has ended, or end it, and run again.",
            changes=[],
            watch=[],
        )
    changes = []
    try:
        for path in of_unfinished(p["folders"], p["packs"], p["prefix"]):
            if not module.check_mode:
                remove(path)
            changes.append(f"removed {path}, which an unfinished run left")
    except OSError as error:
        module.fail_json(msg=disk_files.sentence(p["host"], error), changes=changes, watch=[])
    module.exit_json(changed=bool(changes), changes=changes, watch=[])


if __name__ == "__main__":
    main()
