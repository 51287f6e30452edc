"""Run one command on this node under a deadline, and leave no process of it behind on any node.

The controller starts it over ssh. It needs the standard library only. It has three uses:

``job_supervisor.py``
    Reads one JSON line from stdin and keeps stdin open: ``{"job", "argv", "environment", "deadline_s", "files",
    "peers"}``. It starts ``argv`` in a session of its own and prints one JSON line per event on stdout: ``started``,
    ``line`` (one line of the command's output), ``ending`` (why the command is being ended), ``swept`` and, last,
    ``ended``. Three events end the command, with TERM and then KILL: ``deadline_s`` has passed (null: no deadline),
    stdin has closed (the controller is gone or wants an end), or this program gets TERM, HUP or INT. ``files`` are
    written into a folder of mode 0700, whose path replaces ``{work_dir}`` in ``argv``. The folder is removed at the
    end.

    Optional keys: ``raw`` sends the output as it comes, byte by byte (``data``, in base64), instead of by lines.
    ``port`` replaces ``{port}`` in ``argv`` by a free port, which is reserved as long as the job lasts. ``literal`` is
    the number of tokens at the end of ``argv`` that belong to the user; nothing is replaced in them. ``directory`` is
    where the command starts (default: the home). With ``stacks``, the end after the deadline waits until the controller
    has read where the ranks are. It waits for a byte on stdin, or a few seconds.

``job_supervisor.py --look``
    Reads one JSON line, ``{"names", "path", "directory"}``, and answers where this node has each of these files. A path
    counts from ``directory`` or the home. A bare name is an executable in one of the folders of ``path``.

``job_supervisor.py --sweep JOB``
    Kills every process of that job on this node and answers with one JSON line.

``job_members.py`` knows a job's processes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Tuple

import bounded_run
import job_look
from job_members import JOB_ID, JOB_VARIABLE, sweep, sweep_peer

# Read and check what the controller asks of the supervisor, and answer where this node has the files it names.

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PEER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
REQUEST_LIMIT = 16 * 1024 * 1024
REQUEST_WAIT_S = 60.0


def receive() -> bytes:
    """Return the request's line, or raise ValueError without one."""
    data = bytearray()
    end = time.monotonic() + REQUEST_WAIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while b"\n" not in data:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise ValueError("the request did not come in time")
            part = os.read(0, 65536)
            if not part:
                raise ValueError("stdin closed before a request came")
            data += part
            if len(data) > REQUEST_LIMIT:
                raise ValueError("the request is too long")
    return bytes(data).split(b"\n", 1)[0]


def checked(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request, or raise ValueError that says what is wrong."""
    if not JOB_ID.fullmatch(request["job"]):
        raise ValueError("the job id is malformed")
    if not request["argv"] or not all(isinstance(token, str) for token in request["argv"]):
        raise ValueError("argv is not a list of strings")
    if request["deadline_s"] is not None and not 0 < float(request["deadline_s"]) < float("inf"):
        raise ValueError("deadline_s is not a positive number")
    if not all(FILE_NAME.fullmatch(name) for name in request.get("files", {})):
        raise ValueError("a file name is malformed")
    if not all(PEER.fullmatch(peer["name"]) for peer in request.get("peers", [])):
        raise ValueError("a peer's name is malformed")
    return request


def look() -> int:
    """Say where this node has what a job is going to need."""
    request = json.loads(receive())
    answer = job_look.look(request["names"], request["path"], request.get("directory") or "")  # before the job
    print(json.dumps({"event": "looked", **answer}), flush=True)
    return 0


STACKS_WAIT_S = 7.0  # longer than the controller waits for the nodes
TERM_GRACE_S = 3.0  # mpirun needs a moment to tell its daemons; a paused node never answers it
TURN_S = 0.1  # how often deadlines are looked at
DRAIN_S = 1.0  # output that was written before the end is still read
PEERS_AT_ONCE = 32
FLUSH_WAIT_S = 10.0
BUFFER_LIMIT = 4 * 1024 * 1024  # beyond it the command's output waits in its pipe until the controller reads
LINE_LIMIT = 64 * 1024
ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Answers:
    """JSON lines to the controller, never waiting for it: a controller that hangs must not stop the deadline."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.broken = False
        os.set_blocking(descriptor, False)

    def put(self, **event: Any) -> None:
        """Queue one event and write what can be written."""
        if not self.broken:
            self.pending += json.dumps(event).encode() + b"\n"
            self.push()

    def push(self) -> None:
        """Write what the pipe takes now."""
        while self.pending and not self.broken:
            try:
                written = os.write(self.descriptor, self.pending[: 64 * 1024])
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno != errno.EINTR:
                    self.broken = True
                    self.pending.clear()
                continue
            del self.pending[:written]

    def flush(self, wait_s: float) -> None:
        """Write everything, for so long at most."""
        end = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.descriptor, selectors.EVENT_WRITE)
            while self.pending and not self.broken and time.monotonic() < end:
                selector.select(0.2)
                self.push()


