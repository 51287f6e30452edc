"""What the kernel's log says of failing hardware, with how often and how long ago.

The log is that of the last day, and of the time since the node was started. A reset of a device after the last line may
have cured what it tells; that is why each finding says how long ago the line was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.diagnosis import xid_catalogue
from clusterctl.diagnosis.rules.engines import SHOWN
from clusterctl.diagnosis.rules.rdma import flapping
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Severity
    from clusterctl.model.hardware import Event, Hardware

_MINUTE, _HOUR = 60, 3600
_FLAPS = 2  # a link that goes down once may have been pulled on purpose
_DISK = "save its data, look at it with 'smartctl -a' or 'nvme smart-log', and replace it if that tells of errors"
_LINK = "reseat or replace the cable or the transceiver, and look at the switch's port"
_MEMORY = "find the module in 'ipmitool sel list' or with 'ras-mc-ctl --errors', and replace it"
_SLOT = "reseat the card; if it comes back, try another slot or cable, then another card"
# By source, what a note says of an event that is no fault.
_HARMLESS = {
    **dict.fromkeys(("aer", "edac", "mce"), "the hardware corrected it"),
    "link": "once may be on purpose",
}
# By source and code, '' for any code: severity, what happened, cure. What is not here is a note.
_FAULTS: dict[tuple[str, str], tuple[Severity, str, str]] = {
    ("sxid", "Fatal"): ("error", "a fatal error of the NVSwitch", "drain the node, and reset all GPUs or restart it"),
    ("nvrm", ""): ("error", "the driver could not start the GPU", "restart the node; if it comes back, reseat the GPU"),
    ("aer", "uncorrected"): ("error", "uncorrected PCIe errors", _SLOT),
    ("mce", "uncorrected"): (
        "error",
        "an uncorrected machine check",
        "drain the node, and replace its processor",
    ),
    ("edac", "UE"): ("error", "uncorrected memory errors", _MEMORY),
    ("oom", ""): (
        "warning",
        "the node ran out of memory and the kernel killed {code}",
        "give jobs less memory each, for example fewer ranks on a node, or a limit by the scheduler",
    ),
    ("io", ""): ("error", "errors of reading or writing", _DISK),
    ("hung", ""): (
        "warning",
        "the task {code} was blocked for minutes",
        "look at the disk or file server that it waits for ('cat /proc/PID/stack' as root)",
    ),
    ("link", ""): ("warning", "the link went down", _LINK),
}


class _Event(NamedTuple):
    """Lines of one source and code: the devices, how many lines, the age of the last in seconds, and its text."""

    source: str
    code: str
    devices: tuple[str, ...]
    lines: int
    age_s: float
    text: str

    @property
    def times(self) -> str:
        """How often, and how long ago at last."""
        often = f"once, {_span(self.age_s)} ago"
        return often if self.lines == 1 else f"{self.lines} times, the last {_span(self.age_s)} ago"

    @property
    def where(self) -> str:
        """The devices, as a person reads them."""
        return and_more(self.devices, SHOWN)

    @property
    def xid(self) -> str:
        """The number of an Xid."""
        return f"Xid {self.code.partition(',')[0]}"

    @property
    def meaning(self) -> str:
        """What an Xid means."""
        return xid_catalogue.row(self.code).meaning

    @property
    def sxid(self) -> str:
        """The number of an SXid, '' for another event."""
        return self.code.partition(",")[0] if self.source == "sxid" else ""

    @property
    def said(self) -> str:
        """What the driver adds to an SXid: the link, and what happened on it."""
        return "".join(self.text.split(", ", 2)[2:])


def kernel_log(view: View) -> Iterator[Finding]:
    """Return one finding for each kind of event that hardware or memory must be cured of."""
    for host, looks in view.hardware.items():
        counted = flapping(looks)
        for event in _events(looks.now):
            if event.source == "link" and counted.intersection(event.devices):
                continue  # its counter tells it, with how fast it grows
            yield from _xid(host, event) if event.source == "xid" else _fault(host, event)


def kernel_log_notes(view: View) -> Iterator[str]:
    """Return what the log says of programs' own faults, of corrected errors, and of what NVIDIA calls not fatal."""
    for host, looks in view.hardware.items():
        for event in _events(looks.now):
            if event.source == "xid" and xid_catalogue.cure(event.code, "") is None:
                yield f"{host}: the kernel's log has {event.xid} of {event.where} {event.times}: {event.meaning}."
            elif event.source != "xid" and not tuple(_fault(host, event)):
                named = f"{event.source.upper()} {event.sxid or event.code} {event.where}".strip()
                yield f"{host}: the kernel's log has {named} {event.times}{_harmless(event)}."


def _xid(host: str, event: _Event) -> Iterator[Finding]:
    found = xid_catalogue.cure(event.code, event.devices[0])
    if found:
        cause = f"the kernel's log has {event.xid} of GPU {event.where} {event.times}: {event.meaning}"
        yield Finding("kernel log", found[0], (host,), cause, found[1])


def _fault(host: str, event: _Event) -> Iterator[Finding]:
    found = _judged(event)
    if found is None or (event.source == "link" and event.lines < _FLAPS):
        return
    severity, what, cure = found
    said = f", '{event.said}'" if event.said else ""
    number = f" (SXid {event.sxid}{said})" if event.sxid else ""
    place = f" of {event.where}" if event.where else ""
    cause = f"the kernel's log has {event.times}{place}: {what.format(code=event.code)}{number}"
    yield Finding("kernel log", severity, (host,), cause, cure)


def _harmless(event: _Event) -> str:
    """Return what a note adds of an event that is no fault."""
    if event.sxid:
        said = f" ('{event.said}')" if event.said else ""
        return f"{said}: {xid_catalogue.sxid(event.sxid).meaning}"
    return f": {_HARMLESS.get(event.source, 'no fault')}"


def _judged(event: _Event) -> tuple[Severity, str, str] | None:
    """Return how bad an event is, what happened, and what cures it; None for a note."""
    severity_of = event.code.rpartition(", ")[2] if event.sxid else event.code
    if event.source == "aer":
        severity_of = "uncorrected" if event.code.startswith("Uncorrect") else "corrected"
    if event.sxid and severity_of != "Fatal":
        row = xid_catalogue.sxid(event.sxid)
        return (row.severity, row.meaning, row.cure) if row.severity else None
    return _FAULTS.get((event.source, severity_of)) or _FAULTS.get((event.source, ""))


def _events(seen: Hardware) -> Iterator[_Event]:
    """Yield the events, with all devices of a code together; disks and links stay apart."""
    devices: dict[tuple[str, str, str], dict[str, list[Event]]] = {}
    asked = {one.device: one.code for one in sorted(seen.events, key=lambda one: one.at) if _asks(one)}
    for event in seen.events:
        if _asks(event) and asked[event.device] != event.code:
            continue
        apart = event.device if event.source in ("io", "link", "aer") else ""
        devices.setdefault((event.source, event.code, apart), {}).setdefault(event.device, []).append(event)
    for (source, code, _apart), times in devices.items():
        count = sum(
            int(seen.number("kernel log", f"{source} {code}", device) or len(found)) for device, found in times.items()
        )
        last = max((one for found in times.values() for one in found), key=lambda one: one.at)
        names = tuple(device for device in times if device)
        yield _Event(source, code, names or ("",), count, max(0.0, seen.time - last.at), last.text)


def _asks(event: Event) -> bool:
    return event.source == "xid" and xid_catalogue.is_recovery(event.code)


def _span(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.0f} h"
