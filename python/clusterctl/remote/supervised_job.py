"""Run one command on a node under a deadline, and leave nothing of it behind on any node.

The command is started by ``job_supervisor.py`` on the node, fed over ssh. Its stdin is the rope: when this process
ends, however it ends, ssh closes it and the supervisor ends the command by itself.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import selectors
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.model.job_outcome import Ending, JobOutcome, MemoryKills, OutputLine, Stack, Sweep
from clusterctl.remote import python, reach, supervisor_files
from clusterctl.support import node_json

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from clusterctl.model.hosts import Host


T = TypeVar("T")
STACKS = "rank_stacks.py"

_END_WAIT_S = 25.0  # TERM, KILL, the node's own sweep and that of its peers have their own, shorter limits
_SWEEP_WAIT_S = 15.0
_SWEEP_CONNECT_S = 5
_LOOK_KEYS = frozenset({"found", "runs", "folder", "is"})
_STACKS_WAIT_S = 6.0  # the supervisor waits a little longer, a node's own limit is shorter
_STACKS_KEPT = 256  # one of every node before a second one of any
_POLL_S = 0.2
_UNREADABLE = "its answer is not readable"


@dataclass(frozen=True)
class JobLogin:
    """How to run something on a host as the cluster's user."""

    host: Host
    as_user: str | None = None
    control_dir: Path | None = None

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        """Return the argv that runs ``remote`` there."""
        return reach.command(
            self.host,
            remote,
            as_user=self.as_user,
            control_dir=self.control_dir,
            connect_timeout_s=connect_timeout_s,
        )

    def program(self, name: str, *words: str) -> list[str]:
        """Return the tokens that run one of the node's own programs.

        PYTHONHOME, PYTHONPATH and packages of the user do not reach it (``-I`` would also hide its own folder).
        """
        return [self.host.python, "-E", "-s", self.host.layout.program(name), *words]


@dataclass(frozen=True)
class JobSpec:
    """What to run.

    ``{work_dir}`` in ``argv`` becomes the private folder that holds ``files`` while the job lasts and, if ``port``,
    ``{port}`` one that is free on the node; not in the last ``literal`` tokens, which are the user's. It starts in
    ``directory``, else in the home. Without ``deadline_s`` it may last. With ``stacks``, the outcome says where its
    ranks were when the deadline passed, which takes some seconds more.
    """

    job: str
    argv: tuple[str, ...]
    deadline_s: float | None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    port: bool = False
    literal: int = 0
    directory: str = ""
    stacks: bool = False


@dataclass(frozen=True)
class Look:
    """Where a node has the files it was asked for.

    ``found`` is by what was asked for, empty where it is missing; ``runs`` are those that may be executed.
    ``memory`` tells what the kernel has killed so far. ``problem`` says why the node could not be asked.
    """

    host: str
    found: Mapping[str, str] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()
    folder: str = ""
    has_folder: bool = False
    memory: MemoryKills = field(default_factory=MemoryKills)
    problem: str = ""


class StoppedError(Exception):
    """Somebody in another thread wanted the job to end before it did."""


class _Stacks:
    """Where the ranks are, asked of every node at once while the supervisor waits with the end."""

    def __init__(self, logins: Sequence[JobLogin], job: str) -> None:
        self._logins, self._job = logins, job
        self._answers: list[Future[list[Stack]]] = []
        self._until = 0.0

    def take(self, process: subprocess.Popen[bytes]) -> None:
        """Ask, or look whether all have answered and let the supervisor go on; this never waits."""
        if not self._until:
            self._until = time.monotonic() + _STACKS_WAIT_S
            pool = _pool(self._logins)
            self._answers = [pool.submit(self._ask, login) for login in self._logins]
            pool.shutdown(wait=False)
        elif time.monotonic() > self._until or all(answer.done() for answer in self._answers):
            self._until = float("inf")
            with contextlib.suppress(OSError):
                python.pipe(process.stdin).write(b"\n")
                python.pipe(process.stdin).flush()

    def found(self) -> tuple[Stack, ...]:
        """Return what has come: one stack of every node, then the others."""
        known = [answer.result() for answer in self._answers if answer.done()]
        first = [stack for stacks in known for stack in stacks[:1]]
        return tuple([*first, *(stack for stacks in known for stack in stacks[1:])][:_STACKS_KEPT])

    def _ask(self, login: JobLogin) -> list[Stack]:
        left = self._until - time.monotonic()
        if not 0 < left <= _STACKS_WAIT_S:
            return []
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError):
            argv = login.command(login.program(STACKS, self._job), connect_timeout_s=_SWEEP_CONNECT_S)
            answer = python.ask(argv, b"", left, {"stacks"}).answer or {"stacks": ()}
            return [Stack(host=login.host.name, **entry) for entry in answer["stacks"]]
        return []


