"""What was swapped, moved, lost or brought back among the parts of nodes, by their serial numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.model.parts import PartChange, PartLedger, Stay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from clusterctl.model.hardware import Part

_Key = tuple[str, str]  # kind and serial number


def updated(ledger: PartLedger, seen: Mapping[str, Sequence[Part]], at: datetime) -> PartLedger:
    """Return the ledger after a look.

    Args:
        ledger: the ledger before.
        seen: by host, the parts that the look saw.
        at: the time of the look.
    """
    stays = list(ledger.stays)
    latest = {(stay.kind, stay.serial): number for number, stay in enumerate(stays)}
    for host, part in _unique(seen):
        number = latest.get((part.kind, part.serial))
        if number is not None and (stays[number].host, stays[number].place) == (host, part.place):
            known = {"last": at, "model": part.model, "firmware": part.firmware}
            stays[number] = stays[number].model_copy(update=known)
        else:
            stays.append(Stay(**part._asdict(), host=host, first=at, last=at))
    return PartLedger(stays=tuple(stays))


def changes(ledger: PartLedger, seen: Mapping[str, Sequence[Part]]) -> tuple[PartChange, ...]:
    """Return what differs from the last look at each of these hosts.

    A kind of part of which a look sees nothing tells nothing: the tool or the right to read it may be missing.

    Args:
        ledger: the ledger before this look.
        seen: by host, the parts that this look saw.
    """
    now = {(part.kind, part.serial): (host, part) for host, part in _unique(seen)}
    last: dict[_Key, Stay] = {(stay.kind, stay.serial): stay for stay in ledger.stays}
    newest = _newest(last.values())
    present = {key for key, stay in last.items() if stay.last == newest[stay.host, stay.kind]}
    return (*_arrived(now, last, present), *_gone(now, last, present, seen))


def _arrived(
    now: Mapping[_Key, tuple[str, Part]], last: Mapping[_Key, Stay], present: set[_Key]
) -> Iterator[PartChange]:
    places = {(last[key].host, last[key].kind, last[key].place): last[key] for key in present}
    for key, (host, part) in now.items():
        before = last.get(key)
        if before is not None and key not in present:
            yield PartChange("returned", host, part.place, part.kind, part.serial, before)
        elif before is not None and (before.host, before.place) != (host, part.place):
            yield PartChange("moved", host, part.place, part.kind, part.serial, before)
        elif before is None and (there := places.get((host, part.kind, part.place))) is not None:
            yield PartChange("swapped", host, part.place, part.kind, part.serial, there)


def _gone(
    now: Mapping[_Key, tuple[str, Part]],
    last: Mapping[_Key, Stay],
    present: set[_Key],
    seen: Mapping[str, Sequence[Part]],
) -> Iterator[PartChange]:
    kinds = {(host, part.kind) for host, parts in seen.items() for part in parts}
    filled = {(host, part.kind, part.place) for host, parts in seen.items() for part in parts}
    for key in sorted(present - set(now)):
        stay = last[key]
        looked_at = (stay.host, stay.kind) in kinds
        if looked_at and (stay.host, stay.kind, stay.place) not in filled:
            yield PartChange("gone", stay.host, stay.place, stay.kind, stay.serial, stay)


def _unique(seen: Mapping[str, Sequence[Part]]) -> Iterator[tuple[str, Part]]:
    """Yield the parts whose serial number is theirs alone; some vendors give all boards the same one."""
    counts = Counter((part.kind, part.serial) for parts in seen.values() for part in parts)
    for host, parts in seen.items():
        for part in parts:
            if part.serial and counts[part.kind, part.serial] == 1:
                yield host, part


def _newest(stays: Iterable[Stay]) -> dict[tuple[str, str], datetime]:
    found: dict[tuple[str, str], datetime] = {}
    for stay in stays:
        key = (stay.host, stay.kind)
        found[key] = max(found.get(key, stay.last), stay.last)
    return found
