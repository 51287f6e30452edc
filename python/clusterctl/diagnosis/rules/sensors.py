"""What the boards' management controllers say: sensors out of their limits, and new events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.findings import Finding, Severity
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View

ORDER = 76
_CHECK = "sensors"
_SHOWN = 3
_STATES: dict[str, tuple[Severity, str]] = {
    "nc": ("warning", "outside its normal limits"),
    "cr": ("error", "critical"),
    "nr": ("error", "beyond recovery"),
    "us": ("error", "faulty"),
}


def findings(view: View) -> Iterator[Finding]:
    """Return sensors that are not well, and events of the last day."""
    for host, looks in view.hardware.items():
        for sensor, state in looks.now.texts("sensor", "state").items():
            word, _, value = state.partition(", ")
            severity, means = _STATES.get(word, ("warning", word))
            cure = "look at fans, power supplies and cooling: 'ipmitool sdr list', 'ipmitool sel elist'"
            yield Finding(_CHECK, severity, (host,), f"the sensor {sensor} is {means} ({value})", cure)
        told = list(dict.fromkeys(event.text for event in looks.now.events if event.source == "ipmi"))
        if told:
            cause = f"the board's event log has {and_more(told, _SHOWN, '; ')}"
            yield Finding(_CHECK, "warning", (host,), cause, "read all of it: 'ipmitool sel elist'")
