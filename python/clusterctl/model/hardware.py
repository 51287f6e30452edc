"""Types of the look at a node's hardware: readings, counters, events of logs, parts, and what could not be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import Field, FiniteFloat

from clusterctl.model.base import Fact, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self


# --- The form of each reading of a node's hardware: text, a number, or a flag -----------------------------------------
#
# A node, or a tool on it, may tell anything. What has another form than this table says is odd: no rule sees it, and
# doctor notes that it was not looked at.

Word: TypeAlias = Annotated[str, Field(max_length=1 << 14)]  # a rule may search it
Value: TypeAlias = bool | int | float | Word
Form: TypeAlias = Literal["text", "number", "flag"]

_LARGEST = 2.0**64  # no size, speed or count of a machine is larger; NaN is not below it
_NAMES: Mapping[Form, Mapping[str, tuple[str, ...]]] = {
    "text": {
        "board": ("model", "firmware"),
        "array": ("state",),
        "bond": ("mode",),
        "bond_member": ("mii_status", "bond"),
        "cpu": (
            "clock source",
            "idle driver",
            "idle states",
            "idle states switched off",
            "kernel parameters of idle states",
            "deepest C-state of intel_idle",
            "frequency driver",
            "hyperthreading",
            "automatic NUMA balancing",
            "zone reclaim",
            "governor",
            "energy preference",
            "turbo",
            "transparent huge pages",
            "processors offline",
        ),
        "disk": ("state",),
        "fabric_link": ("ends", "could_be"),
        "filesystem": ("type", "problem"),
        "gpu": (
            "model",
            "persistence",
            "compute mode",
            "mig",
            "ecc",
            "remap pending",
            "remap failed",
            "retirement pending",
            "sram threshold exceeded",
            "reset required",
            "recovery action",
            "fabric state",
            "fabric status",
            "pstate",
            "throttled by",
            "IOMMU",
            "way to the nearest RDMA card",
        ),
        "interface": ("driver", "operstate", "duplex", "address"),
        "lossless": ("pfc", "trust", "ecn_roce_np", "ecn_roce_rp"),
        "node": ("NVML", "GPUDirect"),
        "numa": ("processors",),
        "nvlink": ("links down",),
        "rdma_device": ("place", "fw_ver", "board_id"),
        "rdma_port": ("link_layer", "state", "phys_state", "generation", "pkeys", "interface"),
        "sensor": ("state",),
        "shared memory": ("largest",),
        "sshd": ("MaxStartups",),
    },
    "number": {
        "array": ("members", "members working"),
        "bond": ("members",),
        "cpu": ("highest frequency in kHz", "NUMA nodes"),
        "disk": ("critical warning", "endurance used in percent", "spare in percent", "least spare in percent"),
        "fabric_link": ("lanes", "lane_gbps"),
        "filesystem": ("answer in s", "size in bytes", "free bytes", "inodes", "free inodes"),
        "gpu": (
            "power limit W",
            "default power limit W",
            "power W",
            "temperature C",
            "utilization",
            "memory used MiB",
            "NUMA node",
            "PCIe lanes",
            "PCIe lanes possible",
            "PCIe GT/s",
            "PCIe GT/s possible",
        ),
        "huge pages": ("reserved huge pages",),
        "interface": ("speed", "mtu"),
        "memory": ("memory in KiB", "memory modules", "reserved huge pages"),
        "node": ("NVSwitches", "IPv4 neighbours", "IPv6 neighbours", "local ports"),
        "numa": ("memory in KiB",),
        "nvlink": ("links up", "slowest GB/s"),
        "rdma card": ("NUMA node", "PCIe lanes", "PCIe lanes possible", "PCIe GT/s", "PCIe GT/s possible"),
        "rdma_port": ("rate_gbps", "width", "sm_lid", "active_mtu"),
        "shared memory": ("stale bytes", "stale segments"),
    },
    "flag": {
        "bond_member": ("in_group",),
        "disk": ("healthy",),
        "filesystem": ("remote", "read-only", "answers"),
        "gpu": ("on the bus", "lost"),
        "interface": ("wanted_up",),
        "node": ("fabric manager",),
        "pci port": ("ACS",),
    },
}
FORMS: Mapping[tuple[str, str], Form] = {
    (kind, name): form for form, kinds in _NAMES.items() for kind, names in kinds.items() for name in names
}
# Kinds whose names are numbers of processes, or codes of a log.
_OF_KIND: Mapping[str, Form] = {"gpu holder": "text", "kernel log": "number"}


def form_of(kind: str, name: str) -> Form | None:
    """Return the form of a reading, None where this release does not know it."""
    return FORMS.get((kind, name)) or _OF_KIND.get(kind)


def has_form(value: Value, form: Form) -> bool:
    """Whether a value has a form; a flag is not a number, and neither is NaN or an absurd number."""
    if form == "text":
        return isinstance(value, str)
    if form == "flag" or isinstance(value, bool):
        return form == "flag" and isinstance(value, bool)
    return isinstance(value, int | float) and -_LARGEST < value < _LARGEST


_COUNT = 1 << 128  # the largest counters are those of NVMe, which have 128 bits

# Sections of node_look.hardware that read counters; doctor runs them a second time, to see what grows.
COUNTING: tuple[str, ...] = (
    "memory_errors",
    "machine_checks",
    "blocked",
    "rdma_counters",
    "interface_counters",
    "pci",
    "nvidia_smi",
    "nvlink",
)

# A kind of which a look has none where nothing is wrong: a process that is not stuck any more has no counter.
_OF_THE_MOMENT = "process"

SECOND_LOOK = ", at the second look"  # ends what that look could not read

# Sections that one node answers for the whole cluster.
OF_FABRIC: tuple[str, ...] = ("fabric",)
_KINDS_OF_FABRIC = frozenset({"fabric_link", "fabric_port"})
_MOST, _MOST_PARTS = 1 << 16, 1 << 12  # of one node without the fabric


class HardwareReading(NamedTuple):
    """A state of a device: a setting, a speed, a width. Kind and name are those of a section's rows."""

    kind: Word
    device: Word
    name: Word
    value: Value


