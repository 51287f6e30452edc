"""The processes that the kernel of a node has killed for lack of memory, as one look tells of them."""

from __future__ import annotations

from pydantic import ValidationError

from clusterctl.model.base import Fact


class LoggedKill(Fact):
    """One kill in the kernel's log; ``pid`` and ``uid`` are -1 where they are not known."""

    number: int  # of the log's record
    pid: int = -1
    uid: int = -1
    name: str = ""


class MemoryKills(Fact):
    """What a node tells of such kills; a count of -1 is hidden.

    Attributes:
        all: the count of the widest control group, which other work may share.
        own: the count of a group that only the job's user or the job's Slurm job has.
        log: the kills of the kernel's log, None where the job's user may not read it.
        uid: of the job's user.
    """

    all: int = -1
    own: int = -1
    log: tuple[LoggedKill, ...] | None = None
    uid: int = -1

    @classmethod
    def of(cls, told: object) -> MemoryKills:
        """Return what a node told; an answer of another form tells nothing."""
        try:
            return cls.model_validate(told)
        except ValidationError:
            return cls()
