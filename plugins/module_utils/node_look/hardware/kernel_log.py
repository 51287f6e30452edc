# SPDX-License-Identifier: Apache-2.0
"""Lines of the kernel's log that tell of failing hardware, from /dev/kmsg or from the journal.

A record of /dev/kmsg is ``priority,sequence,microseconds,flags;text`` (Documentation/ABI/testing/dev-kmsg of Linux).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .record import Answer, Json, Tree


_KMSG = "/dev/kmsg"
_RECORD = 1 << 13  # the kernel gives no longer one
_MOST_LINES = 200_000  # the newest that are kept
_MOST_READ = 1_000_000  # a log may grow as fast as it is read
_MOST_KINDS = 200
_MOST_OF_A_KIND = 10  # the newest; a reading has the number of all
_JOURNAL_LINES = 100_000  # the newest: mostly less than a tool may print
_JOURNAL_S = 4.0
_DAY_S = 86400.0
_PCI = r"(?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_SWITCH = r"\((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\)"
_GPU = r"(?P<device>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_BLOCK, _DISK = r"(?:\w+: )?", r"(?P<device>(?!loop|fd|sr)\w+)"
_NIC = r"(?:[\w.:-]+ ){0,2}(?P<device>[\w.-]+): "
# source, pattern with the groups device and code (both optional); the first that matches a line from its begin counts.
# Where a format is documented: tests/data/hardware/README.md. The kernel writes of a process that crashes
# "NAME[PID]: segfault at … in FILE[…]", and any user chooses FILE and 15 characters of NAME.
_PATTERNS = tuple(
    (source, re.compile(pattern))
    for source, pattern in (
        ("xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d+)"),
        # Lines with 'Severity' and 'Data' that follow repeat the code.
        ("sxid", r"(?:nvidia-)?nvswitch\d*: SXid " + _SWITCH + r": (?P<code>\d+, (?:Non-fatal|Fatal))"),
        ("nvrm", r"NVRM: GPU (?P<device>[0-9a-fA-F:.]+): RmInitAdapter (?P<code>failed)"),
        # One record of several lines (open-gpu-kernel-modules, nv-pci.c), or one line after an Xid 79.
        ("nvrm", r"NVRM: (?:The NVIDIA )?GPU (?:at )?" + _GPU + r":?(?=\s|\\x0a).{0,120}?(?P<code>fallen off the bus)"),
        ("aer", r"(?:[\w-]+ )?" + _PCI + r": (?:AER: )?PCIe Bus Error: severity=(?P<code>\w+(?: \([\w-]+\))?)"),
        ("mce", r"mce: \[Hardware Error\]: CPU (?P<device>\d+): Machine Check.*Bank \d+: (?P<code>[0-9a-f]{16})"),
        ("edac", r"EDAC (?P<device>MC\d+): \d+ (?P<code>CE|UE) \w"),
        ("oom", r"(?P<device>)Out of memory: Kill(?:ed)? process \d+ \((?P<code>[^)]*)\)"),
        ("io", _BLOCK + r"(?P<code>I/O|critical (?:medium|target|space allocation)) error, dev " + _DISK),
        ("io", r"(?P<code>EXT4-fs|BTRFS) (?:error|critical) \(device (?P<device>[\w-]+)\)"),
        (
            "io",
            r"(?P<code>XFS) \((?P<device>[\w-]+)\): (?:metadata I/O error|log I/O error|Corruption|[^\[]*[Ss]hutdown)",
        ),
        ("io", r"nvme (?P<device>nvme\d+): (?P<code>controller is down|I/O .*timeout)"),
        ("hung", r"INFO: task (?P<code>\S+):\d+ blocked for more than \d+ seconds"),
        ("lockup", r"(?:NMI )?(?:watchdog: )?BUG: (?P<code>soft) lockup - (?P<device>CPU#\d+) stuck for \d+s"),
        ("lockup", r"(?:NMI )?watchdog: Watchdog detected (?P<code>hard) LOCKUP on (?P<device>cpu \d+)"),
        ("lockup", r"(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?(?P<code>stall)"),
        (
            "module",
            r"mlx5_core " + _PCI + r": .{0,80}?Port module event\[error\]: module \d+, (?P<code>[\w ,/-]{1,80})",
        ),
        ("nic", r"mlx5_core " + _PCI + r": .{0,80}?device's health (?P<code>compromised)"),
        ("neighbours", r"(?:\w+: ){0,2}(?P<device>)[Nn]eighbou?r (?P<code>table overflow)"),
        ("link", _NIC + r"(?:\w+: )?(?:[\w.-]+ )?(?:NIC )?Link (?:is )?(?P<code>[Dd]own|DOWN)(?=$|[\s.,;])"),
    )
)
# A word of the line that decides what a code asks for (NVIDIA, "Analyzing Xid Errors with the Xid Catalog").
_XID_WORDS = {
    "154": re.compile(r" to 0x[0-9a-fA-F]+ \(([^()]+)\)"),  # GPU recovery action changed from 0x0 (None) to 0x1 (...)
    **dict.fromkeys(map(str, range(144, 151)), re.compile(r"\b(Nonfatal)\b")),
}
_UNCORRECTED = 1 << 61  # of a bank's status (Intel SDM, volume 3, IA32_MCi_STATUS.UC; AMD has the same bit)


def read_kernel_log(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the events since ``since``, by default those of the last day."""
    since = float(request.get("since") or time.time() - _DAY_S)
    lines = _ring(tree, answer)
    if lines is None:
        lines = _journal(tree, answer, since)
    if lines is None:
        answer.unseen("kernel log", tree.problems.pop(_KMSG, "neither /dev/kmsg nor the journal can be read"))
        return
    tree.problems.pop(_KMSG, None)
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = {}  # the newest first
    left_out = 0
    for at, text in reversed(lines):
        event = _event(text) if at >= since else None
        if event is None:
            continue
        if event in found or len(found) < _MOST_KINDS:
            found.setdefault(event, []).append((at, text))
        else:
            left_out += 1
    for (source, device, code), events in reversed(list(found.items())):
        for at, text in reversed(events[:_MOST_OF_A_KIND]):
            answer.event(round(at, 3), source, device, code, text)
        if len(events) > _MOST_OF_A_KIND:
            answer.reading("kernel log", device, f"{source} {code}", len(events))
    if left_out:
        answer.unseen("kernel log", f"{left_out} older lines beyond the newest {_MOST_KINDS} kinds of events")


