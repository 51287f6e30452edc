# SPDX-License-Identifier: Apache-2.0
"""Run every section of the look at the hardware, each with a deadline, and join what they found."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import signal
import stat
import subprocess
import sys
import time
from importlib import import_module
from typing import Callable, NamedTuple

# Read /proc, /sys and /etc of this machine or of a recorded tree, and run vendors' tools with a deadline.

_SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/ipmitool/bin")
_MOST_BYTES = 1 << 20  # of a file of /proc or /sys
_MOST_OUTPUT = 1 << 24  # of a tool
_TOOL_S = 4.0
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
# What a kernel answers where a file exists and the hardware has no such thing.
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODATA})


class Output(NamedTuple):
    """What a tool answered; ``problem`` is a clause, '' if the tool ended with 0."""

    text: str
    problem: str = ""


class Tree:
    """The files of a machine, below a root folder.

    Attributes:
        problems: why a path that exists could not be read, or not to its end, by path. A missing path is no problem.
    """

    def __init__(
        self,
        root: str = "",
        tools: str = "",
        *,
        seconds: float = 60.0,
        patience: float = 1.0,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Take the root folder of a recorded tree and the folder of its tools; both are empty for this machine.

        Args:
            root: the folder, without a slash at its end.
            tools: the one folder in which tools are looked for; a recorded tree without it has no tools.
            seconds: from now, how long tools may run in all.
            patience: a tool may run for so many times the time that it is given.
            note: hears the path or the tool before it is read.
        """
        self._until = time.monotonic() + seconds
        self._patience = patience
        self.root = root
        self.problems: dict[str, str] = {}
        self._folders = (tools,) if tools else (() if root else _SEARCH_PATH)
        self._note = note or (lambda _path: None)

    @property
    def recorded(self) -> bool:
        """Whether this is a recorded tree, in which system calls say nothing about the machine."""
        return bool(self.root)

    def calls(self, section: str) -> dict:
        """Return what system calls answered to a section on the recorded machine, by path.

        A recorded tree has it as JSON in ``calls/SECTION.json``; {} without that file, and on this machine.
        """
        text = self.text(f"/calls/{section}.json") if self.root else None
        return json.loads(text) if text else {}

    def text(self, path: str) -> str | None:
        """Return the text of a file without surrounding blanks, None if it is missing or cannot be read."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip("\0 \t\r\n")

    def data(self, path: str, most: int = _MOST_BYTES) -> bytes | None:
        """Return the content of a file, its first MiB or so many bytes; None if it is missing or cannot be read."""
        self._note(path)
        try:
            handle = os.open(self.root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    return None
                found = self._all(handle, most)
            finally:
                os.close(handle)
        except OSError as error:
            self._failed(path, error)
            return None
        if len(found) > most:
            self.problems[path] = f"only its first {most >> 20} MiB were read"
        return found[:most]

    @staticmethod
    def _all(handle: int, most: int) -> bytes:
        found = bytearray()
        while len(found) <= most:
            block = os.read(handle, _BLOCK)
            if not block:
                break
            found += block
        return bytes(found)

    def _failed(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT and error.errno not in _UNSUPPORTED:
            self.problems[path] = os.strerror(error.errno or 0)

    def number(self, path: str) -> int | None:
        """Return the integer that a file begins with (decimal, or hexadecimal with 0x), None if there is none."""
        words = (self.text(path) or "").split()
        try:
            return int(words[0], 0) if words else None
        except ValueError:
            return int(words[0]) if words[0].lstrip("-").isdigit() else None

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, [] if it is missing or cannot be read."""
        self._note(path)
        try:
            return sorted(os.listdir(self.root + path))
        except OSError as error:
            self._failed(path, error)
            return []

    def link(self, path: str) -> str:
        """Return the last part of a link's target, '' if the path is not a link. A PCI device is named by it."""
        self._note(path)
        try:
            return os.path.basename(os.readlink(self.root + path))
        except OSError as error:
            self._failed(path, error)
            return ""

    def exists(self, path: str) -> bool:
        """Whether a path is there; a link must lead somewhere."""
        self._note(path)
        try:
            os.stat(self.root + path)
        except OSError as error:
            self._failed(path, error)
            return False
        return True

    def tool(self, name: str) -> str:
        """Return the path of a tool in the system's folders, '' if it is not installed."""
        for folder in self._folders:
            path = f"{folder}/{name}"
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                return path
        return ""

    def run(self, argv: list[str], seconds: float = _TOOL_S) -> Output:
        """Run a tool, and return its output; it and what it started are killed after that many seconds."""
        words = " ".join([os.path.basename(argv[0]), *argv[1:]])
        seconds = min(seconds * self._patience, max(0.0, self._until - time.monotonic()))
        self._note(words)
        environment = {"PATH": ":".join(_SEARCH_PATH), "LC_ALL": "C", "LANG": "C"}
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Output("", f"{words} does not start: {os.strerror(error.errno or 0)}")
        text, why = _read_until(process, time.monotonic() + seconds, seconds)
        if why:
            return Output(text, f"{words} {why}")
        if process.returncode:
            return Output(text, f"{words} ended with {process.returncode}: {_last_line(text)}".rstrip(": "))
        return Output(text, "" if text.strip() else f"{words} printed nothing")


