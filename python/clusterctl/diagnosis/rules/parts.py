"""Which parts were swapped, moved or lost since the last look, by the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View

ORDER = 78
_NAMES = {"gpu": "GPU", "dimm": "memory module", "disk": "disk", "board": "board", "nic": "network adapter"}


def findings(view: View) -> Iterator[Finding]:
    """Return parts that a node had at the last look, and that no node has now."""
    for one in view.part_changes:
        if one.change == "gone":
            cause = f"{_name(one.kind)} {one.serial} was in {one.place} until {one.before.last:%Y-%m-%d}, and is gone"
            cure = "look whether it failed or was taken out; 'clusterctl inventory-of' shows all parts of the node"
            yield Finding("parts", "warning", (one.host,), cause, cure)


def notes(view: View) -> Iterator[str]:
    """Return parts that were swapped, moved or brought back."""
    for one in view.part_changes:
        what, place = f"{_name(one.kind)} {one.serial}", f"{one.place} of {one.host}"
        before = f"{one.before.place} of {one.before.host}"
        if one.change == "moved":
            yield f"Moved: {what} is in {place}, and was in {before}."
        elif one.change == "returned":
            yield f"Back: {what} is in {place}; it was last seen on {one.before.last:%Y-%m-%d} in {before}."
        elif one.change == "swapped":
            yield f"Swapped: {what} is in {place}, in the place of {one.before.serial}."


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)
