"""Start a job that needs no controller, list such jobs of nodes, read their logs and end them.

``detached_job.py`` on the node does the work. Everything that it answers passes :class:`DetachedJob`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from clusterctl.model.base import Fact, Text
from clusterctl.model.job_outcome import TIMED_OUT, exit_code
from clusterctl.remote import python, supervised_job, supervisor_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.remote.supervised_job import JobLogin, JobSpec

_LIST_WAIT_S = 20.0
_START_WAIT_S = 60.0  # the node answers after half a minute at the latest
_STOP_WAIT_S = 75.0
_UNREADABLE = "its answer is not readable"
_MOST_JOBS = 1024  # of a node, which forgets old ones far earlier
_MOST_TEXT = 1 << 17
_Words = Annotated[str, Field(max_length=_MOST_TEXT)]
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
_Bytes = Annotated[int, Field(ge=0, lt=1 << 60)]
_Seconds = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]


class DetachedJob(Fact):
    """A job whose supervisor stays on its launch node."""

    job: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{7,63}$")]
    node: Text  # what its launch node calls itself
    # the user's program and its arguments, as typed: a terminal must not get them as they are
    command: tuple[_Words, ...] = Field(max_length=1 << 14)
    nodes: tuple[_Name, ...] = Field(default=(), max_length=1 << 14)  # where it runs, by the inventory's names
    since: _Seconds  # when it was started, by the node's clock in seconds since 1970
    ended_at: _Seconds = 0.0  # when it ended, 0 while it runs
    # ``lost`` is a job whose keeper is gone, as after a restart of the node
    state: Literal["starting", "running", "ended", "lost"]
    reason: _Words = ""  # why it ended, in the supervisor's words
    rc: Annotated[int, Field(ge=0, le=255, strict=True)] | None = None
    signal: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
    problem: _Words = ""
    remains: tuple[_Words, ...] = Field(default=(), max_length=256)  # what may still run, in sentences
    tail: _Words = ""  # the end of its output
    folder: Text = ""  # where its log is
    log_from: _Bytes = 0  # the first byte of the log that is kept
    log_end: _Bytes = 0  # the bytes that the log ever had
    log_lost: _Bytes = 0  # bytes that could not be written, because of ``log_problem``
    log_problem: _Words = ""
    prefix: Literal["none", "rank", "host"] = "none"  # what lines of output begin with
    hosts: tuple[_Name, ...] = Field(default=(), max_length=1 << 17)  # the node of each rank where a prefix needs it

    @property
    def runs(self) -> bool:
        """Whether it has not ended, as far as its node knows."""
        return self.state in {"starting", "running"}

    @property
    def word(self) -> Literal["starting", "running", "ended", "timed out", "stopped", "not started", "lost"]:
        """Its state in a word for people."""
        if self.state != "ended":
            return self.state
        if self.reason in {"exited", "deadline"}:
            return "ended" if self.reason == "exited" else "timed out"
        if self.reason in {"not_started", "bad_request"}:
            return "not started"
        return "lost" if self.reason in {"", "lost"} else "stopped"

    @property
    def code(self) -> int | None:
        """The exit code as ``run`` has it: the launcher's own, or 124 after the deadline; None without one."""
        if self.word == "timed out":
            return TIMED_OUT
        if self.word != "ended":
            return None
        return exit_code(self.rc, self.signal)


@dataclass(frozen=True)
class JobAnswer:
    """What a node tells of one job; ``problem`` says why there is none, and ``up`` that a rank of it runs.

    ``silent``: the node did not answer at all.
    """

    job: DetachedJob | None
    up: bool = False
    problem: str = ""
    silent: bool = False


@dataclass(frozen=True)
class JobsOfNode:
    """The detached jobs of a node, the newest first, or the problem that kept it from telling all.

    ``silent``: the node did not answer at all.
    """

    jobs: tuple[DetachedJob, ...] = ()
    problem: str = ""
    silent: bool = False


def start(login: JobLogin, spec: JobSpec, peers: Sequence[JobLogin], about: Mapping[str, Any]) -> JobAnswer:
    """Start a job and wait until it is up or has ended.

    ``about`` has ``command``, ``nodes``, ``prefix`` and ``hosts`` of :class:`DetachedJob`.
    """
    asked = {"about": dict(about), "request": supervised_job.request(spec, peers, raw=True)}
    return _one(login, _START_WAIT_S, "--start", request=json.dumps(asked).encode() + b"\n")


def stop(login: JobLogin, job: str) -> JobAnswer:
    """End a job and wait until its keeper is gone."""
    return _one(login, _STOP_WAIT_S, "--stop", job)


def listed(logins: Sequence[JobLogin]) -> dict[str, JobsOfNode]:
    """Ask nodes, all at once, for the detached jobs that were started on them; by host name."""

    def one(login: JobLogin) -> JobsOfNode:
        reply = python.ask(login.command(_program(login, "--list")), b"", _LIST_WAIT_S, {"jobs"})
        if reply.answer is None:
            return JobsOfNode(problem=reply.problem, silent=True)
        told = reply.answer["jobs"]
        if not isinstance(told, list):
            return JobsOfNode(problem=_UNREADABLE)
        found = [_gate(one) for one in told[:_MOST_JOBS]]
        bad = sum(one is None for one in found)
        return JobsOfNode(tuple(one for one in found if one), f"unreadable records of jobs: {bad}" if bad else "")

    return dict(zip([login.host.name for login in logins], supervised_job.of_each(logins, one), strict=True))


def show_log(
    login: JobLogin, job: str, take: Callable[[bytes], None], *, follow: bool = False, lines: int | None = None
) -> str:
    """Pass on a job's log as it comes.

    With ``follow``, it goes on until the job has ended. ``lines`` takes only the last ones.

    Returns:
        Why the log could not be read to its end, '' where it was.
    """
    words = ["--log", job, *(["--follow"] if follow else []), *(["--lines", str(lines)] if lines is not None else [])]
    answers = supervised_job.SupervisorAnswers(None, lambda _stream, data: take(data))
    complaint = bytearray()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        login.command(_program(login, *words)), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            supervised_job.listen(process, answers, complaint, float("inf"))
        finally:
            with contextlib.suppress(OSError):
                python.pipe(process.stdin).close()
            process.kill()
    if answers.ended is not None:
        return ""
    return answers.flood or python.last_line(complaint.decode("utf-8", "replace")) or "it ended without a word"


def _one(login: JobLogin, wait_s: float, *words: str, request: bytes = b"") -> JobAnswer:
    reply = python.ask(login.command(_program(login, *words)), request, wait_s, {"job", "problem"})
    if reply.answer is None:
        return JobAnswer(None, problem=reply.problem, silent=True)
    if problem := str(reply.answer["problem"]):
        return JobAnswer(None, problem=problem)
    found = _gate(reply.answer["job"])
    return JobAnswer(found, up=reply.answer.get("up") is True, problem="" if found else _UNREADABLE)


def _program(login: JobLogin, *words: str) -> list[str]:
    return login.program(supervisor_files.DETACHED, *words)


def _gate(told: object) -> DetachedJob | None:
    try:
        return DetachedJob.model_validate(told)
    except ValidationError:
        return None
