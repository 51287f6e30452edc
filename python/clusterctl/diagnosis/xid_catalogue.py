"""What NVIDIA's catalogue of Xid errors says to do, code by code.

Source of every row: "Analyzing Xid Errors with the Xid Catalog", table 1, columns "Description" and "Resolution Bucket
(Immediate Action)", https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Where the text beside a code
asks for more than its bucket, the row follows the text. The comment of a row names the bucket.

Of some codes the words of the line decide. A code is then a number and a word: ``154, Node Reboot Required``,
``145, Nonfatal``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from clusterctl.model.findings import Severity

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