def _read_until(process: subprocess.Popen, deadline: float, seconds: float) -> tuple[str, str]:
    """Return what a process wrote, and why it was killed; '' where it ended by itself."""
    handle = process.stdout.fileno() if process.stdout else -1  # a pipe
    found, why, ended = b"", "", False
    while not why and not ended:
        if select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(handle, _BLOCK)
            ended = not block
            found += block
            if len(found) > _MOST_OUTPUT:
                why = f"printed more than {_MOST_OUTPUT >> 20} MiB"
        else:
            why = f"did not end within {seconds:.1f} s"
    if not why:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"did not end within {seconds:.1f} s"
    if why:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    return found.decode("utf-8", "replace"), why


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


# --- record ----------------------------------------------------------------------------------------------------------
# The sections run in a child process. A section that hangs, on a dead file system or a dead device, is left behind: the
# child is killed, another one goes on with the next section, and ``unseen`` says what was being read.

Json = dict
SCHEMA_VERSION = 1
# Section: the module that has its function, in this order; a section that may hang comes late.
SECTIONS = {
    "kernel_log": "kernel_log",
    "memory_errors": "machine",
    "machine_checks": "machine",
    "processors": "machine",
    "ssh_server": "machine",
    "board": "machine",
    "blocked": "machine",
    "shared_memory": "machine",
    "interfaces": "network",
    "rdma_counters": "network",
    "interface_counters": "network",
    "rdma_ports": "network",
    "lossless": "network",
    "pci": "gpus",
    "nvidia_smi": "gpus",
    "nvlink": "gpus",
    "disks": "storage",
    "sensors": "machine",
    "file_systems": "storage",
}
ON_REQUEST = {"fabric": "network"}  # of one node alone, since it tells the same everywhere
_SECTION_S = 6.0
_TOOLS_PART = 0.75  # of a section's time, so that a tool that hangs is killed before its section is
_ALL_S = 20.0
_SHOWN_PROBLEMS = 3
_MOST_NOTE = 400
_BLOCK = 1 << 16
_FORMS = ("reading", "counter", "event", "part", "unseen")


class Answer:
    """What the sections found, sent to the parent process as it is found.

    A ``device`` is the name under which an administrator knows it: ``0000:3b:00.0`` for a GPU or another PCI device,
    ``eth0``, ``mlx5_0/1`` for a port of RDMA, ``nvme0``, ``/scratch``, '' for the node itself.
    """

    def __init__(self, channel: int) -> None:
        """Take the writing end of a pipe."""
        self._channel = channel
        self._lines: list[str] = []

    def reading(self, kind: str, device: str, name: str, value: str | float | bool) -> None:
        """Tell a state: a setting, a speed, a width. States are compared between nodes, or with what is right."""
        self._put("reading", kind, device, name, value)

    def counter(self, kind: str, device: str, name: str, value: int) -> None:
        """Tell a number that only grows until it wraps or is reset. Its growth is judged, not its size."""
        self._put("counter", kind, device, name, value)

    def event(self, at: float, source: str, device: str, code: str, text: str) -> None:
        """Tell a line of a log: seconds since the epoch, ``xid``, ``link`` and so on, and the words of the log."""
        self._put("event", at, source, device, code, text[:_MOST_NOTE])

    def part(self, kind: str, place: str, model: str, serial: str, firmware: str = "", uuid: str = "") -> None:
        """Tell a part that can be swapped, with its serial number or another name that stays with it, or both."""
        self._put("part", kind, place, model, serial, firmware, uuid)

    def unseen(self, what: str, why: str) -> None:
        """Tell what could not be looked at, and why, in a clause."""
        self._put("unseen", what, why[:_MOST_NOTE])

    def mark(self, word: str, section: str) -> None:
        """Tell that a section begins or has ended, and send all until now."""
        self._put(word, section)
        data = ("\n".join(self._lines) + "\n").encode()
        self._lines.clear()
        while data:
            data = data[os.write(self._channel, data) :]

    def _put(self, *entry: object) -> None:
        self._lines.append(json.dumps(entry))