def _event(text: str) -> tuple[str, str, str] | None:
    """Return source, device and code of a line that tells of a fault."""
    for source, pattern in _PATTERNS:
        found = pattern.match(text)
        if found:
            groups = found.groupdict()
            code = groups.get("code") or ""
            if source == "xid" and code in _XID_WORDS:
                word = _XID_WORDS[code].search(text)
                code = f"{code}, {word.group(1)}" if word else code
            elif source == "mce":
                code = "uncorrected" if int(code, 16) & _UNCORRECTED else "corrected"
            elif source == "io" and code.startswith("I/O "):
                code = "timeout"
            return source, _pci(groups.get("device") or ""), code
    return None


def _pci(device: str) -> str:
    """Write a PCI address as sysfs does: with its domain and its function."""
    if not re.fullmatch(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?", device):
        return device
    *domain, bus, slot = device.lower().split(":")
    return f"{(domain or ['0000'])[0][-4:]}:{bus}:{slot if '.' in slot else slot + '.0'}"


def _ring(tree: Tree, answer: Answer) -> list[tuple[float, str]] | None:
    """Return the time and text of each of the newest lines in the kernel's ring, None if it cannot be read."""
    if tree.recorded:
        text = tree.text(_KMSG)
        all_records = None if text is None else iter(text.splitlines())
    else:
        all_records = _records(tree)
    if all_records is None:
        return None
    records: deque[str] = deque(maxlen=_MOST_LINES)
    count = 0
    for record in all_records:
        records.append(record)
        count += 1
    if _KMSG in tree.problems:
        if not count:
            return None
        answer.unseen("kernel log", tree.problems[_KMSG])
    if count > _MOST_LINES:
        answer.unseen("kernel log", f"records of /dev/kmsg before its newest {_MOST_LINES}")
    up = (tree.text("/proc/uptime") or "0").split()
    start = time.time() - float(up[0])
    found = []
    for record in records:
        head, _unused, text = record.partition(";")
        fields = head.split(",")
        if len(fields) >= 3 and fields[2].isdigit():  # noqa: PLR2004 - others continue a record, or are its dictionary
            found.append((start + int(fields[2]) / 1e6, text))
    return found


def _records(tree: Tree) -> Iterator[str] | None:
    """Return the first line of each record, None if the ring cannot be opened."""
    try:
        handle = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENOENT:
            tree.problems[_KMSG] = f"{_KMSG}: {os.strerror(error.errno or 0)}"
        return None
    return _read(tree, handle)


def _read(tree: Tree, handle: int) -> Iterator[str]:
    try:
        for _unused in range(_MOST_READ):
            try:
                yield os.read(handle, _RECORD).decode("utf-8", "replace").splitlines()[0]
            except BrokenPipeError:  # the ring overtook the reader
                continue
            except (BlockingIOError, IndexError):
                break
    except OSError as error:
        tree.problems[_KMSG] = f"{_KMSG}: {os.strerror(error.errno or 0)}"
    finally:
        os.close(handle)


def _journal(tree: Tree, answer: Answer, since: float) -> list[tuple[float, str]] | None:
    """Return the kernel's lines in the journal; a user needs the group adm or systemd-journal for it.

    The journal prints the newest line first, so that a cut loses the oldest ones.
    """
    journalctl = tree.tool("journalctl")
    if not journalctl:
        return None
    words = ["-k", "-q", "-r", "-o", "short-unix", "--no-pager", "-n", str(_JOURNAL_LINES), f"--since=@{int(since)}"]
    output = tree.run([journalctl, *words], _JOURNAL_S)
    found = []
    for line in output.text.split("\n"):  # any user chooses names that crash, with U+2028 in them
        at, _unused, rest = line.partition(" ")
        text = rest.partition(": ")[2]  # after 'host kernel'
        if text and at.replace(".", "", 1).isdigit():
            found.append((float(at), text))
        elif line.startswith(" ") and found:  # a record of several lines, which the ring writes so
            found[-1] = (found[-1][0], f"{found[-1][1]}\\x0a{line.strip()}"[:_RECORD])
    if not found:
        if not output.problem:
            answer.unseen("kernel log", "journalctl -o short-unix printed no line with a time")
        return None if output.problem else []
    if output.problem:
        answer.unseen("kernel log", f"older lines of the journal, since {output.problem}")
    elif len(found) >= _JOURNAL_LINES:
        answer.unseen("kernel log", f"the journal's lines before its newest {_JOURNAL_LINES} of the day")
    return found[::-1]
