"""The time of the last proof and of the last turn of each node of a cluster, kept in the state folder."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.state import files, paths
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.results import ValidationRecord


class _Proofs(Record):
    schema_version: int = 1
    hosts: dict[str, datetime] = Field(default_factory=dict)
    turns: dict[str, datetime] = Field(default_factory=dict)


def read(cluster: str) -> dict[str, datetime]:
    """Return the time of the last proof by node; an unreadable file counts as missing."""
    return dict(_read(cluster).hosts)


def turns(cluster: str) -> dict[str, datetime]:
    """Return when each node was last chosen or proved; a node that fails every night has its turn all the same."""
    found = _read(cluster)
    return {
        name: max(at for at in (found.hosts.get(name), found.turns.get(name)) if at is not None)
        for name in {**found.hosts, **found.turns}
    }


def keep(cluster: str, hosts: Iterable[str], at: datetime) -> tuple[str, ...]:
    """Set the time of the last proof of some nodes, and return a note where the file was damaged.

    Raises:
        ConfigError: the file cannot be read or written, or a newer clusterctl wrote it.
        OSError: the disk is full.
    """
    found, notes = _to_change(cluster)
    _write(cluster, found.model_copy(update={"hosts": {**found.hosts, **dict.fromkeys(hosts, at)}}))
    return notes


def take_turns(cluster: str, hosts: Iterable[str], at: datetime) -> tuple[str, ...]:
    """Set the time at which some nodes were chosen, and return a note where the file was damaged.

    Raises:
        ConfigError: the file cannot be read or written, or a newer clusterctl wrote it.
        OSError: the disk is full.
    """
    found, notes = _to_change(cluster)
    _write(cluster, found.model_copy(update={"turns": {**found.turns, **dict.fromkeys(hosts, at)}}))
    return notes


def _read(cluster: str) -> _Proofs:
    try:
        return _Proofs.model_validate_json(paths.proofs_file(cluster).read_bytes())
    except (OSError, ValueError):
        return _Proofs()


def _to_change(cluster: str) -> tuple[_Proofs, tuple[str, ...]]:
    return files.known(paths.proofs_file(cluster), _Proofs.model_validate_json, _Proofs())


def _write(cluster: str, found: _Proofs) -> None:
    files.keep(paths.proofs_file(cluster), found.model_dump_json() + "\n")


# --- When each node was last proved: which nodes a record proves, whose turn it is, what to say of the others ---------

LONG_AGO = timedelta(days=7)
_MOST_NAMED = 8
_HOUR_S, _DAY_S = 3600, 86400


def proved(record: ValidationRecord) -> tuple[str, ...]:
    """Return the nodes that a record proves: they took part, and no bad check names them.

    A bad check that names nobody may be about any node, so its record proves none.
    """
    bad = [check for check in record.checks if check.is_bad]
    passed = any(check.verdict is Verdict.PASS and check.command for check in record.checks)
    if not passed or any(not check.named for check in bad):
        return ()
    named = {name for check in bad for name in check.named}
    return tuple(name for name in record.slots if name not in named)


def oldest_first(names: Iterable[str], last: Mapping[str, datetime]) -> list[str]:
    """Return names by their last proof: first those without one, then the oldest; equal ones keep their order."""
    return sorted(names, key=lambda name: last[name].timestamp() if name in last else float("-inf"))


def notes(
    hosts: Sequence[str], left_out: Mapping[str, str], last: Mapping[str, datetime], now: datetime
) -> tuple[str, ...]:
    """Return what to say of the nodes that a run leaves out; nothing where it leaves out none.

    Args:
        hosts: the nodes that take part.
        left_out: the others, each with the reason.
        last: the last proof of each node, before this run.
        now: the present.
    """
    if not left_out:
        return ()
    told = and_more([f"{name} ({why})" for name, why in left_out.items()], _MOST_NAMED, "; ")
    part = f"{len(hosts)} of {len(hosts) + len(left_out)} nodes"
    found = [f"This run is about {part}: {folded(hosts)}. Left out: {told}."]
    late = [name for name in oldest_first(left_out, last) if name not in last or now - last[name] >= LONG_AGO]
    if late:
        shown = and_more([f"{name} ({age(last.get(name), now)})" for name in late], _MOST_NAMED)
        found.append(f"Not proved for a week or longer: {shown}. Validate them with --limit when their jobs end.")
    return tuple(found)


def age(at: datetime | None, now: datetime) -> str:
    """Return in words how long ago a proof was."""
    if at is None:
        return "never"
    seconds = max(0.0, (now - at).total_seconds())
    return f"{seconds / _DAY_S:.0f} days" if seconds >= 2 * _DAY_S else f"{seconds / _HOUR_S:.0f} h"
