"""What changed on a device since the last look at it: speed, width, MTU, links up, power limit, firmware, settings.

Of two nodes that differ, neither is the odd one, and a node alone has no neighbour. There, the node's own past tells
which one changed. Where neighbours have a usual value, other rules judge by it, and a change is a note. Each change is
told once, since the next run compares with this look. A device with another serial number is another device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.diagnosis import gpu_peers
from clusterctl.diagnosis.growing import span
from clusterctl.diagnosis.rules import alike
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, majority
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware
    from clusterctl.model.readings import Value

ORDER = 85
_CHECK = "changed"
_SHOWN = 4
_LESS = 0.98  # of the memory of before; kernels reserve a little more or less
_OF_GPU = ("gpu", "nvlink")
# '@' stands for the device and '=' for the value.
_COMMANDS = {
    ("gpu", "power limit W"): ("nvidia-smi", "-i", "@", "-pl", "="),
    ("interface", "mtu"): ("ip", "link", "set", "dev", "@", "mtu", "="),
}
_STATES = {"operstate": "up", "state": "ACTIVE"}
_LINK = "reseat or replace the cable, and look at the port of the switch"
_SEAT = "reseat the card and its riser or cable, and look at the slot's setting in the firmware"
_GPU = "drain the node and reset its GPUs, or restart it; if it comes back, have the GPU or the board replaced"
_MEANT = "if nobody changed it on purpose, set it back"
_FLASH = "if nobody updated it on purpose, flash the earlier version; give all devices of the model the same one"


class _Watched(NamedTuple):
    """A reading that should stay as it is; of a number with ``less``, only a smaller one is a fault."""

    kind: str
    name: str
    what: str
    cure: str
    less: bool = False


_WATCHED = (
    _Watched("interface", "operstate", "the state", _LINK),
    _Watched("rdma_port", "state", "the state", _LINK),
    _Watched("interface", "speed", "the speed in Mb/s", _LINK, less=True),
    _Watched("interface", "mtu", "the MTU", _MEANT),
    _Watched("interface", "duplex", "the duplex mode", _LINK),
    _Watched("bond", "mode", "the mode", _MEANT),
    _Watched("bond", "members", "the number of members", "add the missing interface to the bond", less=True),
    _Watched("rdma_port", "rate_gbps", "the rate in Gb/s", _LINK, less=True),
    _Watched("rdma_port", "width", "the number of lanes", _LINK, less=True),
    _Watched(
        "rdma_port",
        "active_mtu",
        "the active MTU",
        "set that of the subnet manager's partition, or of RoCE's interface",
    ),
    _Watched("rdma_port", "pkeys", "the P_Key table", "make the port a member of the same partitions as before"),
    _Watched("rdma_port", "link_layer", "the link layer", "set it back with 'mlxconfig', then restart the node"),
    _Watched("lossless", "pfc", "the priorities with PFC", _MEANT),
    _Watched("lossless", "trust", "the trust state", _MEANT),
    _Watched("lossless", "ecn_roce_np", "the priorities with ECN (notification point)", _MEANT),
    _Watched("lossless", "ecn_roce_rp", "the priorities with ECN (reaction point)", _MEANT),
    _Watched("gpu", "PCIe lanes", "the number of PCIe lanes", _SEAT, less=True),
    _Watched("gpu", "PCIe GT/s possible", "the PCIe speed in GT/s that its slot allows", _SEAT, less=True),
    _Watched("rdma card", "PCIe lanes", "the number of PCIe lanes", _SEAT, less=True),
    _Watched("rdma card", "PCIe GT/s", "the PCIe speed in GT/s", _SEAT, less=True),
    _Watched("nvlink", "links up", "the number of NVLinks up", _GPU, less=True),
    _Watched("nvlink", "slowest GB/s", "the speed in GB/s of the slowest NVLink", _GPU, less=True),
    _Watched("gpu", "power limit W", "the power limit in W", "raise it with 'nvidia-smi -pl'", less=True),
    _Watched("gpu", "persistence", "persistence mode", _MEANT),
    _Watched("gpu", "compute mode", "the compute mode", _MEANT),
    _Watched("gpu", "mig", "MIG mode", _MEANT),
    _Watched("gpu", "ecc", "ECC", _MEANT),
    _Watched("gpu", "way to the nearest RDMA card", "the way to the nearest RDMA card", _SEAT),
    _Watched("board", "firmware", "the firmware of the board", _FLASH),
    _Watched("memory", "memory modules", "the number of memory modules", "seat or replace the missing one", less=True),
    _Watched("memory", "memory in KiB", "the memory in KiB", "look for a memory module that failed", less=True),
    _Watched("memory", "reserved huge pages", "the number of reserved huge pages", _MEANT),
    *(
        _Watched("cpu", name, f"the setting '{name}'", _MEANT)
        for name in (
            "governor",
            "energy preference",
            "turbo",
            "idle driver",
            "deepest C-state of intel_idle",
            "transparent huge pages",
            "automatic NUMA balancing",
            "zone reclaim",
            "hyperthreading",
            "processors offline",
            "NUMA nodes",
        )
    ),
)


class _Change(NamedTuple):
    """A reading of a device that is another one than at the last look."""

    watched: _Watched
    device: str
    before: Value
    now: Value
    judged: bool  # by the neighbours' usual value, or better than before

    @property
    def told(self) -> str:
        """What changed, without the device."""
        return f"is {_shown(self.now)}, and was {_shown(self.before)}"


def findings(view: View) -> Iterator[Finding]:
    """Return changes for the worse, and changes of settings, that no neighbour's usual value explains."""
    for host, looks in view.hardware.items():
        if not looks.past:
            continue
        ago = span(max(0.0, looks.now.time - looks.past[-1].time))
        for (watched, told), devices in _by_text(view, host, judged=False).items():
            of = f" of {and_more(devices, _SHOWN)}" if any(devices) else ""
            cause = f"{watched.what}{of} {told} at the last look {ago} ago"
            fix = tuple(command for device in devices for command in _fix(watched, device, looks.past[-1]))
            yield Finding(_CHECK, "warning", (host,), cause, watched.cure, fix)


