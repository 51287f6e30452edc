# SPDX-License-Identifier: Apache-2.0
"""Take a pack from another node piece by piece, check each piece, and let the next node take it meanwhile.

The module ``artifact_spread`` sends this text to each node by ssh. The node that takes sends it on to the node that
gives. It changes one file of the jobs' user, and needs the standard library of Python 3.9 alone. It ends when its
standard input ends, and removes its file unless it was told to keep it.
"""

# pathlib is slow to import, and this program runs on every node.
# ruff: noqa: PTH108, PTH118

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import select
import shlex
import stat
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

Json = Dict[str, Any]

# argv[1] is the size of this text in bytes; it stands at the beginning of standard input.
# One line for every login shell, and unbuffered: what follows the text is not for Python's own buffer.
READ_TEXT = (
    "import sys;f=open(0,'rb',0,closefd=False);t=b'';n=int(sys.argv[1]);"
    "exec('while len(t)<n:t+=f.read(n-len(t)) or sys.exit(1)');exec(t)"
)
_CHUNK = 1 << 18
_GROWTH_POLL_S = 0.01
_REPORT_S = 0.2
_MOST_SAID = 300
_MOST_OF_A_PIPE = 1 << 16  # bytes
_END_S = 2.0
_MOST_NOISE = 1 << 16  # bytes that a login may print before the mark


def command(python: str, text: bytes) -> str:
    """Return the command line that runs this text, for the remote shell."""
    return shlex.join([python, "-I", "-c", READ_TEXT, str(len(text))])


class Pace:
    """Spread bytes over time, so that at most so many leave within a second; 0 is without a limit."""

    def __init__(self, bytes_per_s: float) -> None:
        """Start now."""
        self._rate, self._free_at = bytes_per_s, time.monotonic()

    def wait_s(self, size: int) -> float:
        """Return how long to wait before so many bytes may leave."""
        if self._rate <= 0:
            return 0.0
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        return self._free_at - now


def open_regular(path: str) -> int:
    """Open a regular file for reading, through no link.

    Raises:
        OSError: it is missing, or something else is in its place.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def give(request: Json) -> int:
    """Write a file from an offset on to standard output, as it grows, until its whole size or the end of stdin."""
    handle = open_regular(str(request["path"]))
    at, size = int(request["offset"]), int(request["size"])
    pace = Pace(float(request["bytes_per_s"]))
    os.write(1, f"{request['mark']}\n".encode())
    while at < size:
        data = os.pread(handle, min(_CHUNK, size - at), at)
        if _input_ended(pace.wait_s(len(data)) if data else _GROWTH_POLL_S):
            return 1
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]
        at += len(data)
    return 0


def _input_ended(wait_s: float) -> bool:
    """Wait, and tell whether standard input has ended."""
    until = time.monotonic() + wait_s
    while True:
        left = max(0.0, until - time.monotonic())
        if not select.select([0], [], [], left)[0]:
            return False
        if not os.read(0, _CHUNK):
            return True


class Source:
    """The ssh connection to the node that gives, and what has come over it."""

    def __init__(self, request: Json, origin: Json, offset: int) -> None:
        """Connect."""
        self.name = str(origin["name"])
        text: bytes = globals()["t"] if "t" in globals() else own_text()
        asked = {
            "do": "give",
            "path": origin["path"],
            "offset": offset,
            "size": request["size"],
            "bytes_per_s": request["bytes_per_s"],
            "mark": request["mark"],
        }
        self._mark = f"{request['mark']}\n".encode()
        self._marked = False
        self.process = subprocess.Popen(
            [*request["ssh"], "--", self.name, command(str(origin["python"]), text)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
        )
        self.buffer = bytearray()
        stdin, stdout = self.process.stdin, self.process.stdout
        self.descriptor = stdout.fileno() if stdout else -1
        with contextlib.suppress(OSError):  # the reading says why
            if stdin:
                stdin.write(text + json.dumps(asked).encode() + b"\n")
                stdin.flush()

    def read(self) -> bool:
        """Take what has come; False at the end."""
        data = os.read(self.descriptor, _CHUNK)
        self.buffer += data
        if data and not self._marked:
            found = self.buffer.find(self._mark)
            if found >= 0:
                self._marked = True
                del self.buffer[: found + len(self._mark)]
            elif len(self.buffer) > _MOST_NOISE:
                return False
        return bool(data)

    def whole(self, size: int) -> bool:
        """Whether so many bytes of the file have come."""
        return self._marked and len(self.buffer) >= size

    def close(self) -> str:
        """End the connection, and return its last words."""
        said = ended(self.process)
        lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][:_MOST_SAID] if lines else ""


def ended(process: "subprocess.Popen[bytes]") -> bytes:
    """End ssh, and return what waits in the pipe of its errors; a program that it has started may keep that open."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # a file system that does not answer may hold it
        process.wait(_END_S)
    said = b""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                if stream is process.stderr:
                    os.set_blocking(stream.fileno(), False)
                    said = os.read(stream.fileno(), _MOST_OF_A_PIPE)
            with contextlib.suppress(OSError):
                stream.close()
    return said


