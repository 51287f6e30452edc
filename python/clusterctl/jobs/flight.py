"""Turn on PyTorch's flight recorder for a job, so that the watch can read which collectives its ranks have called."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.launch import launchers
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
    if len(team.hosts) == 1 or not release or not is_for(wish):
        yield ()
        return
    folder, problems = make(team.logins, job)
    try:
        if problems or not folder:
            why = "; ".join(sorted(set(problems.values()))[:1])
            tell(f"Note: PyTorch's flight recorder stays off: {folded(problems)}: {why}.")
            yield ()
        else:
            yield exported(folder, release)
    finally:
        remove(team.logins, job)


def _release(team: JobTeam) -> str:
    """Return the one release of PyTorch that all nodes have beside GPUs, empty where there is none."""
    stacks = [training_stack.of(node) for node in team.facts.values()]
    found = {one.framework_version if one.framework == "pytorch" and one.gpus else "" for one in stacks}
    return found.pop() if len(found) == 1 else ""


# --- The variables with which PyTorch's flight recorder writes a record on request, and the jobs that get them --------
#
# A rank with NCCL writes what TORCH_NCCL_DEBUG_INFO_PIPE_FILE asks for into the file of TORCH_FR_DUMP_TEMP_FILE
# (https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html). The buffer and the file have older
# names with NCCL in them, of which PyTorch warns from 2.8 on. By their headers, 2.8 to 2.10 make no pipe without the
# older name of the buffer, so their warning stays; 2.11 needs none. Gloo's calls are recorded too, but not written.

CALLS = 2000  # the size that PyTorch's tutorial recommends, and the default of later releases
_PYTHON = re.compile(r"python(\d[\d.]*)?")
_FILE_RENAMED = (2, 8)
_BUFFER_RENAMED = (2, 11)
# Whoever sets one of these has plans of his own.
NAMES = frozenset(
    {
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    }
)


def is_for(wish: JobOptions) -> bool:
    """Whether a job's ranks are programs in Python, with no setting of the user's for the recorder.

    In a container the folder of the pipe may be missing, and PyTorch ends a rank that cannot make its pipe.
    """
    first = launchers.parted(wish.launcher, wish.program)[1][0] if wish.program else ""
    by_launcher = launchers.TRAITS[wish.launcher].runs_scripts and (first == "-m" or first.endswith(".py"))
    runs_python = by_launcher or _PYTHON.fullmatch(PurePosixPath(first).name) is not None
    return runs_python and not {word.partition("=")[0] for word in wish.exported} & NAMES


def exported(folder: str, release: str) -> tuple[str, ...]:
    """Return the values of ``-x`` for a job."""
    numbers = _numbers(release)
    size = "TORCH_FR_BUFFER_SIZE" if numbers >= _BUFFER_RENAMED else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    file = "TORCH_FR_DUMP_TEMP_FILE" if numbers >= _FILE_RENAMED else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    return (
        f"{size}={CALLS}",
        f"{file}={folder}/record_",
        f"TORCH_NCCL_DEBUG_INFO_PIPE_FILE={folder}/pipe_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1",  # without it the pipe is looked at every eight minutes, with it every second
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in itertools.takewhile(str.isdigit, release.split(".")))


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