def _fix(watched: _Watched, device: str, before: Hardware) -> tuple[tuple[str, ...], ...]:
    """Return the command that sets a number as it was, for the settings that have one."""
    value = before.number(watched.kind, watched.name, device)
    if value is None or (watched.kind, watched.name) not in _COMMANDS:
        return ()
    words = {"@": device, "=": f"{value:g}"}
    return (tuple(words.get(word, word) for word in _COMMANDS[watched.kind, watched.name]),)


def notes(view: View) -> Iterator[str]:
    """Return the other changes: those that neighbours share or that other rules judge, and those for the better."""
    hosts: dict[str, list[str]] = {}
    for host in view.hardware:
        for (watched, told), devices in _by_text(view, host, judged=True).items():
            of = f" of {and_more(devices, _SHOWN)}" if any(devices) else ""
            hosts.setdefault(f"{watched.what}{of} {told} at the last look", []).append(host)
    for text, names in hosts.items():
        yield f"Changed on {nodeset.folded(names)}: {text}."


def _by_text(view: View, host: str, *, judged: bool) -> dict[tuple[_Watched, str], list[str]]:
    found: dict[tuple[_Watched, str], list[str]] = {}
    for change in _changes(view, host):
        if change.judged is judged:
            found.setdefault((change.watched, change.told), []).append(change.device)
    return found


def _changes(view: View, host: str) -> Iterator[_Change]:
    looks = view.hardware[host]
    if not looks.past:
        return
    now, before = looks.now, looks.past[-1]
    for watched in _WATCHED:
        earlier = before.values(watched.kind, watched.name)
        for device, value in now.values(watched.kind, watched.name).items():
            if device not in earlier or earlier[device] == value or not _is_same(before, now, watched.kind, device):
                continue
            if not _counts(watched, device, before, now):
                continue
            better = watched.less and gpu_peers.number(value) > gpu_peers.number(earlier[device])
            yield _Change(
                watched, device, earlier[device], value, better or _is_judged(view, host, watched, device, value)
            )
    yield from _firmware(view, host)