def run(
    login: JobLogin,
    spec: JobSpec,
    *,
    peers: Iterable[JobLogin] = (),
    on_line: Callable[[OutputLine], None] | None = None,
    on_data: Callable[[str, bytes], None] | None = None,
    stop: threading.Event | None = None,
    on_poll: Callable[[], None] | None = None,
) -> JobOutcome:
    """Run the command and stay until nothing of it is left.

    Whenever it did not simply end with exit code 0, every node is swept. On an interrupt (any exception) the command is
    ended, the nodes are swept, and the exception goes on. ``peers`` are the other nodes that processes of the job may
    be on, by the names under which nodes know each other. ``on_data`` gets the bytes of the output as they come, and
    its stream; nothing of it is kept then. Once ``stop`` is set, the job is ended as by an interrupt, for Ctrl-C
    reaches only the main thread. ``on_poll`` is called some times a second and must not wait. What it raises ends the
    job.

    Raises:
        StoppedError: ``stop`` was set, and nothing of the job is left.
    """
    others = list(peers)
    asked = request(spec, others, raw=on_data is not None)
    answers = SupervisorAnswers(on_line, on_data, time.monotonic())
    stacks = _Stacks([login, *others], spec.job)

    def meanwhile() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError
        if on_poll is not None:
            on_poll()
        if spec.stacks and answers.late:
            stacks.take(process)

    command = login.command(login.program(supervisor_files.SUPERVISOR))
    # A session of its own: the terminal's Ctrl-C is for us, and ssh must live to bring the supervisor's last words.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        complaint = bytearray()
        try:
            _send(process, asked)
            limit = float("inf") if spec.deadline_s is None else spec.deadline_s
            limit += _STACKS_WAIT_S if spec.stacks else 0.0
            limit += _END_WAIT_S
            if not listen(process, answers, complaint, limit, meanwhile):
                complaint += f"\nit did not answer within {limit:.0f} s".encode()
        except BaseException as error:
            if isinstance(error, OSError):  # the reader of the output is gone
                answers.on_data = None
            with contextlib.suppress(OSError):
                python.pipe(process.stdin).close()
            listen(process, answers, complaint, _END_WAIT_S)
            process.kill()
            sweep([login, *others], spec.job, answers.session)
            raise
        finally:
            process.kill()
            with contextlib.suppress(OSError):  # what could not be sent to a node that is gone
                python.pipe(process.stdin).close()
    outcome = replace(
        _outcome(answers, complaint.decode("utf-8", "replace"), reach.client(login.host)), stacks=stacks.found()
    )
    swept = answers.swept
    if outcome.ending == "exited" and outcome.rc == 0 and swept is not None and not (swept.killed or swept.left):
        return outcome
    own = () if swept is None else (replace(swept, host=login.host.name),)
    elsewhere = sweep([*others] if own else [login, *others], spec.job, answers.session)
    return replace(outcome, sweeps=(*own, *elsewhere))


def request(spec: JobSpec, peers: Iterable[JobLogin], *, raw: bool) -> dict[str, Any]:
    """Return what the supervisor on a node reads; with ``raw`` it sends the output as bytes."""
    return {
        "job": spec.job,
        "argv": list(spec.argv),
        "environment": dict(spec.environment),
        "deadline_s": spec.deadline_s,
        "files": dict(spec.files),
        "raw": raw,
        "port": spec.port,
        "literal": spec.literal,
        "directory": spec.directory,
        "stacks": spec.stacks,
        "peers": [_as_peer(peer, spec.job) for peer in peers],
    }


def sweep(logins: Sequence[JobLogin], job: str, session: str = "") -> tuple[Sweep, ...]:
    """Kill what is left of a job on these nodes, all at once, and say what it was.

    ``session`` is ``host-pid`` of its mpirun where that is known, by which PRRTE names folders in /tmp.
    """
    return tuple(of_each(logins, lambda login: _sweep_one(login, job, session)))


def look(logins: Sequence[JobLogin], names: Sequence[str], paths: Mapping[str, str], directory: str = "") -> list[Look]:
    """Ask nodes, all at once, where they have these files.

    ``names`` are paths, from ``directory`` or the home where they are not absolute, or bare names of programs. These
    are looked for in the PATH that ``paths`` has by host name.
    """

    def one(login: JobLogin) -> Look:
        name = login.host.name
        request = {"names": list(names), "path": paths.get(name, ""), "directory": directory}
        argv = login.command(login.program(supervisor_files.SUPERVISOR, "--look"))
        reply = python.ask(argv, json.dumps(request).encode() + b"\n", _SWEEP_WAIT_S, _LOOK_KEYS)
        return Look(name, problem=reply.problem) if reply.answer is None else _look_of(name, reply.answer)

    return of_each(logins, one)


