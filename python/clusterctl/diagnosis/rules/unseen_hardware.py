"""What of the hardware could not be looked at: a reader must not take it for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding

ORDER = 90
_SHOWN = 40  # letters of a value


def findings(_view: View) -> Iterator[Finding]:
    """Return nothing: what was not seen is no fault."""
    yield from ()


def notes(view: View) -> Iterator[str]:
    """Return one sentence for each thing that nodes could not show."""
    hosts: dict[str, list[str]] = {}
    for name, looks in view.hardware.items():
        for what, why in looks.now.unseen:
            hosts.setdefault(f"{what}: {why}", []).append(name)
        for one in looks.now.odd:
            what = " ".join(word for word in (one.kind, one.device) if word)
            hosts.setdefault(f"{what}: its {one.name} reads '{str(one.value)[:_SHOWN]}'", []).append(name)
    for text, names in hosts.items():
        yield f"Not looked at on {nodeset.folded(names)}: {text}."
