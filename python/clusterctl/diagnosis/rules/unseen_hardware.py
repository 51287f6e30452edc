"""What of the hardware could not be looked at, or has an unknown growth: a reader must not take it for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import shrunk
from clusterctl.diagnosis.counter_limits import BESIDE_PEERS, LIMITS, SUMS
from clusterctl.model import nodeset
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.analysis.counter_growth import CounterKey
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding

ORDER = 90
_SHOWN = 40  # letters of a value
_SHOWN_COUNTERS = 3
# A process number is used again, and a sector waits no more when it was written or replaced.
_MAY_SHRINK = {("process", "ran"), ("disk", "pending sectors"), ("disk", "lost sectors")}


def findings(_view: View) -> Iterator[Finding]:
    """Return nothing: what was not seen is no fault."""
    yield from ()


def notes(view: View) -> Iterator[str]:
    """Return one sentence for each thing that nodes could not show, and for counters that were reset."""
    hosts: dict[str, list[str]] = {}
    for name, looks in view.hardware.items():
        for what, why in looks.now.unseen:
            hosts.setdefault(f"{what}: {why}", []).append(name)
        for one in looks.now.odd:
            what = " ".join(word for word in (one.kind, one.device) if word)
            hosts.setdefault(f"{what}: its {one.name} reads '{str(one.value)[:_SHOWN]}'", []).append(name)
    for text, names in hosts.items():
        yield f"Not looked at on {nodeset.folded(names)}: {text}."
    yield from _reset(view)


def _reset(view: View) -> Iterator[str]:
    """Yield one sentence for the counters that are smaller than before, of nodes with the same ones."""
    hosts: dict[str, list[str]] = {}
    for name, looks in view.hardware.items():
        keys = dict.fromkeys(key for look in looks.baselines for key in shrunk(look, looks.now) if _is_judged(key))
        if keys:
            what = and_more((f"{counter} of {device}" for _, device, counter in keys), _SHOWN_COUNTERS)
            verbs = ("are", "they were", "their") if len(keys) > 1 else ("is", "it was", "its")
            text = (
                f"{what} {verbs[0]} smaller than before: {verbs[1]} reset or wrapped, and {verbs[2]} growth is unknown"
            )
            hosts.setdefault(text, []).append(name)
    for text, names in hosts.items():
        yield f"On {nodeset.folded(names)}, {text}."


def _is_judged(key: CounterKey) -> bool:
    name = (key[0], key[2])
    if key[0] in ("interface", "rdma_port"):
        return name in LIMITS or name in SUMS or name in BESIDE_PEERS
    return name not in _MAY_SHRINK
