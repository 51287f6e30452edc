"""Rules of what changed since the last look at a node: readings that should stay as they are, and parts.

Of two nodes that differ, neither is the odd one, and a node alone has no neighbour. There, the node's own past tells
which one changed. Where neighbours have a usual value, other rules judge by it, and a change is a note. Each change is
told once, since the next run compares with this look. A device with another serial number is another device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.diagnosis.rules.engines import LEAST, SHOWN, by_model, groups, number, span, spread
from clusterctl.diagnosis.rules.table import FLASH, WATCHED, Watched
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, majority
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, PartChange, Value

_LESS = 0.98  # of the memory of before; kernels reserve a little more or less
_OF_GPU = ("gpu", "nvlink")
_STATES = ("operstate", "state")


class _Change(NamedTuple):
    """A reading of a device that is another one than at the last look."""

    watched: Watched
    device: str
    before: Value
    now: Value
    judged: bool  # by the neighbours' usual value, or better than before

    @property
    def told(self) -> str:
        """What changed, without the device."""
        return f"is {_shown(self.now)}, and was {_shown(self.before)}"


def changes(view: View) -> Iterator[Finding]:
    """Return changes for the worse, and changes of settings, that no neighbour's usual value explains."""
    for host, looks in view.hardware.items():
        if not looks.past:
            continue
        ago = span(max(0.0, looks.now.time - looks.past[-1].time))
        for (watched, told), devices in _by_text(view, host, judged=False).items():
            of = f" of {and_more(devices, SHOWN)}" if any(devices) else ""
            cause = f"{watched.what}{of} {told} at the last look {ago} ago"
            fix = tuple(command for device in devices for command in _fix(watched, device, looks.past[-1]))
            yield Finding("changed", "warning", (host,), cause, watched.cure, fix)


def _fix(watched: Watched, device: str, before: Hardware) -> tuple[tuple[str, ...], ...]:
    """Return the command that sets a number as it was, for the settings that have one."""
    value = before.number(watched.kind, watched.name, device)
    if value is None or not watched.fix:
        return ()
    words = {"@": device, "=": f"{value:g}"}
    return (tuple(words.get(word, word) for word in watched.fix),)


def changes_notes(view: View) -> Iterator[str]:
    """Return the other changes: those that neighbours share or that other rules judge, and those for the better."""
    hosts: dict[str, list[str]] = {}
    for host in view.hardware:
        for (watched, told), devices in _by_text(view, host, judged=True).items():
            of = f" of {and_more(devices, SHOWN)}" if any(devices) else ""
            hosts.setdefault(f"{watched.what}{of} {told} at the last look", []).append(host)
    for text, names in hosts.items():
        yield f"Changed on {nodeset.folded(names)}: {text}."


def _by_text(view: View, host: str, *, judged: bool) -> dict[tuple[Watched, str], list[str]]:
    found: dict[tuple[Watched, str], list[str]] = {}
    for change in _changes(view, host):
        if change.judged is judged:
            found.setdefault((change.watched, change.told), []).append(change.device)
    return found


def _changes(view: View, host: str) -> Iterator[_Change]:
    looks = view.hardware[host]
    if not looks.past:
        return
    now, before = looks.now, looks.past[-1]
    for watched in WATCHED:
        earlier = before.values(watched.kind, watched.name)
        for device, value in now.values(watched.kind, watched.name).items():
            if device not in earlier or earlier[device] == value or not _is_same(before, now, watched.kind, device):
                continue
            if not _counts(watched, device, before, now):
                continue
            better = watched.less and number(value) > number(earlier[device])
            yield _Change(
                watched, device, earlier[device], value, better or _is_judged(view, host, watched, device, value)
            )
    yield from _firmware(view, host)


def _counts(watched: Watched, device: str, before: Hardware, now: Hardware) -> bool:
    """Whether a change tells anything: without a link neither speed nor width does."""
    if watched.name == "memory in KiB":
        low, high = sorted(look.number(watched.kind, watched.name, device) or 0 for look in (before, now))
        return low < high * _LESS
    if watched.name in _STATES:
        off = watched.kind == "interface" and not now.flag("interface", "wanted_up", device)
        return _is_up(before, device) and not _is_up(now, device) and not off
    return watched.kind not in ("interface", "rdma_port") or (_is_up(before, device) and _is_up(now, device))


def _is_up(look: Hardware, device: str) -> bool:
    state = look.values("rdma_port", "state").get(device)
    if isinstance(state, str):
        return state == "ACTIVE"
    return look.text("interface", "operstate", device) == "up"


def _is_judged(view: View, host: str, watched: Watched, device: str, value: Value) -> bool:
    """Whether neighbours have a usual value: three or more nodes do, or the GPUs of this node are not all alike."""
    hosts = next((group for group in groups(view, least=1) if host in group), {})
    if watched.kind in _OF_GPU:
        for members in by_model(view, watched.kind, watched.name).values():
            if (host, device) in members:
                usual = spread(members).usual
                odd_one = len(members) >= LEAST and value != usual
                return usual is not None and (odd_one or len({name for name, _ in members}) >= LEAST)
    found = {
        name: look.values(watched.kind, watched.name)[device]
        for name, look in hosts.items()
        if device in look.values(watched.kind, watched.name)
    }
    if watched.name == "state" and any(_is_up(hosts[name], device) for name in found):
        return True  # the rule of RDMA ports tells it
    return len(found) >= LEAST and majority(found).usual is not None


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
        judged = len({name for name, _ in versions}) >= LEAST and spread(versions).usual is not None
        watched = Watched(part.kind, "firmware", f"the firmware of the {part.model or part.kind}", FLASH)
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


# --- parts that were swapped, moved or lost, by the ledger ------------------------------------------------------------

_NAMES = {
    "gpu": "GPU",
    "hca": "RDMA card",
    "dimm": "memory module",
    "disk": "disk",
    "board": "board",
    "nic": "network adapter",
}


def parts(view: View) -> Iterator[Finding]:
    """Return parts that a node had at the last look, and that no node has now."""
    gone: dict[tuple[str, str, str], list[PartChange]] = {}
    for one in view.part_changes:
        if one.change == "gone":
            gone.setdefault((one.host, one.kind, f"{one.before.last:%Y-%m-%d}"), []).append(one)
    for (host, kind, day), parts in gone.items():
        shown = and_more((f"{one.name} in {one.place}" for one in parts), SHOWN)
        verbs = ("were there", "are gone") if len(parts) > 1 else ("was there", "is gone")
        cause = f"{_name(kind)} {shown} {verbs[0]} until {day}, and {verbs[1]}"
        cure = "look whether it failed or was taken out; 'clusterctl hardware' shows all parts of the node"
        yield Finding("parts", "warning", (host,), cause, cure)


def parts_notes(view: View) -> Iterator[str]:
    """Return parts that were swapped, moved or brought back."""
    for one in view.part_changes:
        what, place = f"{_name(one.kind)} {one.name}", f"{one.place} of {one.host}"
        before = f"{one.before.place} of {one.before.host}"
        if one.change == "moved":
            yield f"Moved: {what} is in {place}, and was in {before}."
        elif one.change == "returned":
            yield f"Back: {what} is in {place}; it was last seen on {one.before.last:%Y-%m-%d} in {before}."
        elif one.change == "swapped":
            yield f"Swapped: {what} is in {place}, in the place of {one.before.name}."


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)
