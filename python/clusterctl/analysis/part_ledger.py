"""What was swapped, moved, lost or brought back among the parts of nodes, by their serial numbers and UUIDs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.model.hardware import PartChange, PartLedger, Stay, is_another

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from clusterctl.model.hardware import Hardware, Part

_Place = tuple[str, str, str]  # host, kind of part, and place
# By kind of part: the kind of its readings, and the section of the look that sees each of them, also without root.
_MOST_STAYS = 1 << 13  # of one host
_SEEN_BY_ALL = {"gpu": ("gpu", "pci"), "hca": ("rdma_device", "rdma_ports"), "disk": ("disk", "disks")}


def updated(ledger: PartLedger, seen: Mapping[str, Hardware], at: datetime) -> PartLedger:
    stays = list(ledger.stays)
    now = list(_known(stays, seen))
    for silent in _silent(stays, now, seen):
        stays[silent] = stays[silent].model_copy(update={"last": at})
    for host, part, number in now:
        stay = None if number is None else stays[number]
        if number is not None and stay is not None and (stay.host, stay.place) == (host, part.place):
            serial = part.serial or ("" if stay.serial == part.uuid else stay.serial)
            known = {"last": at, "model": part.model, "firmware": part.firmware}
            stays[number] = stay.model_copy(update={**known, "serial": serial, "uuid": part.uuid or stay.uuid})
        else:
            stays.append(Stay(**part._asdict(), host=host, first=at, last=at))
    return PartLedger(stays=tuple(_newest(stays)))


def _newest(stays: Sequence[Stay]) -> Iterator[Stay]:
    """Yield the stays without the oldest of a host that has too many: it names other parts at each look."""
    of_host: dict[str, list[Stay]] = {}
    for stay in stays:
        of_host.setdefault(stay.host, []).append(stay)
    old = (stay for its in of_host.values() for stay in sorted(its, key=lambda one: one.last)[:-_MOST_STAYS])
    left_out = {id(stay) for stay in old}
    yield from (stay for stay in stays if id(stay) not in left_out)


def changes(ledger: PartLedger, seen: Mapping[str, Hardware]) -> tuple[PartChange, ...]:
    """Return what differs from the last look at each of these hosts.

    A part is gone where the look would have seen it: its kind could be read, and nothing is in its place.
    """
    stays = ledger.stays
    now = list(_known(stays, seen))
    present = _present(stays)
    return (*_arrived(stays, now, present), *_gone(stays, present - {number for *_, number in now}, seen))


def _arrived(
    stays: Sequence[Stay], now: Iterable[tuple[str, Part, int | None]], present: set[int]
) -> Iterator[PartChange]:
    places = {_place(stays[number]): stays[number] for number in present}
    for host, part, number in now:
        before = None if number is None else stays[number]
        there = places.get((host, part.kind, part.place))
        told = (host, part.place, part.kind, part.serial or part.uuid)
        if before is not None and number not in present:
            yield PartChange("returned", *told, before)
        elif before is not None and (before.host, before.place) != (host, part.place):
            yield PartChange("moved", *told, before)
        elif before is None and there is not None:
            yield PartChange("swapped", *told, there)


def _gone(stays: Sequence[Stay], missing: set[int], seen: Mapping[str, Hardware]) -> Iterator[PartChange]:
    for stay in (stays[number] for number in sorted(missing)):
        look = seen.get(stay.host)
        if look is not None and _would_see(look, stay.kind) and not _is_filled(look, stay.place):
            yield PartChange("gone", stay.host, stay.place, stay.kind, stay.name, stay)


def _would_see(look: Hardware, kind: str) -> bool:
    """Whether a look sees every part of a kind: it saw one, or none where it sees all, and nothing went wrong."""
    if _would_see not in look.kept:
        look.kept[_would_see] = _kinds(look)
    return kind in look.kept[_would_see]


def _kinds(look: Hardware) -> frozenset[str]:
    missed = {one.what for one in look.unseen}
    lacking = {kind for kind, (readings, section) in _SEEN_BY_ALL.items() if look.lacks(readings, section)}
    closed = {kind for kind, (_readings, section) in _SEEN_BY_ALL.items() if section in missed}
    return frozenset({part.kind for part in look.parts} | lacking) - closed


def _is_filled(look: Hardware, place: str) -> bool:
    """Whether the look saw anything at a place, or could not open what is there."""
    if _is_filled not in look.kept:
        look.kept[_is_filled] = _filled(look)
    return place in look.kept[_is_filled]


def _filled(look: Hardware) -> frozenset[str]:
    named = {one.device for entries in (look.readings, look.counters) for one in entries}
    parts = {part.place for part in look.parts}
    closed = {one.what.removeprefix("GPU ") for one in look.unseen}
    return frozenset({*parts, *look.texts("rdma_device", "place").values(), *closed, *named})


def _silent(
    stays: Sequence[Stay], now: Sequence[tuple[str, Part, int | None]], seen: Mapping[str, Hardware]
) -> Iterator[int]:
    """Yield the parts whose place the look saw or could not open, without a name of what is there."""
    named = {(host, part.kind, part.place) for host, part, _ in now}
    for number in _present(stays) - {number for *_, number in now}:
        stay = stays[number]
        if stay.host in seen and _place(stay) not in named and _is_filled(seen[stay.host], stay.place):
            yield number


def _known(stays: Sequence[Stay], seen: Mapping[str, Hardware]) -> Iterator[tuple[str, Part, int | None]]:
    """Yield each part that has a name of its own, with its host and the number of its last stay, None if it is new.

    A name that several parts have is none: some vendors give all boards the same serial number.
    """
    latest = _latest(stays)
    parts = [(host, part) for host, look in seen.items() for part in look.parts]
    counts = Counter((part.kind, name) for _, part in parts for name in {part.uuid, part.serial} - {""})
    for host, part in parts:
        own = [key for key in ((part.kind, part.uuid), (part.kind, part.serial)) if counts[key] == 1]
        known = (latest[key] for key in own if key in latest and not is_another(stays[latest[key]], part))
        if own:
            yield host, part, next(known, None)


def _latest(stays: Sequence[Stay]) -> dict[tuple[str, str], int]:
    """Return the number of the last stay by kind and name."""
    return {(stay.kind, name): number for number, stay in enumerate(stays) for name in (stay.serial, stay.uuid) if name}


def _present(stays: Sequence[Stay]) -> set[int]:
    """Return the numbers of the stays that the last look at their kind on their host saw."""
    latest = _latest(stays)
    last = [number for number, stay in enumerate(stays) if latest.get((stay.kind, stay.uuid or stay.serial)) == number]
    newest: dict[tuple[str, str], datetime] = {}
    for stay in (stays[number] for number in last):
        key = (stay.host, stay.kind)
        newest[key] = max(newest.get(key, stay.last), stay.last)
    return {number for number in last if stays[number].last == newest[stays[number].host, stays[number].kind]}


def _place(stay: Stay) -> _Place:
    return stay.host, stay.kind, stay.place
