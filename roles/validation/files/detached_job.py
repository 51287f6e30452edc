"""Keep jobs on this node that need no controller: start one, list them, show a log, end one.

The controller starts it over ssh. It needs the standard library only. It has four uses, each of which answers with JSON
lines on stdout:

``detached_job.py --start``
    Reads one JSON line: ``{"about", "request"}``. ``request`` is what ``job_supervisor.py`` reads. It starts a keeper
    in a session of its own, and answers once a rank of the job is up on this node, the job has ended, or half a minute
    has passed. A controller that is gone by then does not know the job, so the job is ended.

``detached_job.py --list``
    Answers with the jobs of this node and this user.

``detached_job.py --log JOB``
    Answers with the log from byte ``--from``, or with its last ``--lines``. With ``--follow`` it goes on until the job
    has ended or stdin closes. The events are those of ``job_supervisor.py``: ``data``, and last ``ended``.

``detached_job.py --stop JOB``
    Has the keeper end the job, and answers when it is gone.

A job has a folder of mode 0700 in ``~/.local/state/clusterctl/jobs``: ``state.json``, and the log in files that are
called by their first byte, ``log.0``. The keeper (``--keep JOB``) takes the place of the controller: it starts
``job_supervisor.py`` and holds its stdin. A keeper that is killed therefore ends the job on all nodes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import bounded_run
import job_look
import job_members
import job_supervisor

SEGMENT = 128 << 20  # bytes of a file of the log; two are kept
KEPT = 20  # jobs that have ended
STATE_LIMIT = 1 << 20
BLOCK = 48 << 10
TAIL = 4096  # bytes of the output that the launcher's last words fit into
START_WAIT_S = 30.0
STOP_WAIT_S = 45.0  # the supervisor's own limits, and those of its sweeps of other nodes, are shorter
TURN_S = 0.1
FOLLOW_TURN_S = 0.3
PLACE = (".local", "state", "clusterctl", "jobs")
RANKS = (b"OMPI_COMM_WORLD_RANK=", b"NODE_RANK=")  # of mpirun, and of a process that is no rank of its
LOG_FILE = re.compile(r"log\.(0|[1-9][0-9]{0,17})")
REMAINS = 64  # sentences about what may still run
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")

State = dict[str, Any]


# --- The folder of a user's jobs --------------------------------------------------------------------------------------


def place() -> Path:
    """Return the folder of this user's jobs."""
    return Path(job_look.home(), *PLACE)


def made_place() -> Path:
    """Make the folder, for this user alone.

    Raises:
        ValueError: it cannot be made, or belongs to another user.
    """
    folder = Path(job_look.home())
    try:
        for part in PLACE:
            folder /= part
            folder.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode) or folder.lstat().st_uid != os.getuid():
            raise ValueError(f"{folder} is not a folder of this user")
        folder.chmod(0o700)
    except OSError as problem:
        raise ValueError(f"the folder of its log cannot be made: {problem}") from None
    return folder


