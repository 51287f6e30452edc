"""Which parts were swapped, moved or lost since the last look, by the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.parts import PartChange

ORDER = 78
_SHOWN = 4
_NAMES = {
    "gpu": "GPU",
    "hca": "RDMA card",
    "dimm": "memory module",
    "disk": "disk",
    "board": "board",
    "nic": "network adapter",
}


def findings(view: View) -> Iterator[Finding]:
    """Return parts that a node had at the last look, and that no node has now."""
    gone: dict[tuple[str, str, str], list[PartChange]] = {}
    for one in view.part_changes:
        if one.change == "gone":
            gone.setdefault((one.host, one.kind, f"{one.before.last:%Y-%m-%d}"), []).append(one)
    for (host, kind, day), parts in gone.items():
        shown = and_more((f"{one.name} in {one.place}" for one in parts), _SHOWN)
        verbs = ("were there", "are gone") if len(parts) > 1 else ("was there", "is gone")
        cause = f"{_name(kind)} {shown} {verbs[0]} until {day}, and {verbs[1]}"
        cure = "look whether it failed or was taken out; 'clusterctl inventory-of' shows all parts of the node"
        yield Finding("parts", "warning", (host,), cause, cure)


def notes(view: View) -> Iterator[str]:
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
