"""Types of a diagnosis: findings with cause and cure, and the notes beside them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from clusterctl.model.base import Record

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that hurts, or would.

    ``cause`` and ``cure`` are a sentence each, without a full stop; ``hosts`` are those that are to be cured. An error
    stops jobs or makes them wrong; a warning slows them down or will hurt some day.
    """

    check: str
    severity: Severity
    hosts: tuple[str, ...]
    cause: str
    cure: str


class Diagnosis(Record):
    """What doctor says: findings, worst first, and notes on what could not be looked at.

    ``unreachable`` are the hosts that this machine could not log in to; there are findings of them as well.
    """

    schema_version: Literal[1] = 1
    clusterctl_version: str
    inventory: str
    started: datetime
    finished: datetime
    hosts: tuple[str, ...]
    unreachable: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