def _counts(watched: _Watched, device: str, before: Hardware, now: Hardware) -> bool:
    """Whether a change tells anything: without a link neither speed nor width does."""
    if watched.name == "memory in KiB":
        low, high = sorted(look.number(watched.kind, watched.name, device) or 0 for look in (before, now))
        return low < high * _LESS
    if watched.name in _STATES:
        off = watched.kind == "interface" and not now.flag("interface", "wanted_up", device)
        return _is_up(before, device) and not _is_up(now, device) and not off
    return watched.kind not in ("interface", "rdma_port") or (_is_up(before, device) and _is_up(now, device))


def _is_up(look: Hardware, device: str) -> bool:
    if device in look.texts("rdma_port", "state"):
        return look.text("rdma_port", "state", device) == "ACTIVE"
    return look.text("interface", "operstate", device) == "up"


def _is_judged(view: View, host: str, watched: _Watched, device: str, value: Value) -> bool:
    """Whether neighbours have a usual value: three or more nodes do, or the GPUs of this node are not all alike."""
    hosts = next((group for group in alike.groups(view, least=1) if host in group), {})
    if watched.kind in _OF_GPU:
        for members in gpu_peers.values(view, watched.kind, watched.name).values():
            if (host, device) in members:
                usual = majority(members).usual
                odd_one = len(members) >= gpu_peers.LEAST and value != usual
                return usual is not None and (odd_one or len({name for name, _ in members}) >= alike.LEAST)
    found = {
        name: look.values(watched.kind, watched.name)[device]
        for name, look in hosts.items()
        if device in look.values(watched.kind, watched.name)
    }
    if watched.name == "state" and any(_is_up(hosts[name], device) for name in found):
        return True  # the rule of RDMA ports tells it
    return len(found) >= alike.LEAST and majority(found).usual is not None


def _firmware(view: View, host: str) -> Iterator[_Change]:
    """Compare the firmware of parts with serial numbers; that of the board is a reading."""
    now, before = view.hardware[host].now, view.hardware[host].past[-1]
    known = [part for part in before.parts if part.firmware]
    earlier = {(part.kind, name): part for part in known for name in (part.serial, part.uuid) if name}
    for part in now.parts:
        old = earlier.get((part.kind, part.uuid)) or earlier.get((part.kind, part.serial))
        if part.kind == "board" or not part.firmware or old is None or old.firmware == part.firmware:
            continue
        versions = {
            (name, one.place): one.firmware
            for name, looks in view.hardware.items()
            for one in looks.now.parts
            if (one.kind, one.model) == (part.kind, part.model) and one.firmware
        }
        judged = len({name for name, _ in versions}) >= alike.LEAST and majority(versions).usual is not None
        watched = _Watched(part.kind, "firmware", f"the firmware of the {part.model or part.kind}", _FLASH)
        yield _Change(watched, part.place, old.firmware, part.firmware, judged)


def _is_same(before: Hardware, now: Hardware, kind: str, device: str) -> bool:
    """Whether the device of that name is the same one: it has no other serial number, GUID or hardware address."""
    return all(
        not old or not new or old == new
        for old, new in zip(_identity(before, kind, device), _identity(now, kind, device), strict=True)
    )


def _identity(look: Hardware, kind: str, device: str) -> tuple[str, ...]:
    if kind in _OF_GPU:
        part = look.part("gpu", device)
        return (part.serial, part.uuid) if part else ("", "")
    if kind in ("interface", "lossless"):
        return (look.text("interface", "address", device),)
    if kind in ("rdma_port", "rdma card"):
        name = device.partition("/")[0]
        place = look.text("rdma_device", "place", name) or name
        return (_serial(look, "hca", place),)
    return _serial(look, "board", "product"), look.text("board", "model")


def _serial(look: Hardware, kind: str, place: str) -> str:
    part = look.part(kind, place)
    return part.serial if part else ""


def _shown(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
