"""What the kernel's log says of failing hardware, with how often and how long ago.

The log is that of the last day, and of the time since the node was started. A reset of a device after the last line may
have cured what it tells; that is why each finding says how long ago the line was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from clusterctl.diagnosis.rules.engines import SHOWN
from clusterctl.diagnosis.rules.network import MORE_NEIGHBOURS
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
_RDMA_DOWN = "DOWN"  # the core of RDMA writes it so, a network driver "down" or "Down"
_LOST_GPU = ("nvrm", "fallen off the bus")
_STUCK = (
    "read the lines that follow in the kernel's log, which have the task and its stack, and update the kernel and the "
    "driver that they name; in a virtual machine, see that its host has processors to spare"
)
# By source, what a note says of an event that is no fault.
_HARMLESS = {
    **dict.fromkeys(("aer", "edac", "mce"), "the hardware corrected it"),
    "link": "once may be on purpose",
}
# By source and code, '' for any code: severity, what happened, cure. What is not here is a note.
_FAULTS: dict[tuple[str, str], tuple[Severity, str, str]] = {
    ("sxid", "Fatal"): ("error", "a fatal error of the NVSwitch", "drain the node, and reset all GPUs or restart it"),
    _LOST_GPU: (
        "error",
        "the GPU has fallen off the bus",
        "drain the node and restart it; if it comes back, reseat the GPU or have it replaced",
    ),
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
    ("lockup", "stall"): ("warning", "a processor did not get on in the kernel (RCU stall)", _STUCK),
    ("lockup", ""): ("warning", "it was stuck in the kernel ({code} lockup)", _STUCK),
    ("module", ""): (
        "warning",
        "the cable or the transceiver of its port has an error ({code})",
        "reseat or replace the cable or the transceiver; where it is too hot, look at the cooling",
    ),
    ("nic", ""): (
        "error",
        "the firmware of the network card does not answer",
        "drain the node, and switch it off and on; if it comes back, update the card's firmware, then replace the card",
    ),
    ("link", ""): ("warning", "the link went down", _LINK),
    ("neighbours", ""): (
        "error",
        "the kernel's table of neighbours was full, so that connections timed out at random",
        MORE_NEIGHBOURS,
    ),
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
        return f"Xid {self.code.partition(',')[0]}"

    @property
    def meaning(self) -> str:
        return row(self.code).meaning

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
            if event.source == "xid" and cure(event.code, "") is None:
                yield f"{host}: the kernel's log has {event.xid} of {event.where} {event.times}: {event.meaning}."
            elif event.source != "xid" and not tuple(_fault(host, event)):
                named = f"{event.source.upper()} {event.sxid or event.code} {event.where}".strip()
                yield f"{host}: the kernel's log has {named} {event.times}{_harmless(event)}."


def _xid(host: str, event: _Event) -> Iterator[Finding]:
    found = cure(event.code, event.devices[0])
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
        return f"{said}: {sxid(event.sxid).meaning}"
    return f": {_HARMLESS.get(event.source, 'no fault')}"


def _judged(event: _Event) -> tuple[Severity, str, str] | None:
    """Return how bad an event is, what happened, and what cures it; None for a note."""
    severity_of = event.code.rpartition(", ")[2] if event.sxid else event.code
    if event.source == "aer":
        severity_of = "uncorrected" if event.code.startswith("Uncorrect") else "corrected"
    if event.sxid and severity_of != "Fatal":
        row = sxid(event.sxid)
        return (row.severity, row.meaning, row.cure) if row.severity else None
    return _FAULTS.get((event.source, severity_of)) or _FAULTS.get((event.source, ""))


def _events(seen: Hardware) -> Iterator[_Event]:
    """Yield the events, with all devices of a code together; disks and links stay apart."""
    devices: dict[tuple[str, str, str], dict[str, list[Event]]] = {}
    asked = {one.device: one.code for one in sorted(seen.events, key=lambda one: one.at) if _asks(one)}
    lost = {one.device for one in seen.events if one.source == "xid" and one.code == "79"}
    named = {_card(one) for one in seen.events if one.source == "link" and one.code != _RDMA_DOWN}
    for event in seen.events:
        if _asks(event) and asked[event.device] != event.code:
            continue
        if (event.source, event.code) == _LOST_GPU and event.device in lost:
            continue  # the Xid says the same
        if event.code == _RDMA_DOWN and _card(event) in named:
            continue  # the interface of the port says the same
        apart = event.device if event.source in ("io", "link", "aer", "module", "nic") else ""
        devices.setdefault((event.source, event.code, apart), {}).setdefault(event.device, []).append(event)
    for (source, code, _apart), times in devices.items():
        count = sum(
            int(seen.number("kernel log", f"{source} {code}", device) or len(found)) for device, found in times.items()
        )
        last = max((one for found in times.values() for one in found), key=lambda one: one.at)
        names = tuple(device for device in times if device)
        yield _Event(source, code, names or ("",), count, max(0.0, seen.time - last.at), last.text)


def _card(event: Event) -> str:
    """Return driver and PCI address, with which the line of a link begins."""
    return " ".join(event.text.split()[:2])


def _asks(event: Event) -> bool:
    return event.source == "xid" and is_recovery(event.code)


def _span(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.0f} h"


# --- What NVIDIA's catalogue of Xid errors says to do, code by code ---------------------------------------------------
# Source of every row: "Analyzing Xid Errors with the Xid Catalog", table 1, columns "Description" and "Resolution
# Bucket (Immediate Action)", https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Where the text
# beside a code asks for more than its bucket, the row follows the text. The comment of a row names the bucket.
#
# Of some codes the words of the line decide. A code is then a number and a word: ``154, Node Reboot Required``,
# ``145, Nonfatal``.

Action = Literal["ignore", "application", "later", "reset", "reboot", "replace", "power", "software", "help", "asked"]


class XidRow(NamedTuple):
    """A row of the catalogue: what the code means, and what to do at once."""

    meaning: str
    action: Action


_COPY_ENGINE: XidRow = XidRow("a copy engine reported an error", "application")
_VIDEO: XidRow = XidRow("a video or image engine reported an error", "application")
_UNUSED: XidRow = XidRow("a code that NVIDIA's catalogue lists as unused since the A100", "help")
_CONFIDENTIAL: XidRow = XidRow("an error of an NVLink in confidential computing", "help")
_MORE_OF_48: XidRow = XidRow("it tells more of an Xid 48", "ignore")
_UNUSED_CODES = (
    *(*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54)),
    *(*range(55, 60), 61, 65, 73, 81, 87, 90, 91, *range(111, 119), *range(122, 126), 138),
)
XIDS: dict[str, XidRow] = {
    **dict.fromkeys(map(str, _UNUSED_CODES), _UNUSED),  # CONTACT_SUPPORT
    "8": XidRow("the GPU stopped processing", "application"),  # RESTART_APP
    "11": XidRow("an invalid command stream", "application"),  # RESTART_APP
    "13": XidRow("an exception of the graphics engine, mostly a fault of the program", "application"),  # RESTART_APP
    "14": XidRow("a test error", "ignore"),  # IGNORE
    "25": XidRow("an invalid command stream", "application"),  # RESTART_APP
    "31": XidRow("a page fault of GPU memory, mostly a fault of the program", "application"),  # RESTART_APP
    "32": XidRow("a corrupted command stream, mostly by the quality of the PCIe link", "later"),  # RESTART_APP; text
    "37": XidRow("an error of the driver's firmware", "ignore"),  # IGNORE
    "38": XidRow("an error of the driver's firmware", "ignore"),  # IGNORE
    **dict.fromkeys(("39", "40", "41", "70", "71", "72", "75", "76", "77", "85"), _COPY_ENGINE),  # RESTART_APP
    **dict.fromkeys((str(code) for code in range(126, 136)), _COPY_ENGINE),  # RESTART_APP
    "43": XidRow("a program's fault ended its channel, the GPU stays healthy", "ignore"),  # IGNORE
    "44": XidRow("a fault during a context switch", "ignore"),  # IGNORE
    "45": XidRow("a program was ended and cleaned up", "ignore"),  # WORKFLOW_XID_45: not alone: IGNORE
    "46": XidRow("the GPU stopped processing", "reset"),  # RESET_GPU
    "48": XidRow("an uncorrectable ECC error", "reset"),  # WORKFLOW_XID_48; text: reset or restart
    "54": XidRow("auxiliary power is not connected to the GPU", "power"),  # CHECK_MECHANICALS
    "60": XidRow("an exception of the video processor", "application"),  # RESTART_APP
    "62": XidRow("a halt of an internal microcontroller", "reset"),  # RESET_GPU
    "63": XidRow("a row of memory is remapped, or a page retired, at the next reset", "later"),  # IGNORE; text
    "64": XidRow("a row of memory could not be remapped, or a page retired", "replace"),  # RESET_GPU, CONTACT_SUPPORT
    "66": XidRow("an illegal access by the driver", "ignore"),  # IGNORE
    "67": XidRow("an illegal access by the driver", "ignore"),  # IGNORE
    "69": XidRow("a class error of the graphics engine, mostly a fault of the program", "application"),  # RESTART_APP
    **dict.fromkeys(("68", "82", "83", "84", "86", "88", "89"), _VIDEO),  # RESTART_APP
    **dict.fromkeys((str(code) for code in range(96, 106)), _VIDEO),  # RESTART_APP
    "139": _VIDEO,  # RESTART_APP
    "74": XidRow("an error of an NVLink", "reset"),  # WORKFLOW_NVLINK_ERR; text: reset or restart
    "78": XidRow("a virtual GPU could not start", "software"),  # UPDATE_SWFW
    "79": XidRow("the GPU has fallen off the bus", "reboot"),  # RESTART_BM
    "80": XidRow("corrupted data was sent to the GPU", "application"),  # RESTART_APP
    "92": XidRow("a high rate of corrected ECC errors", "later"),  # IGNORE, CONTACT_SUPPORT
    "93": XidRow("the limit of writes to the InfoROM", "ignore"),  # IGNORE
    "94": XidRow("an uncorrectable memory error, contained in one program", "later"),  # RESTART_APP; text: reset later
    "95": XidRow("an uncorrectable memory error that was not contained", "reset"),  # RESET_GPU
    "106": XidRow("a test message", "ignore"),  # IGNORE
    "107": XidRow("a test message", "ignore"),  # IGNORE
    "108": XidRow("a remote translation error", "ignore"),  # IGNORE
    "109": XidRow("a context switch did not end in time", "reset"),  # RESET_GPU
    "110": XidRow("a security fault", "reset"),  # RESET_GPU
    "119": XidRow("the GPU's system processor (GSP) did not answer in time", "reset"),  # RESET_GPU
    "120": XidRow("an error in the GPU's system processor (GSP)", "reset"),  # RESET_GPU
    "121": XidRow("a corrected error of the link to the Grace processor", "ignore"),  # IGNORE
    "136": XidRow("the training of an NVLink failed", "reset"),  # RESET_GPU
    "137": XidRow("an illegal access over NVLink, mostly a fault of the program", "ignore"),  # IGNORE
    "140": XidRow("an uncorrected ECC error", "reset"),  # RESET_GPU
    "141": XidRow("an error of CUDA's fast path", "ignore"),  # IGNORE
    "142": _VIDEO,  # none; CONTACT_SUPPORT to investigate, as for the other engines
    "143": XidRow("the GPU could not be initialised", "reset"),  # RESET_GPU
    # WORKFLOW_NVLINK5_ERR: RESET_GPU where the line says Fatal
    **dict.fromkeys(map(str, range(144, 151)), XidRow("an error of an NVLink", "reset")),
    "151": XidRow("an error in the rotation of keys", "reboot"),  # RESTART_VM
    "152": XidRow("an error of the deep learning accelerator", "ignore"),  # IGNORE
    "153": XidRow("a timeout of the deep learning accelerator", "ignore"),  # IGNORE
    "154": XidRow("what the driver asks for has changed", "asked"),  # XID_154: what the line says
    "155": XidRow("an NVLink went down", "reset"),  # RESET_GPU
    "156": XidRow("a resource was retired", "reset"),  # RESET_GPU
    "157": XidRow("no spare is left to retire a resource", "replace"),  # IGNORE, CONTACT_SUPPORT
    "158": XidRow("a fatal timeout of the GPU", "reset"),  # RESET_GPU
    "159": XidRow("an error of the link to the Grace processor", "later"),  # CHECK_UVM: RESET_GPU where UVM is used
    "160": XidRow("a memory channel was retired", "ignore"),  # IGNORE
    "161": XidRow("a memory channel could not be retired", "ignore"),  # IGNORE
    # From here on the catalogue names no bucket; the rows follow its text.
    "162": XidRow("the circuit that smooths power is on again", "ignore"),
    "163": XidRow("the circuit that smooths power is off", "ignore"),  # "No GPU reset required"
    "164": XidRow("the circuit that smooths power nears the end of its life", "ignore"),
    "165": XidRow("the circuit that smooths power has reached the end of its life", "ignore"),
    "166": _CONFIDENTIAL,
    "167": XidRow("a fatal timeout of PCIe", "help"),
    "168": XidRow("errors in protected memory, seen only where ECC is off", "help"),
    "169": XidRow("a halt of an internal microcontroller", "help"),
    "170": _CONFIDENTIAL,
    "171": _MORE_OF_48,
    "172": _MORE_OF_48,
}
_NONFATAL = "Nonfatal"  # of 144 to 150. IGNORE, or XID_154_EVAL: RESTART_APP where no Xid 154 asks for more
_RECOVERY = "154"
# What the driver asks for by Xid 154: the catalogue's words, and those of newer drivers. What each means: NVIDIA GPU
# Memory Error Management, "Error Recovery and Response Flags".
_ASKED: dict[str, Action] = {
    "None": "ignore",
    "GPU Reset Required": "reset",
    "PF FLR": "reset",
    "Drain and Reset": "reset",
    "Node Reboot Required": "reboot",
    "OS Reboot": "reboot",
}
_UNKNOWN = XidRow("a code that this release does not know", "software")
_ADDRESS = "https://docs.nvidia.com/deploy/xid-errors/"
_AGAIN = "if it comes back, have the GPU replaced"
_CURES: dict[Action, tuple[Severity, str]] = {
    "later": ("warning", f"reset the GPU when it is free ('nvidia-smi --gpu-reset -i {{gpu}}'); {_AGAIN}"),
    "reset": ("error", f"drain the node and reset the GPU ('nvidia-smi --gpu-reset -i {{gpu}}'); {_AGAIN}"),
    "reboot": ("error", "drain the node and restart it; if it comes back, reseat the GPU or have it replaced"),
    "replace": ("error", "drain the node and reset the GPU; have it replaced where the error is still told after that"),
    "power": ("error", "connect the GPU's power cables"),
    "software": ("warning", f"look the code up in NVIDIA's catalogue ({_ADDRESS}), and update driver and firmware"),
    "help": ("warning", "watch the GPU; if it comes back, ask NVIDIA's support ('nvidia-bug-report.sh')"),
    "asked": ("error", "drain the node, and do what the driver asks for ('nvidia-smi -q -i {gpu}', Recovery Action)"),
}


class SXidRow(NamedTuple):
    """What NVIDIA says of an SXid that is not fatal; without a severity it needs nothing."""

    meaning: str
    severity: Severity | None = None
    cure: str = ""


_CORRECTED = SXidRow("the switch corrected a single-bit error of its memory")
_MAY_FOLLOW = SXidRow("it is not fatal, and fatal ones may follow")
_STALLED = "the traffic of a GPU's NVLinks stalls, and access to it hangs"
# Source: NVIDIA Fabric Manager User Guide, "NVSwitch SXid Errors": "Non-Fatal NVSwitch SXid Errors" and "Other Notable
# NVSwitch SXid Errors". A fatal one asks for a reset of the fabric, whatever its code.
SXIDS: dict[str, SXidRow] = {
    **dict.fromkeys(("11012", "11021", "11022", "11023", "12021", "12023", "15008", "15011"), _CORRECTED),
    **dict.fromkeys(("19049", "19055", "19057", "19059", "19062", "19065", "19068", "19071"), _CORRECTED),
    **dict.fromkeys(("24001", "24002", "24003"), _CORRECTED),
    "10001": _MAY_FOLLOW,
    "10002": _MAY_FOLLOW,
    "10004": SXidRow(
        "the switch is too hot, and its links may become slower", "warning", "look at the cooling of the node"
    ),
    "10005": SXidRow("the switch is no longer too hot"),
    "11004": SXidRow(
        _STALLED, "error", "restart the node; if it comes back, look at the partitions of the fabric manager"
    ),
    "12028": SXidRow(_STALLED, "error", "drain the node and restart it"),
    "19084": SXidRow("a heartbeat of a link is missing", "error", "drain the node, and reset all GPUs or restart it"),
    "20001": SXidRow("a packet of an NVLink was sent again, which may slow the link down"),
    "20012": SXidRow(
        "the connection of an NVLink is broken, where no GPU was shut down",
        "warning",
        "look at the mechanical connections of the GPUs and switches",
    ),
    "22013": SXidRow("it can be ignored"),
}
_UNLISTED = SXidRow("the driver calls it not fatal, and NVIDIA's guide does not list it")


def sxid(code: str) -> SXidRow:
    """Return what NVIDIA says of an SXid that the driver calls not fatal."""
    return SXIDS.get(code, _UNLISTED)


def row(code: str) -> XidRow:
    """Return what the catalogue says of a code, which may have a word of its line: ``154, Node Reboot Required``."""
    number, _, word = code.partition(", ")
    found = XIDS.get(number, _UNKNOWN)
    if number == _RECOVERY and word:
        action = _ASKED.get(word, "asked")
        asked = "nothing any more" if action == "ignore" else f"'{word}'"
        return XidRow(f"the driver asks for {asked}", action)
    if word == _NONFATAL:
        return XidRow(f"{found.meaning} that is not fatal", "application")
    return found


def is_recovery(code: str) -> bool:
    """Tell whether a code is Xid 154: of its lines, the last one of a GPU counts."""
    return code.partition(", ")[0] == _RECOVERY


def cure(code: str, gpu: str) -> tuple[Severity, str] | None:
    """Return how bad a code is and what cures it, None where the hardware needs nothing."""
    found = _CURES.get(row(code).action)
    return None if found is None else (found[0], found[1].format(gpu=gpu))
