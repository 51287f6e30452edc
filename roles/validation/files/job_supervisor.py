#!/usr/bin/env python3
"""Run one command on this node and leave nothing of it behind, on this node or on any other.

Three uses, all by ssh and all with the standard library alone:

``job_supervisor.py``
    Reads one JSON line from stdin and keeps stdin open: ``{"job", "argv", "environment", "deadline_s", "files",
    "peers"}``. Starts ``argv`` in a session of its own and answers with one JSON line per event on stdout:
    ``started``, ``line`` (one of the command's output lines), ``ending`` (why it is being ended), ``swept`` and, last,
    ``ended``. The command is ended (TERM, then KILL) when ``deadline_s`` (null: none) has passed, when stdin closes
    (the controller is gone or wants an end) and when this program is told to end. ``files`` are written into a folder
    of mode 0700 whose path replaces ``{work_dir}`` in ``argv``; the folder is removed at the end.

    Optional: ``raw`` has the output told as it comes, byte by byte (``data``, in base64) and not by lines; ``port`` has
    ``{port}`` in ``argv`` replaced by a free one, which is nobody else's as long as the job lasts; the last ``literal``
    tokens of ``argv`` are the user's, in which nothing is replaced; ``directory`` is where to start it (the home);
    ``stacks`` has the end wait after the deadline until the controller has seen where the ranks are: for a byte on
    stdin, or a few seconds.

``job_supervisor.py --look``
    Reads one JSON line, ``{"names", "path", "directory"}``, and says where this node has each of these files: by a path
    (from the folder, or the home) or, for a bare name, as an executable in one of ``path``'s folders.

``job_supervisor.py --sweep JOB``
    Kills whatever of that job is left on this node and answers with one JSON line.

A job's processes are known by its id alone: it stands in their environment (``CLUSTERCTL_JOB``), or on the command line
of Open MPI's daemons, which mpirun starts through ssh without that environment, as the value of ``clusterctl_job``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import glob
import json
import os
import re
import selectors
import shlex
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

JOB_VARIABLE = "CLUSTERCTL_JOB"
JOB_PARAMETER = "clusterctl_job"  # an MCA name of no component: mpirun passes it on to its daemons' command lines
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,63}")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PEER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")

REQUEST_LIMIT = 16 * 1024 * 1024
REQUEST_WAIT_S = 60.0
STACKS_WAIT_S = 7.0  # longer than the controller waits for the nodes
TERM_GRACE_S = 3.0  # mpirun needs a moment to tell its daemons; a paused node never answers it
DRAIN_S = 1.0  # output that was written before the end is still read
SWEEP_WAIT_S = 5.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Open MPI puts its segments
SEGMENT = re.compile(r"(?:sm|vader)_segment\.")
ORPHAN_WAIT_S = 0.3
PEER_WAIT_S = 15.0
PEERS_AT_ONCE = 32
FLUSH_WAIT_S = 10.0
BUFFER_LIMIT = 4 * 1024 * 1024  # beyond it the command's output waits in its pipe until the controller reads
LINE_LIMIT = 64 * 1024


# --- finding and killing what carries the job's id -------------------------------------------------------------------


def read_bytes(path: str) -> bytes:
    """Return a file of /proc, empty when the process is gone, is a zombie or belongs to somebody else."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def carries(pid: int, job: str) -> bool:
    """Whether that process belongs to the job, by its environment or by its arguments."""
    wanted = f"{JOB_VARIABLE}={job}".encode()
    if wanted in read_bytes(f"/proc/{pid}/environ").split(b"\0"):
        return True
    arguments = read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
    name, value = JOB_PARAMETER.encode(), job.encode()
    return any(token == name and arguments[at + 1] == value for at, token in enumerate(arguments[:-1]))


