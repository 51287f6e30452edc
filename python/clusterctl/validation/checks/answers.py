"""The checks of MPI operations: mpi4py with numpy on every slot, compared with known answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.validation.checks import base, judging
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.model.job_outcome import JobOutcome


@dataclass(frozen=True)
class Answers(base.Check):
    """One operation of MPI with many types, sizes and roots."""

    name: str
    title: str
    deadline_s: float = 45.0
    file = "mpi_checks.py"

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers; the program has compared them, rank by rank."""
        return judging.judge(site, outcome)


def _always(check: Answers) -> Callable[[object], Answers]:
    return lambda _options: check


_TITLES = {
    "point_to_point": "Python objects and buffers from rank to rank",
    "broadcast": "one root's buffers and objects reach every rank",
    "scatter": "every rank gets its part",
    "gather": "one root gets the parts of all ranks",
    "reduce": "sums and maxima at one root",
    "allreduce": "minima, maxima and sums on every rank",
}
CHECKS = tuple(
    Registration(name=name, order=order, first_suite="smoke", make=_always(Answers(name, title)))
    for order, (name, title) in enumerate(_TITLES.items(), start=20)
)
