"""Types of the ledger of parts: which part was in which node, and since when."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from clusterctl.model.base import Record


class Identified(Protocol):
    """What has a serial number, a UUID, or both."""

    @property
    def serial(self) -> str:
        """The serial number, '' where it is not known."""

    @property
    def uuid(self) -> str:
        """The UUID, '' where it is not known."""


def is_another(one: Identified, other: Identified) -> bool:
    """Whether two parts are known to differ: a UUID is held against a UUID, and a serial number against its like."""
    if one.uuid and other.uuid:
        return one.uuid != other.uuid
    shared = {one.uuid, one.serial} & {other.uuid, other.serial} - {""}
    return bool(one.serial and other.serial) and not shared


class Stay(Record):
    """A part in one place of one node, from the first to the last look that saw it there."""

    kind: str
    serial: str
    uuid: str = ""
    model: str = ""
    firmware: str = ""
    host: str
    place: str
    first: datetime
    last: datetime

    @property
    def name(self) -> str:
        """The serial number, or else the UUID."""
        return self.serial or self.uuid


class PartLedger(Record):
    """All stays of all parts of a cluster, in the order in which they began."""

    schema_version: Literal[1] = 1
    stays: tuple[Stay, ...] = ()

    def of_host(self, host: str) -> tuple[Stay, ...]:
        """Return the stays of parts in a node."""
        return tuple(stay for stay in self.stays if stay.host == host)


class PartChange(NamedTuple):
    """What became of a part since the last look at its node.

    ``change`` is ``gone`` (no node has it), ``moved`` (``before`` is where it was), ``returned`` (it was gone, and
    ``before`` is where it was last) or ``swapped`` (``before`` is the part that was in its place). ``name`` is its
    serial number, or else its UUID.
    """

    change: Literal["gone", "moved", "returned", "swapped"]
    host: str
    place: str
    kind: str
    name: str
    before: Stay
