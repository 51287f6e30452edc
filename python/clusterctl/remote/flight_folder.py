"""The folders of a job's flight records: one trip to each node makes them, and one removes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clusterctl.remote import python, reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.remote.supervised_job import JobLogin

PROGRAM = "flight_record.py"
_WAIT_S = 15.0


def make(logins: Sequence[JobLogin], job: str) -> tuple[str, dict[str, str]]:
    """Make the folder on every node; return its path, and why it could not be made, by host."""
    answers = _ask(logins, job, "--make", {"folder", "problem"})
    problems = {name: problem or str(answer["problem"]) for name, (answer, problem) in answers.items()}
    paths = {str(answer["folder"]) for answer, _problem in answers.values() if answer}
    failed = {name: problem for name, problem in problems.items() if problem}
    return (paths.pop() if len(paths) == 1 else "", failed)


def remove(logins: Sequence[JobLogin], job: str) -> None:
    """Remove the folder on every node that answers."""
    _ask(logins, job, "--remove", {"removed"})


def _ask(logins: Sequence[JobLogin], job: str, word: str, keys: set[str]) -> dict[str, tuple[dict[str, object], str]]:
    def one(login: JobLogin) -> tuple[dict[str, object], str]:
        argv = login.command([login.host.python, login.host.layout.program(PROGRAM), job, word])
        reply = python.ask(argv, b"", _WAIT_S, keys)
        return dict(reply.answer or {}), "" if reply.answer is not None else reply.problem or "it did not answer"

    at_once = max(1, min(reach.at_once(login.host for login in logins), len(logins)))
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip([login.host.name for login in logins], pool.map(one, logins), strict=True))