def of_each(logins: Sequence[JobLogin], ask: Callable[[JobLogin], T]) -> list[T]:
    """Ask nodes, as many at once as the way to them allows, and return their answers in order."""
    with _pool(logins) as pool:
        return list(pool.map(ask, logins))


def _pool(logins: Sequence[JobLogin]) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(reach.at_once(login.host for login in logins), len(logins))))


def _sweep_argv(login: JobLogin, job: str) -> list[str]:
    return login.program(supervisor_files.SUPERVISOR, "--sweep", job)


def _as_peer(login: JobLogin, job: str) -> dict[str, Any]:
    """Return how the supervisor sweeps a node itself. Nodes of an allocation may refuse ssh among each other."""
    argv = _sweep_argv(login, job)
    if login.host.step is None:
        return {"name": login.host.name, "argv": argv}
    return {"name": login.host.name, "argv": reach.srun(login.host.step, argv), "whole": True}


def _sweep_one(login: JobLogin, job: str, session: str) -> Sweep:
    name = login.host.name
    argv = login.command([*_sweep_argv(login, job), "--session", session], connect_timeout_s=_SWEEP_CONNECT_S)
    reply = python.ask(argv, b"", _SWEEP_WAIT_S, {"killed", "left"})
    if reply.answer is None:
        return Sweep(name, problem=reply.problem)
    try:
        return sweep_of(name, reply.answer)
    except (TypeError, LookupError):
        return Sweep(name, problem=_UNREADABLE)


def _look_of(name: str, answer: Mapping[str, Any]) -> Look:
    found, runs = answer["found"], answer["runs"]
    if not isinstance(found, dict) or not isinstance(runs, list):
        return Look(name, problem=_UNREADABLE)
    places = {asked: str(place) for asked, place in found.items()}
    memory = MemoryKills.of(answer.get("memory"))
    return Look(name, places, frozenset(map(str, runs)), str(answer["folder"]), bool(answer["is"]), memory)


def _send(process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
    # A node that refuses the login closes the pipe; what ssh says of it is read afterwards.
    with contextlib.suppress(BrokenPipeError):
        python.pipe(process.stdin).write(json.dumps(request).encode() + b"\n")
        python.pipe(process.stdin).flush()


def listen(
    process: subprocess.Popen[bytes],
    answers: SupervisorAnswers,
    complaint: bytearray,
    wait_s: float,
    meanwhile: Callable[[], None] | None = None,
) -> bool:
    """Read until the supervisor has said its last word or ssh has ended, and return False if the wait is over first."""
    end = time.monotonic() + wait_s
    rest = b""
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and answers.ended is None and not answers.flood:
            if time.monotonic() > end:
                return False
            if meanwhile is not None:
                meanwhile()
            for key, _ in selector.select(_POLL_S):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    complaint += data
                    del complaint[: -python.MOST_ERRORS]
                else:
                    rest = _taken(answers, rest + data)
    return True


def _taken(answers: SupervisorAnswers, data: bytes) -> bytes:
    """Take the complete lines, and return the begin of the next one."""
    *complete, rest = data.split(b"\n")
    for line in complete:
        answers.take(line.decode("utf-8", "replace"))
    if len(rest) > python.MOST_BYTES:
        answers.flood = str(python.TooMuchOutputError())
    return rest


def _outcome(answers: SupervisorAnswers, complaint: str, client: str) -> JobOutcome:
    lines, argv = tuple(answers.lines), answers.argv
    last = lines[-1].at_s if lines else 0.0
    if answers.ended is None:
        said = [line for line in complaint.strip().splitlines() if line.strip()]
        problem = answers.flood or (said[-1] if said else f"{client} ended without a word")
        return JobOutcome("lost", last, argv=argv, lines=lines, problem=problem)
    ended = answers.ended
    if ended.reason in {"not_started", "bad_request"}:
        return JobOutcome("not_started", ended.seconds, argv=argv, lines=lines, problem=ended.problem)
    ending: Ending = "stopped"
    if ended.reason == "exited":
        ending = "exited"
    elif ended.reason == "deadline":
        ending = "deadline"
    ending_s = answers.ending_s or ended.seconds
    return JobOutcome(ending, ended.seconds, ending_s, rc=ended.rc, signal=ended.signal, argv=argv, lines=lines)


# --- Take apart the lines that a job's supervisor writes on its node --------------------------------------------------
#
# A node may write anything. A line that is not an event of the supervisor is passed over, as the banner of a shell is.

MOST_TEXT = 1 << 28  # characters of a job's output that are kept; all pairs of 500 nodes take a quarter
_OF_A_LINE = 128  # that an empty line counts for, since it takes memory too
_MOST_OF_LINE = 1 << 17  # characters; the supervisor cuts lines at half of it
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}-[0-9]{1,9}")  # host-pid; all other nodes get it as an argument
_STREAMS = frozenset({"stdout", "stderr"})
_NOT_EVENTS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Ended:
    """The last event: how the command ended."""

    reason: str
    seconds: float
    rc: int | None
    signal: int | None
    problem: str