class _Note:
    """The path or tool that the child reads now, in memory that both processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[:_MOST_NOTE]
        self._memory[: len(data) + 1] = data + b"\0"

    def read(self) -> str:
        return self._memory[: _MOST_NOTE + 1].split(b"\0")[0].decode("utf-8", "replace")


def collect(request: Json) -> Json:
    """Return what can be seen of this node's hardware.

    Args:
        request: all keys are optional.

            - ``sections``: names of the sections to run; the default is all but those on request.
            - ``since``: seconds since the epoch; older events are left out.
            - ``root`` and ``tools``: a recorded tree and the folder of its tools, instead of this machine.
            - ``section_s`` and ``all_s``: deadlines of a section and of all sections, in seconds.
            - ``file_system_s``: how long a file system may take to answer, in seconds; the default is 2.
            - ``patience``: by how much tools may be slower than on a machine that is not busy; the default is 1.

    Returns:
        A JSON-ready dict of schema :data:`SCHEMA_VERSION`. ``readings``, ``counters``, ``events``, ``parts`` and
        ``unseen`` are lists of rows, see :class:`Answer` for their columns.
    """
    found: Json = {f"{form}s" if form != "unseen" else form: [] for form in _FORMS}
    tree = Tree(request.get("root", ""), request.get("tools", ""))
    boot_id = tree.text("/proc/sys/kernel/random/boot_id") or ""
    uptime = (tree.text("/proc/uptime") or "0").split()
    asked = request.get("sections")
    waiting = [name for name in (*SECTIONS, *ON_REQUEST) if name in (SECTIONS if asked is None else asked)]
    deadline = time.monotonic() + float(request.get("all_s") or _ALL_S) * _patience(request)
    while waiting:
        waiting = _child(request, waiting, deadline, found)
    return {
        "schema_version": SCHEMA_VERSION,
        "time": time.time(),
        "boot_id": boot_id,
        "uptime_s": float(uptime[0]) if uptime[0].replace(".", "", 1).isdigit() else 0.0,
        "as_root": os.geteuid() == 0,
        **found,
    }


def _child(request: Json, names: list[str], deadline: float, found: Json) -> list[str]:
    """Run sections in a child until all have ended or one hangs, and return those that are left."""
    note = _Note()
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _sections(request, names, note, writing)
    os.close(writing)
    left = list(names)
    stopped = _follow(reading, left, deadline, _section_s(request), found)
    os.close(reading)
    if stopped:
        _kill(process)
        where = f" while it read {note.read()}" if note.read() else ""
        for name in left if stopped == "all" else left[:1]:
            found["unseen"].append([name, f"no answer in time{where if name == left[0] else ''}"])
        return [] if stopped == "all" else left[1:]
    status = os.waitpid(process, 0)[1]
    if left:  # it died
        found["unseen"].append([left[0], f"the program that looked ended with status {status}"])
    return left[1:]


def _section_s(request: Json) -> float:
    return float(request.get("section_s") or _SECTION_S) * _patience(request)


def _patience(request: Json) -> float:
    return float(request.get("patience") or 1.0)


def _follow(channel: int, left: list[str], deadline: float, section_s: float, found: Json) -> str:
    """Take the rows of a child until it ends: 'section' if one took too long, 'all' if there is no time left."""
    rest, until = b"", time.monotonic() + section_s
    while True:
        now = time.monotonic()
        if now >= min(until, deadline):
            return "all" if now >= deadline else "section"
        if not select.select([channel], [], [], min(until, deadline) - now)[0]:
            continue
        block = os.read(channel, _BLOCK)
        if not block:
            return ""
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            form, *row = json.loads(line)
            if form == "end":
                left.remove(row[0])
                until = time.monotonic() + section_s
            elif form != "begin":
                found[form if form == "unseen" else f"{form}s"].append(row)


def _kill(process: int) -> None:
    """Kill a child and what it started; one that cannot end now is left to init."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(process, signal.SIGKILL)
    for _unused in range(20):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.01)


def _sections(request: Json, names: list[str], note: _Note, channel: int) -> None:
    """Run sections in this child process, and end it. It holds no stream of its parent, so that it cannot keep ssh."""
    status = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        answer = Answer(channel)
        for name in names:
            tree = Tree(
                request.get("root", ""),
                request.get("tools", ""),
                seconds=_TOOLS_PART * _section_s(request),
                patience=_patience(request),
                note=note.write,
            )
            answer.mark("begin", name)
            try:
                module = import_module(f"{__package__}.{SECTIONS.get(name) or ON_REQUEST[name]}")
                getattr(module, f"read_{name}")(tree, answer, request)
            except Exception as error:  # noqa: BLE001 - one failed section leaves the others alone
                answer.unseen(name, f"{type(error).__name__}: {error}")
            for path, why in list(tree.problems.items())[:_SHOWN_PROBLEMS]:
                answer.unseen(name, f"{path}: {why}")
            if len(tree.problems) > _SHOWN_PROBLEMS:
                answer.unseen(name, f"{len(tree.problems) - _SHOWN_PROBLEMS} more paths")
            answer.mark("end", name)
        status = 0
    finally:
        os._exit(status)


def main(arguments: list[str]) -> int:
    """Print the record of this node, and return 0.

    Args:
        arguments: the request as JSON, or else variables of the session that called sudo, which are not needed here.
            Without a request among them, the request is on stdin.
    """
    given = arguments[0] if arguments and arguments[0].startswith("{") else sys.stdin.buffer.read().decode("utf-8")
    record = collect(json.loads(given or "{}"))
    sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
