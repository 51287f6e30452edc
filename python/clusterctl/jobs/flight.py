"""Turn on PyTorch's flight recorder for a job, so that the watch can read which collectives its ranks have called."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.launch import flight_recorder
from clusterctl.model.nodeset import folded
from clusterctl.remote import flight_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.jobs.team import JobTeam
    from clusterctl.launch.compose import JobOptions


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
    folder, problems = flight_folder.make(team.logins, job)
    try:
        if problems or not folder:
            why = "; ".join(sorted(set(problems.values()))[:1])
            tell(f"Note: PyTorch's flight recorder stays off: {folded(problems)}: {why}.")
            yield ()
        else:
            yield flight_recorder.exported(folder, release)
    finally:
        flight_folder.remove(team.logins, job)


def _release(team: JobTeam) -> str:
    """Return the one release of PyTorch that all nodes have beside GPUs, empty where there is none."""
    stacks = [training_stack.of(node) for node in team.facts.values()]
    found = {one.framework_version if one.framework == "pytorch" and one.gpus else "" for one in stacks}
    return found.pop() if len(found) == 1 else ""
