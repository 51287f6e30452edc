"""Whether a node is healthy by the runs of its cluster: a node that failed is healthy again after a passed proof."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from clusterctl.model.base import Record

HealthWord: TypeAlias = Literal["healthy", "failed", "not proved"]


class DoctorErrors(Record):
    """The checks in which doctor found an error on a node, and when it looked last with an error."""

    at: datetime
    checks: tuple[str, ...]


class NodeHealth(Record):
    """Whether a node is healthy.

    Attributes:
        node: its name in the inventory.
        state: ``failed`` where the newest run of the cluster named it. ``not proved`` where it was named, or doctor
            found an error, and it has not passed since, or where it never passed.
        checks: the checks of validation that named the node and that it has not passed since.
        run_id: the last run in which one of these named it; empty without one.
        doctor: what doctor found since the last run with the node that was a PASS.
    """

    node: str
    state: HealthWord
    checks: tuple[str, ...] = ()
    run_id: str = ""
    doctor: DoctorErrors | None = None
