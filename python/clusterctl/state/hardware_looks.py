"""Looks at the hardware of nodes, the ledger of their parts and doctor's last errors, kept in the state folder."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter

from clusterctl.analysis import part_ledger
from clusterctl.model.base import Record
from clusterctl.model.findings import DoctorErrors
from clusterctl.model.hardware import Hardware, PartLedger
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from clusterctl.model.findings import Finding


KEEP = 40
_DAY = timedelta(days=1)
_STAMP = "%Y%m%dT%H%M%S%fZ"
_SUFFIX = ".json.zst"
_MOST_BYTES = 1 << 28
_MOST_READ = 4
_LOOKS = TypeAdapter(dict[str, Hardware])


def past(cluster: str, hosts: Collection[str], now: datetime) -> dict[str, tuple[Hardware, ...]]:
    """Return earlier looks at hosts, the oldest first: the newest ones, and the oldest one of the last day.

    A damaged file counts as missing.
    """
    names = _files(cluster)
    of_day = [path for path in names if now - _time(path) <= _DAY]
    chosen = sorted({*names[-_MOST_READ:], *of_day[:1]})
    found: dict[str, list[Hardware]] = {}
    for path in chosen:
        for host, look in _read(path).items():
            if host in hosts:
                found.setdefault(host, []).append(look)
    return {host: tuple(looks) for host, looks in found.items()}


def ledger(cluster: str) -> PartLedger:
    """Return the ledger of parts; an unreadable file counts as empty."""
    try:
        return PartLedger.model_validate_json(paths.parts_file(cluster).read_bytes())
    except (OSError, ValueError):
        return PartLedger()


def keep(cluster: str, looks: Mapping[str, Hardware], at: datetime) -> tuple[str, ...]:
    """Keep a look, forget the oldest beyond :data:`KEEP`, and bring the ledger up to date.

    Returns:
        A note where the ledger was damaged.

    Raises:
        ConfigError: the state folder cannot be written, or a newer clusterctl wrote the ledger.
        OSError: the disk is full.
    """
    seen = {host: look for host, look in looks.items() if look.boot_id}
    if not seen:
        return ()
    without = {host: _to_keep(look) for host, look in seen.items()}
    place = paths.hardware_dir(cluster) / f"{at.astimezone(timezone.utc).strftime(_STAMP)}{_SUFFIX}"
    files.keep(place, files.compress(_LOOKS.dump_json(without)))
    parts = paths.parts_file(cluster)
    ledger, notes = files.known(parts, PartLedger.model_validate_json, PartLedger())
    updated = part_ledger.updated(ledger, seen, at)
    files.write_atomically(parts, updated.model_dump_json() + "\n")
    for old in _files(cluster)[:-KEEP]:
        old.unlink(missing_ok=True)
    return notes


def _to_keep(look: Hardware) -> Hardware:
    """Leave out events, which the node's log has, and odd values: JSON has no NaN, and the file must stay readable."""
    odd = {id(one) for one in look.odd}
    sound = tuple(one for one in look.readings if id(one) not in odd)
    return look.model_copy(update={"events": (), "readings": sound})


def _files(cluster: str) -> list[Path]:
    try:
        return sorted(path for path in paths.hardware_dir(cluster).iterdir() if _is_look(path))
    except OSError:
        return []


def _is_look(path: Path) -> bool:
    try:
        _time(path)
    except ValueError:
        return False
    return True


def _time(path: Path) -> datetime:
    return datetime.strptime(path.name.removesuffix(_SUFFIX), _STAMP).replace(tzinfo=timezone.utc)


def _read(path: Path) -> dict[str, Hardware]:
    try:
        return _LOOKS.validate_json(files.decompress(path.read_bytes(), _MOST_BYTES))
    except (OSError, ValueError):
        return {}


# --- The last errors that doctor found on each node of a cluster, kept in the state folder until the node is proved ---


class _Kept(Record):
    schema_version: int = 1
    hosts: dict[str, DoctorErrors] = Field(default_factory=dict)


def read_errors(cluster: str) -> dict[str, DoctorErrors]:
    """Return the last errors by node; an unreadable file counts as missing."""
    try:
        return dict(_Kept.model_validate_json(paths.doctor_errors_file(cluster).read_bytes()).hosts)
    except (OSError, ValueError):
        return {}


def keep_errors(cluster: str, findings: Iterable[Finding], inventory: Collection[str], at: datetime) -> tuple[str, ...]:
    """Keep the errors among findings; those of a node that is no longer in the inventory are forgotten.

    A look without an error does not take back an earlier one: only a proof does.

    Returns:
        A note where the file was damaged.

    Raises:
        ConfigError: the state folder cannot be written, or a newer clusterctl wrote the file.
        OSError: the disk is full.
    """
    checks: dict[str, dict[str, None]] = {}
    for one in findings:
        for host in one.hosts if one.severity == "error" else ():
            checks.setdefault(host, {})[one.check] = None
    path = paths.doctor_errors_file(cluster)
    known, notes = files.known(path, _Kept.model_validate_json, _Kept())
    before = known.hosts
    new = {host: DoctorErrors(at=at, checks=tuple(found)) for host, found in checks.items()}
    kept = {host: errors for host, errors in {**before, **new}.items() if host in inventory}
    if kept != before:
        files.keep(path, _Kept(hosts=kept).model_dump_json() + "\n")
    return notes