class Counter(NamedTuple):
    """A number that only grows until it wraps or is reset."""

    kind: Word
    device: Word
    name: Word
    value: Annotated[int, Field(ge=-_COUNT, le=_COUNT)]


class Event(NamedTuple):
    """A line of a log: ``at`` in seconds since the epoch by the node's clock, ``source`` is xid, sxid and so on."""

    at: FiniteFloat
    source: Word
    device: Word
    code: Word
    text: Word


class Part(NamedTuple):
    """A part that can be swapped; ``serial`` and a GPU's ``uuid`` stay with it wherever it is put.

    Either may be empty. Up to clusterctl 0.1.0, the UUID of a GPU without a serial number was its ``serial``.
    """

    kind: Word
    place: Word
    model: Word
    serial: Word
    firmware: Word
    uuid: Word = ""


class Unseen(NamedTuple):
    """What could not be looked at, and why, in a clause."""

    what: Word
    why: Word


class Hardware(Fact):
    """What one look saw of a node's hardware.

    ``time`` is by the node's clock. A counter is compared only with that of a look with the same ``boot_id``.
    """

    schema_version: int
    time: FiniteFloat
    boot_id: str = ""
    uptime_s: FiniteFloat = 0.0
    as_root: bool = False
    readings: tuple[HardwareReading, ...] = ()
    counters: tuple[Counter, ...] = ()
    events: Annotated[tuple[Event, ...], Field(max_length=_MOST)] = ()
    parts: Annotated[tuple[Part, ...], Field(max_length=_MOST_PARTS)] = ()
    unseen: Annotated[tuple[Unseen, ...], Field(max_length=_MOST)] = ()

    def without_fabric(self) -> Hardware:
        """Return what a node that was not asked for the fabric can tell: nothing of the links of other nodes.

        Raises:
            ValueError: that is more than any node has.
        """
        readings = tuple(one for one in self.readings if one.kind not in _KINDS_OF_FABRIC)
        counters = tuple(one for one in self.counters if one.kind not in _KINDS_OF_FABRIC)
        if max(len(readings), len(counters)) > _MOST:
            raise ValueError(f"it has more than {_MOST} readings or counters")
        return self.model_copy(update={"readings": readings, "counters": counters})

    def with_counters_of(self, later: Hardware) -> Hardware:
        """Return this look with the time and the counters of a later one, and with what that could not look at.

        Counters of a kind that the later look has not read keep their value, unless the node restarted between the two.
        """
        again = {one.kind for one in later.counters} | {_OF_THE_MOMENT}
        kept = [one for one in self.counters if one.kind not in again and later.boot_id == self.boot_id]
        missed = [Unseen(f"{one.what}{SECOND_LOOK}", one.why) for one in later.unseen if one not in self.unseen]
        more = {
            "time": later.time,
            "boot_id": later.boot_id,
            "counters": (*later.counters, *kept),
            "unseen": (*self.unseen, *missed),
        }
        return self.model_copy(update=more)

    def with_more(self, other: Hardware) -> Hardware:
        """Return this look with what another look at the same node, with other sections, saw at the same time."""
        names = ("readings", "counters", "events", "parts", "unseen")
        return self.model_copy(update={name: (*getattr(self, name), *getattr(other, name)) for name in names})

    def values(self, kind: str, name: str) -> Mapping[str, Value]:
        """Return the readings of a name by device, for a rule that compares them; odd ones are left out."""
        return self.indexed.get((kind, name), {})

    def numbers(self, kind: str, name: str) -> Mapping[str, float]:
        """Return the readings of a name that are numbers, by device."""
        found = self.values(kind, name).items()
        return {device: value for device, value in found if not isinstance(value, str | bool) and _is_number(value)}

    def texts(self, kind: str, name: str) -> Mapping[str, str]:
        """Return the readings of a name that are texts, by device."""
        return {device: value for device, value in self.values(kind, name).items() if isinstance(value, str)}

    def flags(self, kind: str, name: str) -> Mapping[str, bool]:
        """Return the readings of a name that are flags, by device."""
        return {device: value for device, value in self.values(kind, name).items() if isinstance(value, bool)}

    def number(self, kind: str, name: str, device: str = "") -> float | None:
        """Return the number that was read of a device, None if there is none."""
        value = self.values(kind, name).get(device)
        return None if value is None or isinstance(value, str | bool) or not _is_number(value) else value

    def text(self, kind: str, name: str, device: str = "") -> str:
        """Return the text that was read of a device, '' if there is none."""
        value = self.values(kind, name).get(device)
        return value if isinstance(value, str) else ""

    def flag(self, kind: str, name: str, device: str = "") -> bool | None:
        """Return the flag that was read of a device, None if there is none."""
        value = self.values(kind, name).get(device)
        return value if isinstance(value, bool) else None

    @cached_property
    def odd(self) -> tuple[HardwareReading, ...]:
        """The readings whose value has another form than its name says. No rule sees them; doctor notes them."""
        return tuple(one for one in self.readings if _is_odd(one))

    def odd_ones(self, kind: str, name: str) -> frozenset[str]:
        """Return the devices of which a name was read with an odd value: the device is there, its value unknown."""
        return self._odd_devices.get((kind, name), frozenset())

    @cached_property
    def _odd_devices(self) -> Mapping[tuple[str, str], frozenset[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for one in self.odd:
            found.setdefault((one.kind, one.name), set()).add(one.device)
        return {key: frozenset(devices) for key, devices in found.items()}

    @cached_property
    def indexed(self) -> Mapping[tuple[str, str], Mapping[str, Value]]:
        """The readings by kind and name, then by device: rules ask for thousands of names of a large cluster."""
        found: dict[tuple[str, str], dict[str, Value]] = {}
        for one in self.readings:
            if not _is_odd(one):
                found.setdefault((one.kind, one.name), {})[one.device] = one.value
        return found

    def part(self, kind: str, place: str) -> Part | None:
        """Return the part of a kind at a place, None if none was seen there."""
        return self._parts.get((kind, place))

    @cached_property
    def _parts(self) -> Mapping[tuple[str, str], Part]:
        return {(part.kind, part.place): part for part in self.parts}

    @cached_property
    def kept(self) -> dict[object, Any]:
        """What was computed of this look and is asked for again; a key names the computation and its input."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, which makes an index of its own."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("indexed", "kept", "odd", "_odd_devices", "_parts"):
            copied.__dict__.pop(name, None)
        return copied

    def lacks(self, kind: str, section: str) -> bool:
        """Whether the look found no device of a kind that a section reads, and the section had no problem."""
        return bool(self.boot_id) and not self.devices(kind) and all(one.what != section for one in self.unseen)

    def devices(self, kind: str) -> tuple[str, ...]:
        """Return the devices of a kind of which something was read, in that order."""
        return tuple(dict.fromkeys(one.device for one in self.readings if one.kind == kind))


def _is_number(value: float) -> bool:
    return has_form(value, "number")


def _is_odd(one: HardwareReading) -> bool:
    form = form_of(one.kind, one.name)
    if form is None:
        return isinstance(one.value, float) and not has_form(one.value, "number")
    return not has_form(one.value, form)


@dataclass(frozen=True)
class HardwareLooks:
    """All looks at a node's hardware that a diagnosis has."""

    now: Hardware  # the last look
    # the first look of this run, where counters were read twice, with those counters alone
    first: Hardware | None = None
    past: tuple[Hardware, ...] = field(default=())  # looks of earlier runs, the oldest first

    def read_again(self, later: Hardware) -> HardwareLooks:
        """Return the looks after a second one of this run, which read counters."""
        again = {one.kind for one in later.counters}
        counters = tuple(one for one in self.now.counters if one.kind in again)
        first = self.now.model_copy(update={"counters": counters})
        return HardwareLooks(self.now.with_counters_of(later), first, self.past)

    @property
    def last_run(self) -> Hardware | None:
        """The last look of an earlier run, None where there is none."""
        return self.past[-1] if self.past else None

    @property
    def baselines(self) -> tuple[Hardware, ...]:
        """The looks since which growth counts: the first of this run, and the last of an earlier run."""
        return tuple(look for look in (self.first, self.last_run) if look is not None)

    def earlier(self) -> Iterator[Hardware]:
        """Yield the looks before the last one, the newest first."""
        if self.first is not None:
            yield self.first
        yield from reversed(self.past)


# --- Types of the ledger of parts: which part was in which node, and since when ---------------------------------------


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