class Lines:
    """Cut a stream into lines, however the reads fall."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now; no data means the end."""
        *complete, self.rest = (self.rest + data).split(b"\n")
        if self.rest and (not data or len(self.rest) > LINE_LIMIT):
            complete.append(self.rest)
            self.rest = b""
        return [line.decode("utf-8", "replace") for line in complete]


Streams = Dict[int, Tuple[str, Lines]]  # by descriptor; evaluated at run time, so in the words of Python 3.9


class Supervisor:
    """One job from its start to its last process."""

    def __init__(self, request: dict[str, Any], answers: Answers, work_dir: str) -> None:
        """Keep what the run needs; nothing starts here."""
        self.job = request["job"]
        ours = len(request["argv"]) - int(request.get("literal", 0))
        self.holder = reserved_port() if request.get("port") else None
        port = str(self.holder.getsockname()[1]) if self.holder else "{port}"
        self.argv = [
            token.replace("{work_dir}", work_dir).replace("{port}", port) if at < ours else token
            for at, token in enumerate(request["argv"])
        ]
        self.raw = bool(request.get("raw"))
        self.directory = request.get("directory") or job_look.home()
        # mpirun keeps its session in TMPDIR; a killed one cannot remove it, so it lies where all is removed at the end
        self.environment = {**os.environ, "TMPDIR": work_dir, **request.get("environment", {}), JOB_VARIABLE: self.job}
        self.deadline_s = float("inf") if request["deadline_s"] is None else float(request["deadline_s"])
        self.peers = request.get("peers", [])
        self.stacks = bool(request.get("stacks"))
        self.answers = answers
        self.selector = selectors.DefaultSelector()
        self.began = time.monotonic()
        self.ending: str | None = None
        self.term_at: float | None = None
        self.kill_at: float | None = None
        self.wakeup = os.pipe()
        self.process: subprocess.Popen[bytes]
        self.session = ""

    def elapsed(self) -> float:
        """Return the seconds since the command was started."""
        return round(time.monotonic() - self.began, 4)

    def run(self) -> dict[str, Any]:
        """Start the command, stay until it has ended, sweep, and return the last event."""
        for descriptor in self.wakeup:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self.wakeup[1])
        for number in (*ENDINGS, signal.SIGCHLD):  # the command's own end wakes the loop, which need not wait its turn
            signal.signal(number, lambda *_unused: None)  # the wake-up pipe carries it into the loop
        self.began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                cwd=self.directory,
                start_new_session=True,
            )
        except OSError as problem:
            return {"event": "ended", "reason": "not_started", "problem": str(problem), "seconds": self.elapsed()}
        self.session = f"{socket.gethostname()}-{self.process.pid}"
        self.answers.put(event="started", session=self.session, argv=self.argv)
        streams = {self.process.stdout.fileno(): ("stdout", Lines()), self.process.stderr.fileno(): ("stderr", Lines())}
        self.selector.register(0, selectors.EVENT_READ, "stdin")
        self.selector.register(self.wakeup[0], selectors.EVENT_READ, "signal")
        self.serve(streams)
        self.drain(streams)
        return self.finish(streams)

    def serve(self, streams: Streams) -> None:
        """Pass output on until the command has ended, and end it when its time has come."""
        while self.process.poll() is None:
            self.pump(streams, TURN_S)
            now = time.monotonic()
            if self.ending is None and now - self.began >= self.deadline_s:
                self.end("deadline")
            if self.term_at is not None and now >= self.term_at:
                self.terminate()
            if self.kill_at is not None and now >= self.kill_at:
                self.kill_at = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                sweep(self.job, wait_s=1.0)

    def pump(self, streams: Streams, wait_s: float) -> None:
        """Wait a little for any news and take it."""
        crowded = len(self.answers.pending) > BUFFER_LIMIT
        for descriptor in list(streams):
            registered = descriptor in self.selector.get_map()
            if crowded and registered:
                self.selector.unregister(descriptor)
            elif not crowded and not registered:
                self.selector.register(descriptor, selectors.EVENT_READ, "output")
        writing = self.answers.descriptor in self.selector.get_map()
        if self.answers.pending and not writing:
            self.selector.register(self.answers.descriptor, selectors.EVENT_WRITE, "answers")
        elif writing and not self.answers.pending:
            self.selector.unregister(self.answers.descriptor)
        for key, _unused in self.selector.select(wait_s):
            if key.data == "output":
                self.take(streams, key.fd)
            elif key.data == "signal":
                self.wake(os.read(key.fd, 1)[0])
            elif key.data == "stdin":
                self.hear()
        self.answers.push()

    def wake(self, number: int) -> None:
        """Take a signal: the end of the command needs nothing but that the loop looks."""
        if number in ENDINGS:
            self.end(f"signal {number}")

    def hear(self) -> None:
        """Read stdin: the controller is gone, or has its stacks."""
        if not os.read(0, 65536):
            self.selector.unregister(0)
            self.end("stdin_closed")
        elif self.term_at is not None:
            self.terminate()

    def take(self, streams: Streams, descriptor: int) -> None:
        """Read one stream and pass its complete lines on."""
        name, lines = streams[descriptor]
        data = os.read(descriptor, 65536)
        if self.raw and data:
            self.answers.put(event="data", stream=name, data=base64.b64encode(data).decode("ascii"))
        for text in [] if self.raw else lines.feed(data):
            self.answers.put(event="line", stream=name, at=self.elapsed(), text=text)
        if not data:
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
            del streams[descriptor]

    def end(self, reason: str) -> None:
        """Ask the command to end, after a moment for its stacks where it is late; KILL follows when it does not."""
        if self.process.poll() is not None:
            return
        if self.ending is None:
            self.answers.put(event="ending", reason=reason, at=self.elapsed())
            self.ending = reason
            if reason == "deadline" and self.stacks:
                self.term_at = time.monotonic() + STACKS_WAIT_S
            else:
                self.terminate()
        elif self.term_at is not None:  # the controller that wanted the stacks is gone
            self.ending = reason
            self.terminate()

    def terminate(self) -> None:
        """Send TERM; KILL follows."""
        self.term_at = None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + TERM_GRACE_S

    def drain(self, streams: Streams) -> None:
        """Read what was written before the end; a process that outlived the command may hold the pipe open."""
        end = time.monotonic() + DRAIN_S
        while streams and time.monotonic() < end:
            self.pump(streams, 0.05)

    def finish(self, streams: Streams) -> dict[str, Any]:
        """Sweep this node, and the others when the controller cannot, then report how the job ended."""
        found = sweep(self.job, self.session)
        for descriptor in list(streams):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError):
                self.take(streams, descriptor)
        self.answers.put(event="swept", host=None, **found)
        if self.ending is not None and self.ending != "deadline" and self.peers:
            with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
                session = ["--session", self.session]
                for answer in pool.map(lambda peer: sweep_peer(peer, session), self.peers):
                    self.answers.put(**answer)
        code = self.process.returncode
        return {
            "event": "ended",
            "reason": self.ending or "exited",
            "rc": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "seconds": self.elapsed(),
        }


