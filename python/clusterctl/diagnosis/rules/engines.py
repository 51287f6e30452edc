"""The engines that judge the rows of doctor's table: a limit, against peers, and growth since an earlier look.

The first has a limit for a reading of one device. The second holds a reading against nodes with the same board, or
against GPUs of the same model. The third has a limit for the growth of a counter.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from clusterctl.analysis import robust_stats
from clusterctl.diagnosis.skew import compare
from clusterctl.model.findings import Finding, Majority, majority
from clusterctl.model.hardware import is_another
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Severity
    from clusterctl.model.hardware import Hardware, HardwareLooks, Value

    Commands = tuple[tuple[str, ...], ...]
    Place = tuple[str, str]  # host and device

Key = TypeVar("Key")
Member = TypeVar("Member", bound="Hashable")
LEAST = 3  # of two that differ, neither is the odd one
TIMES = 10.0  # a growth that stands out is so many times the median of the others
SHOWN = 4
MOST_DEVICES = 256  # of a kind, on one node
_LARGE = 0.9  # of the memory of another node: it is of the same size, and may lack a module
_UNITS = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


# --- a limit ----------------------------------------------------------------------------------------------------------


class Device(dict[str, object]):
    """A device with its readings by name, and its own name as ``device``; it fills the texts of a row."""

    def __init__(self, look: Hardware, kind: str, name: str) -> None:
        super().__init__(device=name)
        self._look, self._kind, self._name = look, kind, name

    def __missing__(self, reading: str) -> Value | None:
        return self._look.values(self._kind, reading).get(self._name)

    def number(self, reading: str, otherwise: float = 0.0) -> float:
        found = self._look.number(self._kind, reading, self._name)
        return otherwise if found is None else found


class ReadingLimit(NamedTuple):
    """A row: a device is at fault by what is read of it.

    Attributes:
        severity: an error breaks jobs.
        name: the reading that is judged.
        wrong: the value that is a fault, or a function that judges the device.
        cause: with readings of the device in braces; ``{devices}`` makes one finding of all such devices of a node.
        cure: in one line, with the same words.
    """

    severity: Severity
    name: str
    wrong: str | bool | Callable[[Device], object]
    cause: str
    cure: str


class ReadingLimits(NamedTuple):
    """The rows for devices of one kind, whose findings have one check."""

    check: str
    kind: str
    rows: tuple[ReadingLimit, ...]


def beyond(host: str, look: Hardware, limits: ReadingLimits) -> Iterator[Finding]:
    """Return the devices of a node that are beyond a limit, row by row."""
    for severity, name, wrong, cause, cure in limits.rows:
        found = [Device(look, limits.kind, device) for device in look.values(limits.kind, name)]
        found = [one for one in found if (wrong(one) if callable(wrong) else one[name] == wrong)]
        if found and "{devices}" in cause:
            found[0]["devices"] = and_more((str(one["device"]) for one in found), SHOWN)
            del found[1:]
        for one in found:
            yield Finding(limits.check, severity, (host,), cause.format_map(one), cure.format_map(one))


# --- against peers ----------------------------------------------------------------------------------------------------


class Alike(NamedTuple):
    """A row: nodes with the same board have the same value.

    Attributes:
        kind: the kind of the device.
        name: the reading that is compared.
        cure: in one line.
        fix: the command that sets the value of most nodes, which stands for ``@``; only a plain word is set.
        what: the reading in words, with ``{device}``; by default its name.
    """

    kind: str
    name: str
    cure: str
    fix: tuple[str, ...] = ()
    what: str = ""

    def commands(self, usual: str) -> Commands:
        """Return the command that gives a node the usual value."""
        return (tuple(word.replace("@", usual) for word in self.fix),) if self.fix and usual.isalnum() else ()


class OfModel(NamedTuple):
    """A row: GPUs of one model, or devices of such GPUs, have the same value.

    Attributes:
        kind: the kind of the device.
        name: the reading that is compared.
        cause: with ``{places}``, ``{value}`` and ``{usual}``.
        cure: in one line, with ``{usual}``.
        fixes: by usual value, '' for any, the options of nvidia-smi that set it without a reset of the GPU.
        lower: a higher value than that of most is no fault.
    """

    kind: str
    name: str
    cause: str
    cure: str
    fixes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    lower: bool = False


class OddOnes(NamedTuple):
    """The GPUs of a host that have another value than most of their model."""

    host: str
    devices: tuple[str, ...]
    value: Value
    usual: Value


def groups(view: View, least: int = LEAST) -> tuple[Mapping[str, Hardware], ...]:
    """Return the last looks at nodes with equal boards, by host; groups of fewer nodes than ``least`` are left out."""
    found: dict[str, dict[str, Hardware]] = {}
    for host, looks in view.hardware.items():
        found.setdefault(looks.now.text("board", "model"), {})[host] = looks.now
    return tuple(group for group in found.values() if len(group) >= least)


def unlike(view: View, check: str, rows: Iterable[Alike], least: int = LEAST) -> Iterator[Finding]:
    """Return the nodes whose reading differs from that of most nodes with their board, device by device."""
    for row, group in ((row, group) for row in rows for group in groups(view, least)):
        by_device: dict[str, dict[str, str]] = {}
        for host, seen in group.items():
            for device, value in seen.values(row.kind, row.name).items():
                by_device.setdefault(device, {})[host] = str(value)
        for device, values in by_device.items():
            what = row.what.format(device=device) or (f"{row.name} of {device}" if device else row.name)
            yield from compare(check, "warning", what, values, row.cure, row.commands)


def unlike_model(view: View, check: str, severity: Severity, rows: Iterable[OfModel]) -> Iterator[Finding]:
    """Return the GPUs whose reading differs from that of most GPUs of their model."""
    for row in rows:
        for found in odd(view, row.kind, row.name, lower=row.lower):
            value, usual = (number(one) if row.lower else one for one in (found.value, found.usual))
            words = {"places": and_more(found.devices, SHOWN), "value": value, "usual": usual}
            options = row.fixes.get(str(usual), row.fixes.get("", ()))
            fix = tuple(
                ("nvidia-smi", "-i", device, *(one.format_map(words) for one in options))
                for device in found.devices
                if options
            )
            cause, cure = row.cause.format_map(words), row.cure.format_map(words)
            yield Finding(check, severity, (found.host,), cause, cure, fix)


def by_model(view: View, kind: str, name: str) -> dict[str, dict[Place, Value]]:
    """Return a reading by the GPU's model, then by host and device."""
    found: dict[str, dict[Place, Value]] = {}
    for host, looks in view.hardware.items():
        models = looks.now.texts("gpu", "model")
        for device, value in islice(looks.now.values(kind, name).items(), MOST_DEVICES):
            found.setdefault(models.get(device, ""), {})[host, device] = value
    return found