class SupervisorAnswers:
    """What the supervisor has said so far."""

    def __init__(
        self,
        on_line: Callable[[OutputLine], None] | None,
        on_data: Callable[[str, bytes], None] | None,
        began: float = -math.inf,
    ) -> None:
        """Begin with nothing.

        ``began`` is when the job was asked for, by this machine's steady clock. What a node tells came no later than it
        is heard; deadlines of later jobs follow from it.
        """
        self._began = began
        self.lines: list[OutputLine] = []
        self.argv: tuple[str, ...] = ()
        self.session = ""
        self.ending_s = 0.0
        self.late = False
        self.ended: Ended | None = None
        self.swept: Sweep | None = None  # without its host
        self.flood = ""  # why nothing more is read
        self.on_data = on_data
        self._on_line = on_line
        self._kept = 0

    def take(self, text: str) -> None:
        """Take a line."""
        try:
            event = node_json.loads(text)
            kind = event["event"]
            line = self._line(event) if kind == "line" else None
            data = base64.b64decode(event["data"], validate=True) if kind == "data" else b""
            stream = _stream(event) if kind == "data" else ""
            if kind not in {"line", "data"}:
                self._take_state(kind, event)
        except _NOT_EVENTS:
            return
        if line is not None:
            self._keep(line)
        elif data and self.on_data is not None:
            self.on_data(stream, data)

    def _keep(self, line: OutputLine) -> None:
        self._kept += len(line.text) + _OF_A_LINE
        if self._kept > MOST_TEXT:
            self.flood = f"its job printed more than {MOST_TEXT >> 20} MiB"
            return
        self.lines.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def _take_state(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "started":
            argv = event["argv"]
            self.argv, session = tuple(map(str, argv if isinstance(argv, list) else [])), str(event["session"])
            self.session = session if _SESSION.fullmatch(session) else ""
        elif kind == "swept" and event.get("host") is None:
            self.swept = sweep_of("", event)
        elif kind == "ending":
            self.ending_s = self._seconds(event["at"])
            self.late = event.get("reason") == "deadline"
        elif kind == "ended":
            self.ended = _ended(event, self._seconds(event["seconds"]))

    def _line(self, event: Mapping[str, Any]) -> OutputLine:
        text = str(event["text"])[:_MOST_OF_LINE]
        return OutputLine(stream=_stream(event), at_s=self._seconds(event["at"]), text=text)

    def _seconds(self, value: Any) -> float:
        return min(_seconds(value), time.monotonic() - self._began)


def sweep_of(host: str, answer: Mapping[str, Any]) -> Sweep:
    """Return what a sweep found on a node.

    Raises:
        TypeError, LookupError: the answer has another form.
    """
    killed, left = (tuple(str(entry["command"]) for entry in answer[part]) for part in ("killed", "left"))
    return Sweep(host, killed=killed, left=left)


def _stream(event: Mapping[str, Any]) -> str:
    name = str(event["stream"])
    if name not in _STREAMS:
        raise ValueError(f"{name} is not a stream")
    return name


def _ended(event: Mapping[str, Any], seconds: float) -> Ended:
    reason = str(event["reason"])
    return Ended(
        reason=reason,
        seconds=seconds,
        rc=_status(event["rc"] if reason not in {"not_started", "bad_request"} else None),
        signal=_status(event.get("signal")),
        problem=str(event.get("problem", "")),
    )


def _seconds(value: Any) -> float:
    """Return a time since the begin of the job."""
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{number} is not a time")
    return number


def _status(value: Any) -> int | None:
    if value is not None and type(value) is not int:  # True would count as 1, and 0.0 as success
        raise TypeError(f"{value!r} is not an exit status")
    return value
