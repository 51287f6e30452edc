"""Look at the ranks of a running job on all its nodes: one trip each, as the job's user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import ValidationError

from clusterctl.model.job_outcome import Stack
from clusterctl.model.stall import NodeLook
from clusterctl.remote import python, reach, ssh_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.remote.supervised_job import JobLogin

Stacks: TypeAlias = Literal["none", "quick", "full"]

PROGRAM = "rank_look.py"
_OPTIONS: dict[Stacks, tuple[str, ...]] = {"none": (), "quick": ("--stacks", "--quick"), "full": ("--stacks",)}
_CONNECT_S = 5
_LOOK_S = 10.0
_STACKS_S = 20.0  # the program's own limit is shorter


def looks(
    logins: Sequence[JobLogin], job: str, stacks: Stacks = "none", within_s: float | None = None
) -> tuple[NodeLook, ...]:
    """Look at every node; a node that does not answer has a look that says so.

    Args:
        logins: the nodes of the job.
        job: the job's id.
        stacks: also take the stacks of the ranks, which takes some seconds; the quick ones lack a library's functions.
        within_s: seconds until a node counts as silent; by default 10, and 20 with stacks.
    """
    limit_s = within_s or (_LOOK_S if stacks == "none" else _STACKS_S)
    if not logins:
        return ()
    at_once = max(1, min(reach.at_once(login.host for login in logins), len(logins)))
    with ThreadPoolExecutor(at_once) as pool:
        return tuple(pool.map(lambda login: _look(login, job, stacks, limit_s), logins))


def _look(login: JobLogin, job: str, stacks: Stacks, limit_s: float) -> NodeLook:
    name = login.host.name
    remote = [login.host.python, login.host.layout.program(PROGRAM), job, *_OPTIONS[stacks]]
    argv = login.command(remote, connect_timeout_s=_CONNECT_S)
    try:
        reply = python.ask(argv, b"", limit_s, {"ranks", "at"})
    except OSError as error:  # this machine lacks ssh, memory or open files
        return NodeLook(host=name, problem=str(error))
    if reply.answer is None:
        return NodeLook(host=name, problem=reply.problem, silent=_is_silent(login, reply))
    try:
        given = [Stack(host=name, **entry) for entry in reply.answer.get("stacks", ())]
        return NodeLook.model_validate({**reply.answer, "host": name, "stacks": given, "problem": ""})
    except (TypeError, AttributeError, ValidationError):
        return NodeLook(host=name, problem="its answer is not readable")


def _is_silent(login: JobLogin, reply: python.Reply) -> bool:
    if reply.done is None or login.host.step is not None:
        return reply.timed_out
    return ssh_failure.is_silent(reply.done.returncode, reply.done.errors.decode("utf-8", "replace"))
