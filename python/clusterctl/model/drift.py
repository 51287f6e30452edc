"""Drift: how the hosts of a cluster differ from what their last run left."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clusterctl.model.base import Record, Text

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