def members(job: str) -> list[int]:
    """Return the pids of the job on this node, Open MPI's daemons first, so that they start nothing anew."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != str(os.getpid())]
    found = [pid for pid in pids if carries(pid, job)]
    return sorted(found, key=lambda pid: (JOB_VARIABLE.encode() in read_bytes(f"/proc/{pid}/environ"), pid))


def command_of(pid: int) -> str:
    """Return what a human calls the process."""
    return read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]


def session_folder(pid: int) -> str | None:
    """Return the folder that Open MPI made for this process's job on this node, None where there is none."""
    for entry in read_bytes(f"/proc/{pid}/environ").split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == b"PMIX_SERVER_TMPDIR":
            path = os.fsdecode(value)
            return path if re.match(r"(prte|jf\.|ompi\.)", Path(path).name) else None
    return None


def shared_segments(pid: int) -> set[str]:
    """Return the files in /dev/shm that the process has mapped; a killed rank cannot remove its own."""
    text = read_bytes(f"/proc/{pid}/maps").decode("utf-8", "replace")
    return {match.group(1) for match in re.finditer(r"\s(/dev/shm/[^\n]+?)(?: \(deleted\))?\n", text)}


def orphaned_segments() -> set[str]:
    """Return Open MPI's shared memory of ours that no process has mapped: its ranks were killed by somebody else.

    A rank maps a segment as soon as it has made it, so what is unmapped at two looks is nobody's, of whatever job.
    """

    def unmapped() -> set[str]:
        files = [path for path in SHARED_MEMORY.glob("*_segment.*") if SEGMENT.match(path.name)]
        if not files:
            return set()
        mapped = {
            name for path in Path("/proc").iterdir() if path.name.isdigit() for name in shared_segments(int(path.name))
        }
        return {str(path) for path in files} - mapped

    found = unmapped()
    if found:
        time.sleep(ORPHAN_WAIT_S)
        found &= unmapped()
    return found


