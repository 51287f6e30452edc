"""Start a job that needs no controller, list such jobs of nodes, read their logs and end them.

``detached_job.py`` on the node does the work. Everything that it answers passes :class:`DetachedJob`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.detached_job import MOST_JOBS, DetachedJob
from clusterctl.remote import python, reach, supervised_job, supervisor_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.remote.supervised_job import JobLogin, JobSpec

_LIST_WAIT_S = 20.0
_START_WAIT_S = 60.0  # the node answers after half a minute at the latest
_STOP_WAIT_S = 75.0
_UNREADABLE = "its answer is not readable"


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
        found = [_gate(one) for one in told[:MOST_JOBS]]
        bad = sum(one is None for one in found)
        return JobsOfNode(tuple(one for one in found if one), f"unreadable records of jobs: {bad}" if bad else "")

    if not logins:
        return {}
    with ThreadPoolExecutor(max(1, min(reach.at_once(login.host for login in logins), len(logins)))) as pool:
        return dict(zip([login.host.name for login in logins], pool.map(one, logins), strict=True))


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