def voters(members: Mapping[Place, Member]) -> dict[Place, Member]:
    """Return the devices that decide what is usual: of one host at most as many as most hosts have.

    A host that makes up devices would outvote all others.
    """
    most = statistics.median_low(Counter(host for host, _device in members).values()) if members else 0
    taken: Counter[str] = Counter()
    found = {}
    for place, value in members.items():
        taken[place[0]] += 1
        if taken[place[0]] <= most:
            found[place] = value
    return found


def spread(members: Mapping[Place, Member]) -> Majority[Place, Member]:
    """Return the usual value, by the devices that decide it, and all devices with another one."""
    found = majority(voters(members))
    others: dict[Member, list[Place]] = {}
    for place, value in members.items():
        if value != found.usual:
            others.setdefault(value, []).append(place)
    return Majority(found.usual, {value: tuple(places) for value, places in others.items()})


def number(value: Value | None) -> float:
    """Return a reading as a number; 0 where a node told something else."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def is_built_so(members: Mapping[Place, Value], place: Place) -> bool:
    """Whether most other hosts have the same value at the same PCI address: it is how the machines are built."""
    others = [value for (host, device), value in members.items() if device == place[1] and host != place[0]]
    return len(others) + 1 >= LEAST and others.count(members[place]) * 2 > len(others)


def odd(view: View, kind: str, name: str, *, lower: bool = False) -> Iterator[OddOnes]:
    """Yield the GPUs whose reading differs from that of most GPUs of their model, or is lower, host by host.

    What is so at the same PCI address of most hosts is left out.
    """
    for members in by_model(view, kind, name).values():
        found = spread(members)
        if len(members) < LEAST or found.usual is None:
            continue
        for value, places in found.others.items():
            by_host: dict[str, list[str]] = {}
            for host, device in (place for place in places if not is_built_so(members, place)):
                by_host.setdefault(host, []).append(device)
            for host, devices in by_host.items():
                if not lower or number(value) < number(found.usual):
                    yield OddOnes(host, tuple(devices), value, found.usual)


def without(view: View, kind: str, section: str, check: str, what: str) -> Iterator[Finding]:
    """Name the nodes that have no device of a kind, and should have some.

    That is an error where an earlier look at the node saw some. It is a warning where most nodes with its board and as
    much memory have some, since a node may be built without. Virtual machines of all sizes may have the same board.
    Nodes of unknown boards are not compared.
    """
    for group in groups(view, least=1):
        for host, look in group.items():
            if not look.lacks(kind, section):
                continue
            counts = [len(other.devices(kind)) for other in group.values() if _is_as_large(other, look)]
            some = [count for count in counts if count]
            most = len(counts) >= LEAST and len(some) * 2 > len(counts)
            before = next((one for one in reversed(view.hardware[host].past) if one.devices(kind)), None)
            cure = f"look with 'lspci' and in the kernel's log, then reseat the {what} or its riser"
            if before is not None:
                ago = f"{len(before.devices(kind))} at a look {span(look.time - before.time)} ago"
                yield Finding(check, "error", (host,), f"it has no {what}, and had {ago}", cure)
            elif most and look.text("board", "model"):
                cause = f"it has no {what}, and {statistics.mode(some)} are in most nodes with its board and memory"
                yield Finding(check, "warning", (host,), cause, f"{cure}; a node that is built so needs nothing")


def _is_as_large(one: Hardware, other: Hardware) -> bool:
    """Whether two nodes have about as much memory, as far as it is known."""
    low, high = sorted(look.number("memory", "memory in KiB") or 0.0 for look in (one, other))
    return not low or low > high * _LARGE


# --- growth since an earlier look -------------------------------------------------------------------------------------

CounterKey = tuple[str, str, str]  # kind, device, name
_CHANCE = 0.001
# Counters that a GPU keeps in its InfoROM (NVIDIA, GPU Memory Error Management), as a disk keeps all of its own.
LASTING = frozenset(
    ("gpu", f"{what} after {why} errors")
    for what, whys in (
        ("rows remapped", ("correctable", "uncorrectable")),
        ("pages retired", ("single bit", "double bit")),
    )
    for why in whys
)


class Growth(NamedTuple):
    """How much a counter grew, and in how many seconds."""

    grown: int
    seconds: float

    @property
    def per_hour(self) -> float:
        """The growth of an hour at this rate; with a growth of 0 it is 0."""
        return self.grown * 3600.0 / self.seconds


class GrowthLimit(NamedTuple):
    """A row: how fast a counter may grow.

    Attributes:
        per_hour: growth above it is a fault. With 0, any growth is.
        severity: an error breaks jobs.
        what: what the counter counts, in words.
        cure: in one line.
        source: where the figure or the meaning is written down.
        at_least: smaller growth is never a fault, however short the time.
    """

    per_hour: float
    severity: Severity
    what: str
    cure: str
    source: str
    at_least: int = 1

    @property
    def beside(self) -> str:
        """The limit, as it ends a sentence; empty where any growth is a fault."""
        return f", and the limit is {self.per_hour:g} an hour" if self.per_hour else ""


class Growing(NamedTuple):
    """A counter that grows too fast, by how much, and its limit."""

    kind: str
    device: str
    name: str
    grown: Growth
    limit: GrowthLimit

    @property
    def how(self) -> str:
        """By how much, and in what time."""
        return f"{self.grown.grown} in {span(self.grown.seconds)}"

    @property
    def more(self) -> str:
        """By how much, with what it counts, and in what time."""
        return f"{self.grown.grown} more {self.limit.what} in {span(self.grown.seconds)}"

    def finding(self, check: str, host: str, cause: str) -> Finding:
        """Return the finding of this counter; a cure that resets 'GPU' resets its own."""
        cure = self.limit.cure.replace("-i GPU", f"-i {self.device}")
        return Finding(check, self.limit.severity, (host,), cause, cure, source=self.limit.source)


def above(looks: HardwareLooks, limits: Mapping[tuple[str, str], GrowthLimit]) -> tuple[Growing, ...]:
    """Return the counters of a node that grow faster than their limits, each once.

    Args:
        looks: all looks at the node. The first of this run comes first, and the last of an earlier run after it.
        limits: by kind and name of a counter.
    """
    found: dict[CounterKey, Growing] = {}
    for before in looks.baselines:
        for key, one in growth(before, looks.now).items():
            limit = limits.get((key[0], key[2]))
            if limit and key not in found and is_above(one, limit.per_hour, limit.at_least):
                found[key] = Growing(*key, one, limit)
    return tuple(found.values())


def stands_out(place: Key, growths: Mapping[Key, float]) -> float | None:
    """Return the median of the others where a growth is ten times as large, None where it is not."""
    usual = statistics.median(value for other, value in growths.items() if other != place)
    return usual if growths[place] > TIMES * usual else None


def growth(before: Hardware | None, after: Hardware) -> Mapping[CounterKey, Growth]:
    """Return the growth of each counter that both looks have; a dozen rules ask, and it is computed once.

    A counter that is smaller than before was reset, or it wrapped, and is left out: its growth is unknown. So is one of
    another part in the same place. Over a restart of the node, only what disks and GPUs keep by themselves is compared,
    since drivers begin at 0.

    Args:
        before: the earlier look; None has no counters.
        after: the later look at the same node.
    """
    if before is None:
        return {}
    key = (growth, id(before))
    known = after.kept.get(key)
    if known is None:
        seconds = after.time - before.time
        grown = {key: Growth(value, seconds) for key, value in _differences(before, after) if value >= 0}
        known = after.kept[key] = (before, grown)  # it holds the look, so that the id stays its own
    found: Mapping[CounterKey, Growth] = known[1]
    return found


def shrunk(before: Hardware, after: Hardware) -> tuple[CounterKey, ...]:
    """Return the counters that are smaller than before: they were reset or wrapped, and their growth is unknown."""
    return tuple(key for key, grown in _differences(before, after) if grown < 0)


def _differences(before: Hardware, after: Hardware) -> Iterator[tuple[CounterKey, int]]:
    """Yield the difference of each counter that can be compared."""
    if after.time <= before.time:
        return
    earlier = {(one.kind, one.device, one.name): one.value for one in before.counters}
    same_start = before.boot_id == after.boot_id
    for kind, device, name, value in after.counters:
        key = (kind, device, name)
        if key in earlier and (same_start or kind == "disk" or (kind, name) in LASTING):
            old, new = before.part(kind, device), after.part(kind, device)
            if old is None or new is None or not is_another(old, new):
                yield key, value - earlier[key]


def is_above(found: Growth, per_hour: float, at_least: int = 1) -> bool:
    """Whether a counter grows faster than a limit, and chance hardly explains it.

    Events at the rate of the limit would be a Poisson process. Such a process grows as much in fewer than one of a
    thousand intervals of that length.

    Args:
        found: the growth.
        per_hour: the limit. With 0, any growth is above it.
        at_least: smaller growth is never above it.
    """
    if found.grown < at_least:
        return False
    return robust_stats.poisson_at_least(found.grown, per_hour * found.seconds / 3600.0) < _CHANCE


def span(seconds: float) -> str:
    """Return a time in words, in the unit in which it is short."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