def kill(pid: int, job: str) -> bool:
    """Send KILL to a member, and to nobody who got its number in the meantime."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not carries(pid, job):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def daemon_folders(session: str) -> set[str]:
    """Return the folders that PRRTE's daemons of one mpirun made for themselves; a killed daemon leaves its own behind.

    Args:
        session: ``host-pid`` of mpirun; it is part of the name of a file in the folder.
    """
    pattern = f"prted.*/pmix.*.tool.prterun-{glob.escape(session)}@0"
    return {str(path.parent) for path in Path(tempfile.gettempdir()).glob(pattern)} if session else set()


def sweep(job: str, session: str = "", wait_s: float = SWEEP_WAIT_S) -> dict[str, Any]:
    """Kill every process of the job on this node and remove what they leave in /tmp and /dev/shm.

    Args:
        job: the job's id.
        session: ``host-pid`` of its mpirun, where that is known.
        wait_s: seconds until processes that KILL does not end are given up.

    Returns:
        ``{"killed": [{"pid", "command"}], "left": [...], "removed": [paths]}``; ``left`` is what KILL did not end in
        time (a process inside an uninterruptible system call).
    """
    killed: dict[int, str] = {}
    litter: set[str] = set()
    end = time.monotonic() + wait_s
    while True:
        present = members(job)
        if not present or time.monotonic() > end:
            break
        for pid in present:
            command, folder, segments = command_of(pid), session_folder(pid), shared_segments(pid)
            if kill(pid, job):
                killed.setdefault(pid, command)
                litter |= segments | ({folder} if folder else set())
        time.sleep(0.05)
    left = [{"pid": pid, "command": command_of(pid)} for pid in members(job)]
    litter |= daemon_folders(session) | orphaned_segments()
    removed = [] if left else [path for path in sorted(litter) if remove(path)]
    return {"killed": [{"pid": pid, "command": text} for pid, text in killed.items()], "left": left, "removed": removed}


def remove(path: str) -> bool:
    """Remove a file or folder of our own; whether there was one."""
    try:
        if os.lstat(path).st_uid != os.getuid():
            return False
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink()
    except OSError:
        return False
    return True


def sweep_peer(peer: dict[str, Any], session: list[str]) -> dict[str, Any]:
    """Sweep another node through the cluster's own ssh; used when the controller cannot do it any more."""
    options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    command = ["ssh", *options, "--", peer["name"], shlex.join([*peer["argv"], *session])]
    answer: dict[str, Any] = {"event": "swept", "host": peer["name"]}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PEER_WAIT_S, check=False, text=True
        )
        answer.update(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        answer["problem"] = str(problem)[:300]
    answer["host"] = peer["name"]
    return answer


# --- the supervisor --------------------------------------------------------------------------------------------------


class Answers:
    """JSON lines to the controller, never waiting for it: a controller that hangs must not stop the deadline."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor."""
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
        """Begin with nothing."""
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
        self.directory = request.get("directory") or home()
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
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up pipe carries it into the loop
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
            self.pump(streams, 0.1)
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
        for key, _ in self.selector.select(wait_s):
            if key.data == "output":
                self.take(streams, key.fd)
            elif key.data == "signal":
                self.end(f"signal {os.read(key.fd, 1)[0]}")
            elif key.data == "stdin":
                self.hear()
        self.answers.push()

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
        elif self.term_at is not None:  # whoever wanted the stacks is gone
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
        """Sweep this node, and the others when nobody else will, then say how it ended."""
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
    """Return a socket with a free port that the kernel gives to nobody else as long as it is open.

    It is bound and does not listen, and carries SO_REUSEADDR like those of servers, which can therefore bind it too.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder


def home() -> str:
    """Return the user's home, or the root folder where it is missing."""
    return str(Path.home()) if Path.home().is_dir() else "/"


def look() -> int:
    """Say where this node has what a job is going to need."""
    request = json.loads(receive())
    folder = Path(home(), request.get("directory") or ".")
    found: dict[str, str] = {}
    for name in request["names"]:
        places = [folder / name] if "/" in name else [Path(part, name) for part in request["path"].split(":") if part]
        here = [str(place) for place in places if place.is_file() and ("/" in name or os.access(place, os.X_OK))]
        found[name] = here[0] if here else ""
    runs = [name for name, place in found.items() if place and os.access(place, os.X_OK)]
    print(
        json.dumps({"event": "looked", "found": found, "runs": runs, "folder": str(folder), "is": folder.is_dir()}),
        flush=True,
    )
    return 0


def receive() -> bytes:
    """Return the request's line, or raise ValueError when none comes."""
    data = bytearray()
    end = time.monotonic() + REQUEST_WAIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while b"\n" not in data:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise ValueError("no request came")
            part = os.read(0, 65536)
            if not part:
                raise ValueError("stdin closed before a request came")
            data += part
            if len(data) > REQUEST_LIMIT:
                raise ValueError("the request is too long")
    return bytes(data).split(b"\n", 1)[0]


def checked(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request, or raise ValueError with what is wrong with it."""
    if not JOB_ID.fullmatch(request["job"]):
        raise ValueError("the job id is malformed")
    if not request["argv"] or not all(isinstance(token, str) for token in request["argv"]):
        raise ValueError("argv is no list of strings")
    if request["deadline_s"] is not None and not 0 < float(request["deadline_s"]) < float("inf"):
        raise ValueError("deadline_s is no positive number")
    if not all(FILE_NAME.fullmatch(name) for name in request.get("files", {})):
        raise ValueError("a file name is malformed")
    if not all(PEER.fullmatch(peer["name"]) for peer in request.get("peers", [])):
        raise ValueError("a peer's name is malformed")
    return request


def supervise() -> int:
    """Serve one request."""
    answers = Answers(1)
    try:
        request = checked(json.loads(receive()))
    except (KeyError, TypeError, ValueError) as problem:
        answers.put(event="ended", reason="bad_request", problem=str(problem), seconds=0.0)
        answers.flush(FLUSH_WAIT_S)
        return 2
    work_dir = tempfile.mkdtemp(prefix="clusterctl-")  # mode 0700
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