def reserved_port() -> socket.socket:
    """Return a socket with a free port, which the kernel gives to no other process while the socket is open.

    It is bound and does not listen. It carries SO_REUSEADDR like the sockets of servers, so a server can bind it too.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder


def supervise() -> int:
    answers = Answers(1)
    try:
        request = checked(json.loads(receive()))
    except (KeyError, TypeError, ValueError) as problem:
        answers.put(event="ended", reason="bad_request", problem=str(problem), seconds=0.0)
        answers.flush(FLUSH_WAIT_S)
        return 2
    work_dir = tempfile.mkdtemp(prefix="clusterctl-", dir=bounded_run.scratch_folder())  # mode 0700
    try:
        for name, content in request.get("files", {}).items():
            Path(work_dir, name).write_text(content, encoding="utf-8")
        ended = Supervisor(request, answers, work_dir).run()
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    answers.put(**ended)
    answers.flush(FLUSH_WAIT_S)
    return 0


def main() -> int:
    """Choose between the uses."""
    parser = argparse.ArgumentParser(description="Run a command under a deadline and leave nothing of it behind.")
    parser.add_argument("--sweep", metavar="JOB", help="kill what is left of that job on this node")
    parser.add_argument("--look", action="store_true", help="say where this node has the files that stdin names")
    parser.add_argument("--session", default="", metavar="HOST-PID", help="of the mpirun that started it")
    arguments = parser.parse_args()
    if arguments.look:
        return look()
    if arguments.sweep is None:
        return supervise()
    if not JOB_ID.fullmatch(arguments.sweep):
        parser.error("the job id is malformed")
    print(
        json.dumps({"event": "swept", "host": socket.gethostname(), **sweep(arguments.sweep, arguments.session)}),
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
