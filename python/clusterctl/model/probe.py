"""What nodes answered to the question for their facts, and why a node did not answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from clusterctl.model.facts import NodeFacts

FailureKind: TypeAlias = Literal["unreachable", "refused", "host_key", "no_python", "no_sudo", "timeout", "error"]


@dataclass(frozen=True)
class ProbeFailure:
    """Why a node gave no record; the message names host, address and port and says what to do."""

    host: str
    kind: FailureKind
    message: str


@dataclass(frozen=True)
class Probe:
    """The answers by host name; each host asked is in exactly one of the two."""

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    failures: dict[str, ProbeFailure] = field(default_factory=dict)