def read_state(job: str) -> State | None:
    """Return what is known of a job of this node; None where it is unknown, or is one of another node."""
    try:
        source = os.open(place() / job / "state.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(source, "rb") as stream:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                return None
            state = json.loads(stream.read(STATE_LIMIT))
            json.dumps(state, allow_nan=False)
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(state, dict) and state.get("job") == job and state.get("node") == socket.gethostname()
    return state if is_ours and isinstance(state.get("since"), (int, float)) else None


def known(job: str) -> State | None:
    """Return a job as it is now: it is lost where its keeper is gone before its end."""
    state = read_state(job)
    if state is None:
        return None
    if state.get("state") != "ended" and not is_kept(state.get("pid"), job):
        state = read_state(job) or state  # it may have ended in between
        if state.get("state") != "ended":
            state["state"] = "lost"
    parts = segments(job)
    first, last = (parts[0], parts[-1]) if parts else (Part(0, 0), Part(0, 0))
    return {**state, "folder": str(place() / job), "log_from": first.begin, "log_end": last.begin + last.size}


def is_kept(pid: object, job: str) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    words = job_members.read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
    return [b"--keep", job.encode()] == words[-3:-1] and job_members.is_own(pid)


def jobs() -> list[State]:
    try:
        names = [path.name for path in place().iterdir() if job_supervisor.JOB_ID.fullmatch(path.name)]
    except OSError:
        return []
    found = [state for state in map(known, names) if state is not None]
    return sorted(found, key=lambda state: float(state["since"]), reverse=True)


def forget_old() -> None:
    """Remove the oldest jobs that have ended."""
    over = [state for state in jobs() if state.get("state") in {"ended", "lost"}][KEPT - 1 :]
    for state in over:
        shutil.rmtree(place() / state["job"], ignore_errors=True)


# --- The log ----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A file of a log: the number of its first byte, and its size."""

    begin: int
    size: int


def segments(job: str) -> list[Part]:
    """Return the files of a job's log, in order."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(place() / job):
            match = LOG_FILE.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                found.append(Part(int(match[1]), entry.stat(follow_symlinks=False).st_size))
    return sorted(found)


def piece(job: str, at: int) -> tuple[int, bytes]:
    """Return some bytes of the log from a place on, and where they begin; the bytes before may be gone."""
    for part in segments(job):
        begin = max(at, part.begin)
        if begin < part.begin + part.size:
            with contextlib.suppress(OSError):
                source = os.open(place() / job / f"log.{part.begin}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    return begin, os.pread(source, BLOCK, begin - part.begin)
                finally:
                    os.close(source)
    return at, b""


def last_lines(job: str, count: int, end: int) -> int:
    """Return where the last lines of the log begin, counted from the byte at which it ended when it was looked at."""
    parts = segments(job)
    if not parts or count <= 0:
        return end
    first, at = parts[0].begin, end
    data = piece(job, max(first, at - 1))[1][:1]
    wanted = count + 1 if data.endswith(b"\n") else count
    while at > first:
        begin = max(first, at - BLOCK)
        data = b""
        while begin + len(data) < at:
            more = piece(job, begin + len(data))[1]
            if not more:
                break
            data += more
        data = data[: at - begin]
        if data.count(b"\n") >= wanted:
            for _unused in range(wanted):
                data = data[: data.rindex(b"\n")]
            return begin + len(data) + 1
        wanted, at = wanted - data.count(b"\n"), begin
    return first


class Log:
    """The log that a keeper writes: two files at most, the older of which goes when the newer is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at = 0
        self.starts: list[int] = []
        self.tail = b""
        self.lost = 0
        self.problem = ""
        self.target = -1

    def write(self, data: bytes) -> None:
        """Append output; what cannot be written is counted, and the job goes on."""
        self.tail = (self.tail + data)[-TAIL:]
        try:
            if not self.starts or self.at - self.starts[-1] >= SEGMENT:
                self.turn()
            while data:
                written = os.write(self.target, data)
                self.at, data = self.at + written, data[written:]
        except OSError as problem:
            self.lost += len(data)
            self.problem = problem.strerror or str(problem)

    def turn(self) -> None:
        """Begin the next file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        target = os.open(self.folder / f"log.{self.at}", flags, 0o600)
        if self.target >= 0:
            os.close(self.target)
        self.target = target
        self.starts.append(self.at)
        while len(self.starts) > 2:  # noqa: PLR2004 - the file that is written, and the one before
            self.drop()

    def drop(self) -> None:
        """Remove the oldest file."""
        with contextlib.suppress(OSError):
            (self.folder / f"log.{self.starts.pop(0)}").unlink()


# --- The keeper -------------------------------------------------------------------------------------------------------


class Keeper:
    """The controller of one job on this node."""

    def __init__(self, job: str, asked: State) -> None:
        """Keep what is asked for; nothing starts here."""
        self.folder = place() / job
        self.request = asked["request"]
        self.log = Log(self.folder)
        about = asked["about"]
        self.state: State = {
            **{name: about[name] for name in ("command", "nodes", "prefix", "hosts")},
            "job": job,
            "node": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.time(),
            "state": "starting",
        }
        self.session = ""
        self.swept: list[State] = []
        self.ended: State = {}

    def note(self, **more: Any) -> bool:
        """Write the state, and return whether it is written; on a full disk the oldest part of the log makes room."""
        self.state.update(more, log_lost=self.log.lost, log_problem=self.log.problem)
        for _attempt in range(2):
            try:
                new = self.folder / "state.new"
                new.touch(mode=0o600)
                new.write_text(json.dumps(self.state), encoding="utf-8")
                new.replace(self.folder / "state.json")
            except OSError:
                if not self.log.starts:
                    return False
                self.log.drop()
            else:
                return True
        return False

    def run(self) -> None:
        """Stay until the job has ended; a job that could not be listed is not started."""
        if not self.note():
            return
        command = [sys.executable, "-E", "-s", job_supervisor.__file__]
        with (self.folder / "errors").open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self.request).encode() + b"\n")
            process.stdin.flush()
        signal.signal(signal.SIGTERM, lambda *_unused: process.stdin.close())  # the end, as from a controller
        for line in process.stdout:
            self.take(line)
        process.wait()
        if not self.ended:
            words = (self.folder / "errors").read_bytes()[-1000:].decode("utf-8", "replace").strip().splitlines()
            why = words[-1] if words else "it ended without a word"
            self.ended = {"reason": "lost", "problem": f"its supervisor was lost: {why}"}
            self.swept = [{"host": None, **job_members.sweep(self.state["job"], self.session)}]
        remains = self.remains()
        kept = ("reason", "rc", "signal", "seconds", "problem")
        ended = {name: self.ended[name] for name in kept if name in self.ended}
        tail = self.log.tail.decode("utf-8", "replace")
        self.note(state="ended", remains=remains, tail=tail, ended_at=time.time(), **ended)

    def take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind = event["event"]
            if kind == "data":
                had = self.log.lost
                self.log.write(base64.b64decode(event["data"]))
                if self.log.lost and not had:
                    self.note()
            elif kind == "started":
                self.session = event["session"]
                self.note(state="running")
            elif kind == "swept":
                self.swept.append(event)
            elif kind == "ended":
                self.ended = event
        except (ValueError, TypeError, LookupError):
            return

    def remains(self) -> list[str]:
        """Sweep the other nodes where the supervisor did not, and say what may still run."""
        swept = self.swept
        own = [event for event in swept if event.get("host") is None]
        is_clean = bool(own) and not own[0]["killed"] and not own[0]["left"]
        peers = self.request.get("peers", [])
        if len(swept) <= 1 and peers and not (self.ended.get("rc") == 0 and is_clean):
            with ThreadPoolExecutor(job_supervisor.PEERS_AT_ONCE) as pool:
                session = ["--session", self.session]
                swept = [*own, *pool.map(lambda peer: job_members.sweep_peer(peer, session), peers)]
        words = []
        for event in swept:
            where = event.get("host") or self.state["node"]
            left = [str(entry["command"]) for entry in event.get("left", ())]
            words += [f"{where}: {text}"[:300] for text in [*left, event.get("problem", "")] if text]
        return words[:REMAINS]


def keep(job: str) -> int:
    """Keep a job; stdin has what ``--start`` was asked for."""
    asked = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Keeper(job, asked).run()
    return 0


# --- The uses ---------------------------------------------------------------------------------------------------------


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def refuse_logout() -> None:
    """Refuse a node whose systemd ends the processes of a session with it (KillUserProcesses of logind.conf).

    Raises:
        ValueError: it does so.
    """
    if b"/session-" not in job_members.read_bytes("/proc/self/cgroup"):
        return
    names = ("KillUserProcesses", "KillExcludeUsers", "KillOnlyUsers")
    try:
        lines = bounded_run.run(["busctl", "get-property", *LOGIND, *names], 5.0).output.splitlines()
        is_on, excluded, only = lines[0] == "b true", lines[1].split()[2:], lines[2].split()[2:]
    except (OSError, ValueError, IndexError):
        return  # without logind
    me = f'"{pwd.getpwuid(os.getuid()).pw_name}"'
    if is_on and me not in excluded and (not only or me in only):
        raise ValueError(
            "systemd ends a user's processes at logout there; set KillUserProcesses=no in /etc/systemd/logind.conf, or "
            "run it without --detach"
        )


def start() -> int:
    """Start a job, and say what has become of it."""
    try:
        asked = json.loads(job_supervisor.receive())
        job = job_supervisor.checked(asked["request"])["job"]
        refuse_logout()
        folder = made_place() / job
        forget_old()
        folder.mkdir(mode=0o700)
    except (KeyError, TypeError, ValueError, OSError) as problem:
        say(job={}, problem=str(problem))
        return 0
    keeper = subprocess.Popen(
        [sys.executable, "-E", "-s", str(Path(__file__).resolve()), "--keep", job],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    with contextlib.suppress(BrokenPipeError):
        keeper.stdin.write(json.dumps(asked).encode())
        keeper.stdin.close()
    end = time.monotonic() + START_WAIT_S
    while time.monotonic() < end:
        is_gone = keeper.poll() is not None
        if nobody_reads():
            keeper.terminate()
            return 1
        state = read_state(job) or {}
        if is_gone or state.get("state") == "ended" or (state.get("state") == "running" and has_rank(job)):
            break
        time.sleep(TURN_S)
    state = known(job)
    try:
        say(job=state or {}, up=has_rank(job), problem="" if state else "its keeper could not write its state")
    except BrokenPipeError:
        keeper.terminate()
        return 1
    return 0


def nobody_reads() -> bool:
    """Whether the controller has gone: nothing can be written to stdout any more."""
    asking = select.poll()
    asking.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _unused, event in asking.poll(0))


def has_rank(job: str) -> bool:
    given = [b"\0" + job_members.read_bytes(f"/proc/{pid}/environ") for pid in job_members.members(job)]
    return any(b"\0" + rank in environment for environment in given for rank in RANKS)


def show(job: str, begin: int, lines: int | None, *, follow: bool) -> int:
    """Write a log, and how its job ended or that it runs."""
    state = known(job)
    end = state["log_end"] if state else 0
    at = begin if lines is None else last_lines(job, lines, end)
    while state is not None:
        at, data = piece(job, at)
        if data and not follow:
            data = data[: max(0, end - at)]  # a job may write faster than this is read
        if data:
            say(event="data", stream="stdout", data=base64.b64encode(data).decode("ascii"))
            at += len(data)
        elif not follow or state["state"] not in {"starting", "running"}:
            break
        else:
            readable, _unused, _unused = select.select([0], [], [], FOLLOW_TURN_S)
            if readable and not os.read(0, 65536):  # the controller is gone
                return 0
            state = known(job)
            if state is not None and state["state"] in {"ended", "lost"}:
                continue  # once more: what was written before the end
    say(event="ended", reason="shown", rc=None, seconds=0.0, at=at)
    return 0


def stop(job: str) -> int:
    """End a job, and say what has become of it."""
    state = known(job)
    if state is not None and state["state"] in {"starting", "running"}:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(state["pid"])
            if is_kept(state["pid"], job):
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        end = time.monotonic() + STOP_WAIT_S
        while is_kept(state["pid"], job) and time.monotonic() < end:
            time.sleep(TURN_S)
        state = known(job)
    say(job=state or {}, problem="" if state else "it is unknown there")
    return 0


def main() -> int:
    """Choose between the uses."""
    parser = argparse.ArgumentParser(description="Keep jobs on this node that need no controller.")
    uses = parser.add_mutually_exclusive_group(required=True)
    uses.add_argument("--start", action="store_true", help="start the job that stdin describes")
    uses.add_argument("--keep", metavar="JOB", help="be its keeper")
    uses.add_argument("--list", action="store_true", help="list this user's jobs on this node")
    uses.add_argument("--log", metavar="JOB", help="show the log of a job")
    uses.add_argument("--stop", metavar="JOB", help="end a job")
    parser.add_argument("--from", dest="begin", type=int, default=0, metavar="BYTE", help="where the log begins")
    parser.add_argument("--lines", type=int, metavar="N", help="only the last lines of the log")
    parser.add_argument("--follow", action="store_true", help="go on until the job has ended")
    arguments = parser.parse_args()
    job = arguments.keep or arguments.log or arguments.stop
    if job is not None and not job_supervisor.JOB_ID.fullmatch(job):
        parser.error("the job id is malformed")
    if arguments.keep:
        return keep(job)
    if arguments.log:
        return show(job, arguments.begin, arguments.lines, follow=arguments.follow)
    if arguments.stop:
        return stop(job)
    if arguments.start:
        return start()
    say(jobs=jobs())
    return 0


if __name__ == "__main__":
    sys.exit(main())
