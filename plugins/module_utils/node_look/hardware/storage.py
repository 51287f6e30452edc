# SPDX-License-Identifier: Apache-2.0
"""Disks, by their own judgement of their health, and file systems: whether they answer, and what is free."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .record import Answer, Json, Tree


# --- disks -----------------------------------------------------------------------------------------------------------
# smartctl's JSON is documented in smartctl(8) (--json); /proc/mdstat in md(4).

_BLOCK = "/sys/block"
_REAL = re.compile(r"^(sd[a-z]+|nvme\d+n\d+|vd[a-z]+|hd[a-z]+)$")
_ARRAY = re.compile(r"^(md\S+) : (active|inactive)\b(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_MEMBERS = re.compile(r"\[(\d+)/(\d+)\] \[[U_]+\]")
_CONTAINER = re.compile(r"super external:(?!/)")  # of the firmware's RAID; its volumes are the arrays
_TOOL_S = 2.0
_MOST_ASKED = 16
# Of the NVMe log (NVM Express base specification, SMART / Health Information): names by smartctl.
_NVME = (
    ("critical_warning", "critical warning"),
    ("percentage_used", "endurance used in percent"),
    ("available_spare", "spare in percent"),
    ("available_spare_threshold", "least spare in percent"),
)
# Of the attributes of ATA, by their number in smartctl's table.
_ATA = {5: "reallocated sectors", 187: "uncorrected errors", 197: "pending sectors", 198: "lost sectors"}
_LARGEST = 1 << 128  # counters of NVMe have 128 bits


def read_disks(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell of every disk on the bus, and of every array."""
    disks = [name for name in tree.names(_BLOCK) if _REAL.match(name)]
    for name in disks:
        base = f"{_BLOCK}/{name}/device"
        model = tree.text(f"{base}/model") or ""
        serial = tree.text(f"{base}/serial") or tree.text(f"{_BLOCK}/{name}/wwid") or tree.text(f"{base}/wwid") or ""
        firmware = tree.text(f"{base}/firmware_rev") or tree.text(f"{base}/rev") or ""
        if model or serial:
            answer.part("disk", name, " ".join(model.split()), " ".join(serial.split()), firmware)
        state = tree.text(f"{base}/state")
        if state:
            answer.reading("disk", name, "state", state)
    for array, state, rest in _ARRAY.findall(tree.text("/proc/mdstat") or ""):
        members = _MEMBERS.search(rest)
        if state == "inactive" and not _CONTAINER.search(rest):
            answer.reading("array", array, "state", state)
        elif members:
            answer.reading("array", array, "members", int(members.group(1)))
            answer.reading("array", array, "members working", int(members.group(2)))
    _smart(tree, answer, disks)


def _smart(tree: Tree, answer: Answer, disks: list[str]) -> None:
    physical = [name for name in disks if not name.startswith("vd")]
    smartctl = tree.tool("smartctl")
    if not physical:
        return
    if not smartctl:
        answer.unseen("disks' health", "smartctl (smartmontools) is not installed")
        return
    for name in physical[:_MOST_ASKED]:
        output = tree.run([smartctl, "--json=c", "-H", "-A", f"/dev/{name}"], _TOOL_S)
        try:
            found = json.loads(output.text)
        except ValueError:
            answer.unseen(f"health of {name}", output.problem or "smartctl answered without JSON")
            continue
        passed = _inner(found, "smart_status").get("passed")
        if not isinstance(passed, bool):
            answer.unseen(f"health of {name}", _message(found) or output.problem or "the disk tells none")
            continue
        answer.reading("disk", name, "healthy", passed)
        _wear(answer, name, found)


def _inner(found: object, name: str) -> Json:
    """Return an object within an object, an empty one where something else is there."""
    inner = found.get(name) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _message(found: object) -> str:
    told = _rows(_inner(found, "smartctl").get("messages"))
    return str(told[0].get("string", "")) if told else ""


def _wear(answer: Answer, name: str, found: Json) -> None:
    """Tell the wear and the errors of a disk; a count that is not a plain number is left out."""
    log = _inner(found, "nvme_smart_health_information_log")
    for key, word in _NVME:
        if _is_count(log.get(key)):
            answer.reading("disk", name, word, log[key])
    if _is_count(log.get("media_errors")):
        answer.counter("disk", name, "media errors", log["media_errors"])
    for row in _rows(_inner(found, "ata_smart_attributes").get("table")):
        value, number = _inner(row, "raw").get("value"), row.get("id")
        if _is_count(value) and _is_count(number) and number in _ATA:
            answer.counter("disk", name, _ATA[number], value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


# --- file systems ----------------------------------------------------------------------------------------------------
# Each is asked by a child process of its own, because a question to a dead server waits in the kernel for ever. One
# that does not answer soon waits beside the others, so that several dead ones take no longer than one.
#
# The format of the list of mounts is that of /proc/self/mounts in proc(5), which is fstab(5)'s.

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


def read_file_systems(tree: Tree, answer: Answer, request: Json) -> None:
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
