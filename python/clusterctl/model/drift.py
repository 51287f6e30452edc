"""Drift: how the hosts of a cluster differ from what their last run left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from clusterctl.model.base import Record, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIFFERS = " differs: "
SLICES = 7
"""In so many nights each byte of the artifacts is read once; the node's probe cuts them by path."""


class HostDifference(Record):
    """One thing that is no longer as it was left: ``subject`` is a path or a property of the node."""

    subject: Text
    words: Text

    def __str__(self) -> str:
        """Return a sentence without a full stop."""
        return f"{self.subject}{_DIFFERS}{self.words}"

    @classmethod
    def of(cls, sentence: str) -> HostDifference:
        """Return the difference that a sentence of an older snapshot tells."""
        subject, _, words = sentence.partition(_DIFFERS)
        return cls(subject=subject, words=words)


class DriftReport(Record):
    """What ``clusterctl drift`` found.

    Attributes:
        hosts: by host, its differences; a host without one is left out.
        unknown: by host, why it could not be compared.
        unreachable: the hosts among ``unknown`` that did not answer.
        failed: the hosts among ``unknown`` that answered and could not be looked at.
        compared: the hosts that were compared.
        verified: whether the content of each file was compared.
    """

    schema_version: Literal[1] = 1
    inventory: str
    compared: tuple[str, ...] = ()
    verified: bool = False
    hosts: dict[str, tuple[HostDifference, ...]] = Field(default_factory=dict)
    unknown: dict[str, str] = Field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeState:
    """What of a node's facts decides.

    ``watch`` is the present state of the paths that its snapshot names; ``gpus`` counts those that NVIDIA's driver has
    taken, with the driver's version, since they decide which builds a node gets. ``lost_address`` is the address that
    Open MPI and NCCL are told to use there, where the node no longer has it. ``addresses`` are all that it has, and
    ``traits`` its settings, and ``offers`` what builds can rely on (see
    :class:`clusterctl.model.snapshot.HostSnapshot`).
    """

    platform: str
    host_keys: tuple[str, ...]
    user: str
    watch: tuple[Mapping[str, Any], ...] = ()
    gpus: str = ""
    lost_address: str = ""
    addresses: frozenset[str] = frozenset()
    traits: Mapping[str, str] = field(default_factory=dict)
    offers: str = ""
