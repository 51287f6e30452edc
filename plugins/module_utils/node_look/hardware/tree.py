# SPDX-License-Identifier: Apache-2.0
"""Read /proc, /sys and /etc of this machine or of a recorded tree, and run vendors' tools with a deadline."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import stat
import subprocess
import time
from typing import Callable, NamedTuple

_SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/ipmitool/bin")
_MOST_BYTES = 1 << 20  # of a file of /proc or /sys
_MOST_OUTPUT = 1 << 24  # of a tool
_BLOCK = 1 << 16
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
