"""Whose a node is: the mark of its cluster, the lock of the run that works on it, and what a node says of both."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from clusterctl.model.base import Fact, Text
from clusterctl.support.words import one_line


class ClusterMark(Fact):
    """What a node keeps of its cluster; ``members`` are addresses by name."""

    cluster: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    name: Text = ""
    controller: Text = ""
    inventory: Text = ""
    since: Text = ""
    members: dict[Text, Text] = Field(default_factory=dict)


class NodeLock(Fact):
    """The run that works on a node.

    Attributes:
        run: its id.
        host: the inventory's name of the node.
        user: who started it.
        controller: the machine on which it runs.
        machine: a digest of that machine's id; '' where it has none.
        boot: the boot of that machine.
        namespace: the namespace of its process number.
        pid: its process there.
        ticks: when the process started, in clock ticks since the boot.
        command: as it may be shown.
        since: when the lock was taken.
    """

    run: Text
    host: Text = ""
    user: Text = ""
    controller: Text = ""
    machine: Text = ""
    boot: Text = ""
    namespace: Text = ""
    pid: int = 0
    ticks: int = 0
    command: Annotated[str, Field(max_length=1 << 17), AfterValidator(one_line)] = ""
    since: Text = ""


class ClaimAnswer(Fact):
    """What a node says to a claim.

    Attributes:
        mark: of its cluster, before the claim.
        lost: the members that this cluster would lose.
        holder: the lock of another run.
        taken: whether this run has the lock now.
        problem: why the node could not do it, a clause.
    """

    mark: ClusterMark | None = None
    lost: tuple[Text, ...] = ()
    holder: NodeLock | None = None
    taken: bool = False
    problem: Text = ""
