"""Types of the look at a node's hardware: readings, counters, events of logs, parts, and what could not be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clusterctl.model.base import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

Value: TypeAlias = bool | int | float | str

# Sections of node_hardware that read counters; doctor runs them a second time, to see what grows.
COUNTING: tuple[str, ...] = (
    "memory_errors",
    "blocked",
    "rdma_counters",
    "interface_counters",
    "pci",
    "nvidia_smi",
    "nvlink",
)

# Sections that one node answers for the whole cluster.
OF_FABRIC: tuple[str, ...] = ("fabric",)


class HardwareReading(NamedTuple):
    """A state of a device: a setting, a speed, a width. Kind and name are those of ``node_hardware``'s sections."""

    kind: str
    device: str
    name: str
    value: Value


class Counter(NamedTuple):
    """A number that only grows until it wraps or is reset."""

    kind: str
    device: str
    name: str
    value: int


class Event(NamedTuple):
    """A line of a log: ``at`` in seconds since the epoch by the node's clock, ``source`` is xid, sxid and so on."""

    at: float
    source: str
    device: str
    code: str
    text: str


class Part(NamedTuple):
    """A part that can be swapped; ``serial`` stays with it wherever it is put."""

    kind: str
    place: str
    model: str
    serial: str
    firmware: str


class Unseen(NamedTuple):
    """What could not be looked at, and why, in a clause."""

    what: str
    why: str


class Hardware(Fact):
    """What one look saw of a node's hardware.

    ``time`` is by the node's clock. A counter is compared only with that of a look with the same ``boot_id``.
    """

    schema_version: int
    time: float
    boot_id: str = ""
    uptime_s: float = 0.0
    as_root: bool = False
    readings: tuple[HardwareReading, ...] = ()
    counters: tuple[Counter, ...] = ()
    events: tuple[Event, ...] = ()
    parts: tuple[Part, ...] = ()
    unseen: tuple[Unseen, ...] = ()

    def with_counters_of(self, later: Hardware) -> Hardware:
        """Return this look with the time and the counters of a later one, which looked at nothing else."""
        return self.model_copy(update={"time": later.time, "boot_id": later.boot_id, "counters": later.counters})

    def with_more(self, other: Hardware) -> Hardware:
        """Return this look with what another look at the same node, with other sections, saw at the same time."""
        names = ("readings", "counters", "events", "parts", "unseen")
        return self.model_copy(update={name: (*getattr(self, name), *getattr(other, name)) for name in names})

    def values(self, kind: str, name: str) -> Mapping[str, Value]:
        """Return the readings of a name by device."""
        return self.indexed.get((kind, name), {})

    @cached_property
    def indexed(self) -> Mapping[tuple[str, str], Mapping[str, Value]]:
        """The readings by kind and name, then by device: rules ask for thousands of names of a large cluster."""
        found: dict[tuple[str, str], dict[str, Value]] = {}
        for one in self.readings:
            found.setdefault((one.kind, one.name), {})[one.device] = one.value
        return found

    @cached_property
    def kept(self) -> dict[object, Any]:
        """What was computed of this look and is asked for again; a key names the computation and its input."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, which makes an index of its own."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("indexed", "kept"):
            copied.__dict__.pop(name, None)
        return copied

    def devices(self, kind: str) -> tuple[str, ...]:
        """Return the devices of a kind of which something was read, in that order."""
        return tuple(dict.fromkeys(one.device for one in self.readings if one.kind == kind))


@dataclass(frozen=True)
class HardwareLooks:
    """All looks at a node's hardware that a diagnosis has.

    Attributes:
        now: the last look.
        first: the first look of this run, where counters were read twice.
        past: looks of earlier runs, the oldest first.
    """

    now: Hardware
    first: Hardware | None = None
    past: tuple[Hardware, ...] = field(default=())

    def earlier(self) -> Iterator[Hardware]:
        """Yield the looks before the last one, the newest first."""
        if self.first is not None:
            yield self.first
        yield from reversed(self.past)
