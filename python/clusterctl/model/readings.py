"""The form of each reading of a node's hardware: text, a number, or a flag. Pure data, and the test of a value.

A node, or a tool on it, may tell anything. What has another form than this table says is odd: no rule sees it, and
doctor notes that it was not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = bool | int | float | str
Form: TypeAlias = Literal["text", "number", "flag"]

_LARGEST = 2.0**64  # no size, speed or count of a machine is larger; NaN is not below it
_NAMES: Mapping[Form, Mapping[str, tuple[str, ...]]] = {
    "text": {
        "board": ("model", "firmware"),
        "bond": ("mode",),
        "bond_member": ("mii_status", "bond"),
        "cpu": (
            "clock source",
            "idle driver",
            "idle states",
            "idle states switched off",
            "kernel parameters of idle states",
            "deepest C-state of intel_idle",
            "frequency driver",
            "hyperthreading",
            "automatic NUMA balancing",
            "zone reclaim",
            "governor",
            "energy preference",
            "turbo",
            "transparent huge pages",
            "processors offline",
        ),
        "disk": ("state",),
        "fabric_link": ("ends", "could_be"),
        "filesystem": ("type", "problem"),
        "gpu": (
            "model",
            "persistence",
            "compute mode",
            "mig",
            "ecc",
            "remap pending",
            "remap failed",
            "retirement pending",
            "sram threshold exceeded",
            "reset required",
            "recovery action",
            "fabric state",
            "fabric status",
            "pstate",
            "throttled by",
            "IOMMU",
            "way to the nearest RDMA card",
        ),
        "interface": ("driver", "operstate", "duplex", "address"),
        "lossless": ("pfc", "trust", "ecn_roce_np", "ecn_roce_rp"),
        "node": ("NVML", "GPUDirect"),
        "numa": ("processors",),
        "nvlink": ("links down",),
        "rdma_device": ("place", "fw_ver", "board_id"),
        "rdma_port": ("link_layer", "state", "phys_state", "generation", "pkeys", "interface"),
        "sensor": ("state",),
        "shared memory": ("largest",),
        "sshd": ("MaxStartups",),
    },
    "number": {
        "array": ("members", "members working"),
        "bond": ("members",),
        "cpu": ("highest frequency in kHz", "NUMA nodes"),
        "disk": ("critical warning", "endurance used in percent", "spare in percent", "least spare in percent"),
        "fabric_link": ("lanes", "lane_gbps"),
        "filesystem": ("answer in s", "size in bytes", "free bytes", "inodes", "free inodes"),
        "gpu": (
            "power limit W",
            "default power limit W",
            "power W",
            "temperature C",
            "utilization",
            "memory used MiB",
            "NUMA node",
            "PCIe lanes",
            "PCIe lanes possible",
            "PCIe GT/s",
            "PCIe GT/s possible",
        ),
        "huge pages": ("reserved huge pages",),
        "interface": ("speed", "mtu"),
        "memory": ("memory in KiB", "memory modules", "reserved huge pages"),
        "node": ("NVSwitches",),
        "numa": ("memory in KiB",),
        "nvlink": ("links up", "slowest GB/s"),
        "rdma card": ("NUMA node", "PCIe lanes", "PCIe lanes possible", "PCIe GT/s", "PCIe GT/s possible"),
        "rdma_port": ("rate_gbps", "width", "sm_lid", "active_mtu"),
        "shared memory": ("stale bytes", "stale segments"),
    },
    "flag": {
        "bond_member": ("in_group",),
        "disk": ("healthy",),
        "filesystem": ("remote", "read-only", "answers"),
        "gpu": ("on the bus", "lost"),
        "interface": ("wanted_up",),
        "node": ("fabric manager",),
        "pci port": ("ACS",),
    },
}
FORMS: Mapping[tuple[str, str], Form] = {
    (kind, name): form for form, kinds in _NAMES.items() for kind, names in kinds.items() for name in names
}
# Kinds whose names are numbers of processes, or codes of a log.
_OF_KIND: Mapping[str, Form] = {"gpu holder": "text", "kernel log": "number"}


def form_of(kind: str, name: str) -> Form | None:
    """Return the form of a reading, None where this release does not know it."""
    return FORMS.get((kind, name)) or _OF_KIND.get(kind)


def has_form(value: Value, form: Form) -> bool:
    """Whether a value has a form; a flag is not a number, and neither is NaN or an absurd number."""
    if form == "text":
        return isinstance(value, str)
    if form == "flag" or isinstance(value, bool):
        return form == "flag" and isinstance(value, bool)
    return isinstance(value, int | float) and -_LARGEST < value < _LARGEST
