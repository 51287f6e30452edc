"""A node of a job as every launcher takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.model.facts import NodeFacts

_OPENMPI = "openmpi"


@dataclass(frozen=True)
class Member:
    """A node of the job: its ranks, its Open MPI, and the user that runs the job, by default the one that logs in.

    ``address`` is where the other nodes reach it. ``called`` is the name that a scheduler gives it, by which alone
    mpirun knows nodes inside an allocation.
    """

    facts: NodeFacts
    slots: int
    version: str
    has_ucx: bool = False
    user: str = ""
    address: str = ""
    called: str = ""

    @property
    def job_user(self) -> str:
        """The user that runs the job on the node."""
        return self.user or self.facts.user.name


def member(node: NodeFacts, slots: int, user: str | None = None, address: str = "", called: str = "") -> Member:
    """Return a node of a job from its facts; ``user``, ``address`` and ``called`` as :class:`Member` has them."""
    artifact = node.artifact(_OPENMPI)
    options = artifact.inputs.get("configure", ())
    return Member(
        facts=node,
        slots=slots,
        version=artifact.version,
        has_ucx=any(str(word).startswith("--with-ucx") for word in options),
        user=user or "",
        address=address,
        called=called,
    )
