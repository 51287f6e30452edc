"""What NVIDIA's catalogue of Xid errors says to do, code by code.

Source of every row: "Analyzing Xid Errors with the Xid Catalog", table 1, columns "Description" and "Resolution Bucket
(Immediate Action)", https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Where the text beside a code
asks for more than its bucket, the row follows the text. SXid: NVIDIA Fabric Manager User Guide, "NVSwitch SXid
Errors", where "Fatal" asks for a reset of the fabric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from clusterctl.model.findings import Severity

Action = Literal["ignore", "application", "later", "reset", "reboot", "replace", "power", "software"]


class XidRow(NamedTuple):
    """A row of the catalogue: what the code means, and what to do at once."""

    meaning: str
    action: Action


_COPY_ENGINE: XidRow = XidRow("a copy engine reported an error", "application")
_VIDEO: XidRow = XidRow("a video or image engine reported an error", "application")
XIDS: dict[str, XidRow] = {
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
    "143": XidRow("the GPU could not be initialised", "reset"),  # RESET_GPU
    **dict.fromkeys(("144", "145", "146", "147", "148", "149", "150"), XidRow("an error of an NVLink", "reset")),
    "155": XidRow("an NVLink went down", "reset"),  # RESET_GPU
    "156": XidRow("a resource was retired", "reset"),  # RESET_GPU
    "157": XidRow("no spare is left to retire a resource", "replace"),  # IGNORE, CONTACT_SUPPORT
    "158": XidRow("a fatal timeout of the GPU", "reset"),  # RESET_GPU
    "160": XidRow("a memory channel was retired", "ignore"),  # IGNORE
    "161": XidRow("a memory channel could not be retired", "ignore"),  # IGNORE
}
_UNKNOWN = XidRow("a code that this release does not know", "software")
_AGAIN = "if it comes back, have the GPU replaced"
_CURES: dict[Action, tuple[Severity, str]] = {
    "later": ("warning", f"reset the GPU when it is free ('nvidia-smi --gpu-reset -i {{gpu}}'); {_AGAIN}"),
    "reset": ("error", f"drain the node and reset the GPU ('nvidia-smi --gpu-reset -i {{gpu}}'); {_AGAIN}"),
    "reboot": ("error", "drain the node and restart it; if it comes back, reseat the GPU or have it replaced"),
    "replace": ("error", "drain the node and reset the GPU; have it replaced where the error is still told after that"),
    "power": ("error", "connect the GPU's power cables"),
    "software": ("warning", "look the code up in NVIDIA's catalogue of Xid errors, and update driver and firmware"),
}


def row(code: str) -> XidRow:
    """Return what the catalogue says of a code."""
    return XIDS.get(code, _UNKNOWN)


def cure(code: str, gpu: str) -> tuple[Severity, str] | None:
    """Return how bad a code is and what cures it, None where the hardware needs nothing."""
    found = _CURES.get(row(code).action)
    return None if found is None else (found[0], found[1].format(gpu=gpu))
