# SPDX-License-Identifier: Apache-2.0
"""File systems: whether they answer, how fast, whether they may be written to, and what is free.

Each is asked by a child process of its own, because a question to a dead server waits in the kernel for ever. One that
does not answer soon waits beside the others, so that several dead ones take no longer than one.

The format of the list of mounts is that of /proc/self/mounts in proc(5), which is fstab(5)'s.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

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
_SOON_S = 0.05  # then the next one is asked beside it; 60 dead ones then fit into the section's deadline
_MOST = 60
_HANGS = "hangs"  # of a recorded answer: there was none
_ENTRIES = 64  # of a folder; a listing goes to the server, where statvfs may come from a cache


class _Question(NamedTuple):
    place: str
    channel: int
    process: int
    until: float


def read(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell of every file system that jobs could use, the remote ones last."""
    found = sorted(mounts(tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or ""), key=lambda one: one[2])
    patience = float(request.get("file_system_s") or _ANSWER_S)
    recorded = tree.calls("file_systems")
    open_questions: list[_Question] = []
    for place, kind, remote, options in found[:_MOST]:
        answer.reading("filesystem", place, "type", kind)
        answer.reading("filesystem", place, "remote", remote)
        answer.reading("filesystem", place, "read-only", "ro" in options)
        if place in recorded or not tree.recorded:
            question = _ask(place, recorded.get(place), patience)
            if not _take(question, answer, _SOON_S):
                open_questions.append(question)
    for question in open_questions:
        if not _take(question, answer, max(0.0, question.until - time.monotonic())):
            os.kill(question.process, signal.SIGKILL)
            os.close(question.channel)
            answer.reading("filesystem", question.place, "answers", value=False)
    if len(found) > _MOST:
        answer.unseen("file systems", f"{len(found) - _MOST} of {len(found)} were not asked")


def mounts(text: str) -> list[tuple[str, str, bool, list[str]]]:
    """Return each place once, its type, whether it is remote, and its options, from the text of /proc/mounts."""
    found: dict[str, tuple[str, str, bool, list[str]]] = {}
    for line in text.split("\n"):
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


def _ask(place: str, recorded: Json | None, patience: float) -> _Question:
    """Ask one file system in a child process. It holds no channel but its own."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _answer(place, recorded, writing)
    os.close(writing)
    return _Question(place, reading, process, time.monotonic() + patience)


def _take(question: _Question, answer: Answer, seconds: float) -> bool:
    """Tell the answer if it comes within so many seconds, and return whether it came."""
    if not select.select([question.channel], [], [], seconds)[0]:
        return False
    text = os.read(question.channel, 1 << 12)
    os.close(question.channel)
    os.waitpid(question.process, 0)
    place = question.place
    found = json.loads(text or b'{"problem": "the question ended early"}')
    if "problem" in found:
        answer.reading("filesystem", place, "problem", found["problem"])
        return True
    answer.reading("filesystem", place, "answers", value=True)
    for name, value in found.items():
        answer.reading("filesystem", place, name, value)
    return True


def _answer(place: str, recorded: Json | None, channel: int) -> None:
    if recorded and recorded.get(_HANGS):
        signal.pause()
    os.write(channel, json.dumps(_state(place) if recorded is None else recorded).encode())
    os._exit(0)


def _state(place: str) -> Json:
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
        found: Json = {
            "answer in s": round(time.monotonic() - begin, 4),
            "size in bytes": state.f_blocks * state.f_frsize,
            "free bytes": state.f_bavail * state.f_frsize,
        }
        if state.f_files:
            found["inodes"] = state.f_files
            found["free inodes"] = state.f_favail
    except OSError as error:
        return {"problem": os.strerror(error.errno or 0)}
    return found
