"""Ranks that MPI started alone: each is a world of size 1, ends with code 0, and has proved nothing.

srun does so to Open MPI 5.0 without PMIx, and where Slurm's PMIx and Open MPI's do not meet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.validation.checks.base import Site

# In the result of a rank, and in the line of the C program, whose size follows its rank.
_SIZE = re.compile(
    r'\{"(?:clusterctl": 1, "event": "result", [^{}]{0,600}|rank": \d{1,9}, )"size": (?P<size>\d{1,9})[,}]'
)
_CURE = "run 'clusterctl doctor' on the nodes, and see 'srun --mpi=list'; mpirun needs no PMIx of Slurm's"


@dataclass(frozen=True)
class Alone:
    """What is wrong in words, and the hosts where it is known that not all are concerned."""

    words: str
    hosts: tuple[str, ...] = ()


def found(site: Site, outcome: JobOutcome) -> Alone | None:
    """Return the fault of a job whose ranks are worlds of their own, None where they are one world.

    Args:
        site: where it ran; a job of one rank is a world of size 1 rightly.
        outcome: all its output.
    """
    ranks = len(site.placement)
    sizes = [int(match["size"]) for line in outcome.lines for match in _SIZE.finditer(line.text)]
    small = [size for size in sizes if size < ranks]
    if not small:
        return None
    by = "srun" if outcome.argv[:1] == ("srun",) else "mpirun"
    many = "each rank" if len(small) >= ranks and set(small) == {1} else f"{len(small)} ranks"
    world = "a world of size 1" if set(small) == {1} else f"in a world of size {min(small)}"
    return Alone(f"{many} is {world} instead of {ranks}: {by}'s PMIx and Open MPI's did not meet; {_CURE}")
