"""Types of the processes of jobs that the probe program finds on a node."""

from __future__ import annotations

from clusterctl.model.base import Fact


class Leftover(Fact):
    """A process of an MPI, Horovod or torchrun job whose launcher is gone; ``why`` says how that was seen."""

    pid: int
    user: str
    command: str
    age_s: float
    why: str


class BusyProcess(Fact):
    """A process that is a ``rank`` of a job, uses a GPU, or uses artifacts, whose folders are ``trees``."""

    pid: int
    user: str
    command: str
    rank: bool
    gpu: bool = False
    trees: tuple[str, ...] = ()
