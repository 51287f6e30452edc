"""Types of a diagnosis: findings with cause and cure, the notes beside them, and the health of a node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar

from clusterctl.model.base import Record

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that hurts, or would.

    ``cause`` and ``cure`` are a sentence each, without a full stop; ``hosts`` are those that are to be cured. An error
    stops jobs or makes them wrong; a warning slows them down or will hurt some day. ``fix`` holds commands
    that cure it on each host, to be run there as root; it is empty where no command does. ``source`` says where the
    limit, or the meaning of what was counted, is written down; it may be empty.
    """

    check: str
    severity: Severity
    hosts: tuple[str, ...]
    cause: str
    cure: str
    fix: tuple[tuple[str, ...], ...] = ()
    source: str = ""


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


Member = TypeVar("Member", bound="Hashable")
Value = TypeVar("Value", bound="Hashable")


@dataclass(frozen=True)
class Majority(Generic[Member, Value]):
    """How a value is spread over members such as hosts or ranks.

    ``usual`` is the value that more members have than any other value, None where two values share the first place.
    ``others`` holds the members of each other value; without a usual value it holds every member.
    """

    usual: Value | None
    others: Mapping[Value, tuple[Member, ...]]

    @property
    def odd(self) -> tuple[Member, ...]:
        """The members that differ from the usual value, one value after the other."""
        return tuple(member for members in self.others.values() for member in members)


def majority(values: Mapping[Member, Value]) -> Majority[Member, Value]:
    """Find the usual value and the members that differ from it.

    Returns:
        The usual value and all others. Where all members agree, ``others`` is empty.
    """
    members: dict[Value, list[Member]] = defaultdict(list)
    for member, value in values.items():
        members[value].append(member)
    ranking = sorted(members, key=lambda value: len(members[value]), reverse=True)
    if not ranking:
        return Majority(None, {})
    shared = len(ranking) > 1 and len(members[ranking[0]]) == len(members[ranking[1]])
    usual = None if shared else ranking[0]
    return Majority(usual, {value: tuple(names) for value, names in members.items() if shared or value != usual})


# --- Whether a node is healthy by the runs of its cluster: a node that failed is healthy again after a passed proof ---

HealthWord: TypeAlias = Literal["healthy", "failed", "not proved"]


class DoctorErrors(Record):
    """The checks in which doctor found an error on a node, and when it looked last with an error."""

    at: datetime
    checks: tuple[str, ...]


class NodeHealth(Record):
    """Whether a node is healthy."""

    node: str  # its name in the inventory
    # ``failed`` where the newest run of the cluster named it. ``not proved`` where it was named, or doctor found an
    # error, and it has not passed since, or where it never passed.
    state: HealthWord
    checks: tuple[str, ...] = ()  # the checks of validation that named the node and that it has not passed since
    run_id: str = ""  # the last run in which one of these named it; empty without one
    doctor: DoctorErrors | None = None  # what doctor found since the last run with the node that was a PASS