def own_text() -> bytes:
    """Return the text of this file, where it was imported."""
    with open(__file__, "rb") as stream:  # noqa: PTH123 - see above
        return stream.read()


class Taker:
    """Takes the pack into a file of its own, and reports every step to the head of the chain."""

    def __init__(self, request: Json) -> None:
        """Read the request; nothing is touched yet."""
        self._request = request
        self._size, self._piece = int(request["size"]), int(request["piece_bytes"])
        self._sums = base64.b64decode(request["sums"])
        self._path, self._handle = "", -1
        self._have = 0
        self._source: Optional[Source] = None
        self._lines = b""
        self._reported = 0.0

    def say(self, event: str, **more: Any) -> None:
        """Write one line to the head."""
        line = f"{self._request['mark']} {json.dumps({'event': event, **more})}\n".encode()
        os.write(1, line)

    def run(self) -> int:
        """Take the pack; returns the exit status."""
        if os.path.lexists(str(self._request["marker"])):
            self.say("has")
            return 0
        place = self._make_file()
        if place < 0:
            return 0
        kept = False
        try:
            self.say("ready", folder=place)
            kept = self._work()
        except OSError as error:
            self.say("refused", why=f"{self._path}: {error.strerror or error}")
        finally:
            if self._source:
                self._source.close()
            os.close(self._handle)
            if not kept:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
        return 0 if kept else 1

    def _make_file(self) -> int:
        """Make the file in the first folder that has room and lets this user write; returns its place, or -1."""
        why = []
        for place, folder in enumerate(self._request["folders"]):
            path = os.path.join(str(folder), str(self._request["file"]))
            try:
                room = os.statvfs(str(folder))
                if room.f_bavail * room.f_frsize < self._size:
                    why.append(f"{folder} has too little room")
                    continue
                self._handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                why.append(f"{folder}: {error.strerror}")
                continue
            self._path = path
            return place
        self.say("refused", why="; ".join(why))
        return -1

    def _work(self) -> bool:
        """Take pieces and orders until the end of stdin; returns whether the file is to be kept."""
        while True:
            waiting: List[int] = [0] + ([self._source.descriptor] if self._source else [])
            ready = select.select(waiting, [], [], 1.0)[0]
            if 0 in ready:
                data = os.read(0, _CHUNK)
                if not data:
                    return False
                self._lines += data
                while b"\n" in self._lines:
                    line, _unused, self._lines = self._lines.partition(b"\n")
                    order = json.loads(line)
                    if order.get("keep"):
                        return self._have == self._size
                    self._take_from(order["from"])
                    ready = []  # of the former source
            if self._source and self._source.descriptor in ready:
                self._take(self._source)

    def _take_from(self, origin: Json) -> None:
        if self._source:
            self._source.close()
        self._source = Source(self._request, origin, self._have) if self._have < self._size else None

    def _take(self, source: Source) -> None:
        going_on = source.read()
        while self._have < self._size:
            size = min(self._piece, self._size - self._have)
            if not source.whole(size):
                break
            piece = bytes(source.buffer[:size])
            del source.buffer[:size]
            number = self._have // self._piece
            if hashlib.sha256(piece).digest() != self._sums[number * 32 : number * 32 + 32]:
                self._drop_source("damaged", f"piece {number} is not what the controller sent")
                return
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._handle, rest) :]
            self._have += size
        if self._have == self._size:
            source.close()
            self._source = None
            self.say("done")
        elif not going_on:
            self._drop_source("lost", "")
        elif time.monotonic() - self._reported > _REPORT_S:
            self._reported = time.monotonic()
            self.say("have", bytes=self._have)

    def _drop_source(self, event: str, why: str) -> None:
        source, self._source = self._source, None
        if source is not None:
            said = source.close()
            self.say(event, source=source.name, why=why or said, bytes=self._have)


def main() -> int:
    """Answer one request on standard input."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1)  # unbuffered: what follows belongs to the request's own reading
        if not data:
            return 1
        line += data
    request = json.loads(line)
    try:
        return give(request) if request["do"] == "give" else Taker(request).run()
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the connection'}: {error.strerror or error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
