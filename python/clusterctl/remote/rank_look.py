"""Look at the ranks of a running job on all its nodes: one trip each, as the job's user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pydantic import ValidationError

from clusterctl.model.job_outcome import Stack
from clusterctl.model.stall import NodeLook
from clusterctl.remote import python, reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.remote.supervised_job import JobLogin

PROGRAM = "rank_look.py"
_CONNECT_S = 5
_LOOK_S = 10.0
_STACKS_S = 20.0  # the program's own limit is shorter


def looks(logins: Sequence[JobLogin], job: str, *, stacks: bool) -> tuple[NodeLook, ...]:
    """Look at every node; a node that does not answer has a look that says so.

    Args:
        logins: the nodes of the job.
        job: the job's id.
        stacks: also take the stacks of the ranks, which takes some seconds.
    """
    if not logins:
        return ()
    at_once = max(1, min(reach.at_once(login.host for login in logins), len(logins)))
    with ThreadPoolExecutor(at_once) as pool:
        return tuple(pool.map(lambda login: _look(login, job, stacks=stacks), logins))


def _look(login: JobLogin, job: str, *, stacks: bool) -> NodeLook:
    name = login.host.name
    remote = [login.host.python, login.host.layout.program(PROGRAM), job, *(["--stacks"] if stacks else [])]
    argv = login.command(remote, connect_timeout_s=_CONNECT_S)
    reply = python.ask(argv, b"", _STACKS_S if stacks else _LOOK_S, {"ranks", "at"})
    if reply.answer is None:
        return NodeLook(host=name, problem=reply.problem)
    try:
        given = [Stack(host=name, **entry) for entry in reply.answer.get("stacks", ())]
        return NodeLook.model_validate({**reply.answer, "host": name, "stacks": given, "problem": ""})
    except (TypeError, AttributeError, ValidationError):
        return NodeLook(host=name, problem="its answer is not readable")
