"""Turn on PyTorch's flight recorder for a job, so that the watch can read which collectives its ranks have called."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.launch import flight_recorder
from clusterctl.model.nodeset import folded
from clusterctl.remote import python, supervised_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.jobs.team import JobTeam
    from clusterctl.launch.compose import JobOptions
    from clusterctl.remote.supervised_job import JobLogin


@contextlib.contextmanager
def recorded(team: JobTeam, wish: JobOptions, job: str, tell: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    """Yield the values of ``-x`` that turn the recorder on; none where it would tell nothing.

    That is so without PyTorch or a GPU on a node, since ranks write records of NCCL alone, and where the program is not
    Python or the user has set the recorder.
    """
    release = _release(team)
    if len(team.hosts) == 1 or not release or not flight_recorder.is_for(wish):
        yield ()
        return
    folder, problems = make(team.logins, job)
    try:
        if problems or not folder:
            why = "; ".join(sorted(set(problems.values()))[:1])
            tell(f"Note: PyTorch's flight recorder stays off: {folded(problems)}: {why}.")
            yield ()
        else:
            yield flight_recorder.exported(folder, release)
    finally:
        remove(team.logins, job)


def _release(team: JobTeam) -> str:
    """Return the one release of PyTorch that all nodes have beside GPUs, empty where there is none."""
    stacks = [training_stack.of(node) for node in team.facts.values()]
    found = {one.framework_version if one.framework == "pytorch" and one.gpus else "" for one in stacks}
    return found.pop() if len(found) == 1 else ""


# --- The folders of a job's flight records: one trip to each node makes them, and one removes them --------------------

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
        argv = login.command(login.program(PROGRAM, job, word))
        reply = python.ask(argv, b"", _WAIT_S, keys)
        return dict(reply.answer or {}), "" if reply.answer is not None else reply.problem or "it did not answer"

    return dict(zip([login.host.name for login in logins], supervised_job.of_each(logins, one), strict=True))
