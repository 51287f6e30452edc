# SPDX-License-Identifier: Apache-2.0
"""File systems: whether they answer, how fast, whether they may be written to, and what is free.

Each is asked by a child process of its own, because a question to a dead server waits in the kernel for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_REMOTE = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "9p",
        "glusterfs",
        "orangefs",
        "wekafs",
        "virtiofs",
        "afs",
        "pvfs2",
    }
)
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "vfat"})
_ANSWER_S = 2.0
_MOST = 60
_ENTRIES = 64  # of a folder; a listing goes to the server, where statvfs may come from a cache


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell of every file system that jobs could use, the remote ones last."""
    found = sorted(mounts(tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or ""), key=lambda one: one[2])
    for place, kind, remote, options in found[:_MOST]:
        answer.reading("filesystem", place, "type", kind)
        answer.reading("filesystem", place, "remote", remote)
        answer.reading("filesystem", place, "read-only", "ro" in options)
        if not tree.recorded:
            _ask(place, answer)
    if len(found) > _MOST:
        answer.unseen("file systems", f"{len(found) - _MOST} of {len(found)} were not asked")


def mounts(text: str) -> list[tuple[str, str, bool, list[str]]]:
    """Return each place once, its type, whether it is remote, and its options, from the text of /proc/mounts."""
    found: dict[str, tuple[str, str, bool, list[str]]] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:  # noqa: PLR2004 - source, place, type, options
            continue
        place, kind, options = _unescaped(fields[1]), fields[2], fields[3].split(",")
        remote = kind in _REMOTE or kind.startswith("fuse.")
        if remote or kind in _LOCAL:
            found[place] = (place, kind, remote, options)  # a later mount covers an earlier one
        else:
            found.pop(place, None)
    return [
        one
        for one in found.values()
        if not one[0].startswith(("/var/lib/containers", "/var/lib/docker", "/run/", "/snap/", "/etc/"))
    ]


def _unescaped(text: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, sign)
    return text


def _ask(place: str, answer: Answer) -> None:
    """Ask one file system in a child process, and leave it behind if it does not answer."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _answer(place, writing)
    os.close(writing)
    ready = select.select([reading], [], [], _ANSWER_S)[0]
    text = os.read(reading, 1 << 12) if ready else b""
    os.close(reading)
    if not ready:
        os.kill(process, signal.SIGKILL)
        answer.reading("filesystem", place, "answers", value=False)
        return
    os.waitpid(process, 0)
    found = json.loads(text or b'{"problem": "the question ended early"}')
    if "problem" in found:
        answer.reading("filesystem", place, "problem", found["problem"])
        return
    answer.reading("filesystem", place, "answers", value=True)
    for name, value in found.items():
        answer.reading("filesystem", place, name, value)


def _answer(place: str, channel: int) -> None:
    begin = time.monotonic()
    try:
        state = os.statvfs(place)
        try:
            with os.scandir(place) as entries:
                for number, _entry in enumerate(entries):
                    if number >= _ENTRIES:
                        break
        except PermissionError:
            pass  # a folder that others may not list
        found = {
            "answer in s": round(time.monotonic() - begin, 4),
            "size in bytes": state.f_blocks * state.f_frsize,
            "free bytes": state.f_bavail * state.f_frsize,
        }
        if state.f_files:
            found["inodes"] = state.f_files
            found["free inodes"] = state.f_favail
    except OSError as error:
        found = {"problem": os.strerror(error.errno or 0)}
    os.write(channel, json.dumps(found).encode())
    os._exit(0)
