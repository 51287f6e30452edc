"""Doctor's table: limits, readings that are compared, and counters that may grow, each with its cure and source.

A new rule is a row here and a test. The engines that judge the rows stand in ``engines.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clusterctl.diagnosis.rules.engines import LASTING, Alike, GrowthLimit, OfModel, ReadingLimit, ReadingLimits

# --- limits -----------------------------------------------------------------------------------------------------------

DISK = "save what is on it, and replace the disk"
_WORN = 100  # percent of the endurance that the vendor states
# The spare of NVMe and its threshold: NVM Express Base Specification, "SMART / Health Information".
_SPARE = (
    "has {spare in percent:g} % of its spare blocks left, below its vendor's threshold of {least spare in percent:g} %"
)
DISKS = ReadingLimits(
    "disks",
    "disk",
    (
        ReadingLimit("error", "healthy", wrong=False, cause="{device} says that it is failing (SMART)", cure=DISK),
        ReadingLimit(
            "error",
            "spare in percent",
            lambda it: (
                it.number("spare in percent") < it.number("least spare in percent") and it["healthy"] is not False
            ),
            f"{{device}} {_SPARE}",
            DISK,
        ),
        ReadingLimit(
            "error",
            "critical warning",
            lambda it: it["critical warning"] and it["healthy"] is not False,
            "{device} has the critical warning {critical warning} (NVMe)",
            DISK,
        ),
        ReadingLimit(
            "warning",
            "endurance used in percent",
            lambda it: it.number("endurance used in percent") >= _WORN,
            "{device} has used {endurance used in percent} % of the endurance that its vendor states",
            DISK,
        ),
        ReadingLimit(
            "error",
            "state",
            lambda it: it["state"] not in {"running", "live"},
            "{device} is in the state '{state}'",
            DISK,
        ),
    ),
)
ARRAYS = ReadingLimits(
    "disks",
    "array",
    (
        ReadingLimit(
            "error",
            "members working",
            lambda it: it["members"] not in (None, it["members working"]),
            "the array {device} has {members working} of {members} members",
            "replace the lost one: 'mdadm --detail /dev/{device}'",
        ),
        ReadingLimit(
            "error",
            "state",
            "inactive",
            "the array {device} is inactive",
            "see what it lacks with 'mdadm --detail /dev/{device}'; 'mdadm --run /dev/{device}' starts it",
        ),
    ),
)
# Each connection that a program opens takes one, also for a minute after its end. The kernel's default is 28232.
_FEW_PORTS, _SCARCE_PORTS = 4096, 256
_PORTS = "the kernel has {local ports:.0f} ports for connections that programs open (net.ipv4.ip_local_port_range)"
_WIDEN = "widen it in /etc/sysctl.d: net.ipv4.ip_local_port_range = 32768 60999"
LOCAL_PORTS = ReadingLimits(
    "network",
    "node",
    (
        ReadingLimit("error", "local ports", lambda it: it.number("local ports") < _SCARCE_PORTS, _PORTS, _WIDEN),
        ReadingLimit(
            "warning",
            "local ports",
            lambda it: _SCARCE_PORTS <= it.number("local ports") < _FEW_PORTS,
            _PORTS,
            _WIDEN,
        ),
    ),
)

_FIRMWARE = "set it alike in the firmware of all nodes, or with the site's tool (tuned-adm, cpupower)"
_CLOCK = "look in the kernel's log for 'clocksource', and restart the node"
_GOVERNOR = "set it alike: 'cpupower frequency-set -g performance'"
# The kernel takes one of these where it distrusts the processor's counter; each reading then costs a microsecond.
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies"})
SLOW_PROCESSORS = ReadingLimits(
    "processors",
    "cpu",
    (
        ReadingLimit(
            "warning",
            "clock source",
            lambda it: it["clock source"] in _SLOW_CLOCKS,
            "the kernel reads the time from {clock source}, which is slow, because it distrusts the processor's "
            "counter",
            _CLOCK,
        ),
        ReadingLimit(
            "warning",
            "governor",
            lambda it: (it["frequency driver"], it["governor"]) == ("acpi-cpufreq", "powersave"),
            "the governor powersave keeps the processors at their lowest frequency",
            _GOVERNOR,
        ),
    ),
)
RESTART = "drain the node and restart it; if it comes back, reseat the GPU or have it replaced"
_LOST = "the driver has lost the GPU {devices}: it is there, and gives no answer"
LOST_GPUS = ReadingLimits("gpus", "gpu", (ReadingLimit("error", "lost", lambda _gpu: True, _LOST, RESTART),))
# What must be reset or replaced: NVIDIA GPU Memory Error Management, "Row Remapping" and "RMA Policy".
_RESET = "drain the node and reset the GPU ('nvidia-smi --gpu-reset -i {device}'), or restart the node"
_REPLACE = "drain the node and have the GPU replaced"
_ROW, _PAGE = "a row of its memory", "a page of its memory waits to be retired until the next reset"
_SRAM = "it has more errors in its SRAM than NVIDIA allows"
_IT = "the GPU {devices} must be looked after:"
GPU_STATES = ReadingLimits(
    "ecc",
    "gpu",
    (
        ReadingLimit("error", "remap failed", "Yes", f"{_IT} {_ROW} could not be remapped", _REPLACE),
        ReadingLimit(
            "warning", "remap pending", "Yes", f"{_IT} {_ROW} waits to be remapped until the next reset", _RESET
        ),
        ReadingLimit("warning", "retirement pending", "Yes", f"{_IT} {_PAGE}", _RESET),
        ReadingLimit("error", "sram threshold exceeded", "Yes", f"{_IT} {_SRAM}", _REPLACE),
        ReadingLimit("error", "reset required", "Yes", f"{_IT} it must be reset", _RESET),
    ),
)

# --- against peers ----------------------------------------------------------------------------------------------------

_ALIKE = "give all nodes the same kernel parameters"
_HUGE_PAGES = "set huge pages alike with sysctl (vm.nr_hugepages)"
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
_RESERVE = "reserve pages of that size alike: 'hugeadm', or nr_hugepages in /sys/kernel/mm/hugepages"
_OFFLINE = "look for processors that are offline, and for firmware settings that differ"
PROCESSORS: tuple[Alike, ...] = (
    Alike("cpu", "governor", _GOVERNOR, ("cpupower", "frequency-set", "-g", "@")),
    Alike("cpu", "energy preference", "set it alike, for example with 'tuned-adm profile hpc-compute'"),
    Alike("cpu", "highest frequency in kHz", "look for a limit: 'cpupower frequency-info'"),
    Alike("cpu", "turbo", _FIRMWARE),
    Alike("cpu", "idle driver", _FIRMWARE),
    Alike("cpu", "idle states", _FIRMWARE),
    Alike("cpu", "idle states switched off", "switch them on or off alike: 'cpupower idle-set'"),
    Alike("cpu", "kernel parameters of idle states", _ALIKE),
    Alike("cpu", "deepest C-state of intel_idle", _ALIKE),
    Alike("cpu", "clock source", _CLOCK),
    Alike(
        "cpu",
        "transparent huge pages",
        f"write the same word to {_THP} on all nodes",
        ("sh", "-c", f'echo "$0" > {_THP}', "@"),
    ),
    Alike(
        "cpu",
        "automatic NUMA balancing",
        "set kernel.numa_balancing alike with sysctl",
        ("sysctl", "-w", "kernel.numa_balancing=@"),
    ),
    Alike(
        "cpu", "zone reclaim", "set vm.zone_reclaim_mode alike with sysctl", ("sysctl", "-w", "vm.zone_reclaim_mode=@")
    ),
    Alike("cpu", "processors offline", "bring them back: write 1 to /sys/devices/system/cpu/cpuN/online"),
    Alike("cpu", "NUMA nodes", "set nodes per socket (NPS), or sub-NUMA clustering, alike in the firmware"),
    Alike("memory", "reserved huge pages", _HUGE_PAGES, ("sysctl", "-w", "vm.nr_hugepages=@")),
    Alike("huge pages", "reserved huge pages", _RESERVE),
    Alike("numa", "processors", _OFFLINE),
)
MODULE = "look in the firmware's log for a module that failed, and seat or replace it"
MEMORY: tuple[Alike, ...] = (Alike("memory", "memory modules", MODULE),)
BONDS: tuple[Alike, ...] = (
    Alike("bond", "mode", "set the same mode on all nodes", what="the mode of {device}"),
    Alike("bond", "members", "add the missing interface to the bond", what="the number of members of {device}"),
)
_OTHER_CARD = "replace the odd card, or run jobs on nodes with the same cards"
RDMA_BOARDS: tuple[Alike, ...] = (Alike("rdma_device", "board_id", _OTHER_CARD, what="the board of {device}"),)

_UNLIKE = "of the GPU {places} is {value}, and {usual} on most"
_PERSISTENCE = "turn it on or off alike on all nodes ('nvidia-smi -pm 1' or the service nvidia-persistenced)"
_COMPUTE_MODES = {"Default": ("-c", "DEFAULT"), "Exclusive_Process": ("-c", "EXCLUSIVE_PROCESS")}
_MIG = "set it alike on all nodes ('nvidia-smi -mig 0' or 'nvidia-smi -mig 1')"
GPU_SETTINGS: tuple[OfModel, ...] = (
    OfModel(
        "gpu",
        "persistence",
        f"persistence mode {_UNLIKE}",
        _PERSISTENCE,
        {"Enabled": ("-pm", "1"), "Disabled": ("-pm", "0")},
    ),
    OfModel(
        "gpu",
        "compute mode",
        f"compute mode {_UNLIKE}",
        "set it alike on all nodes ('nvidia-smi -c DEFAULT')",
        _COMPUTE_MODES,
    ),
    OfModel("gpu", "mig", f"MIG mode {_UNLIKE}", _MIG),
    OfModel("gpu", "ecc", f"ECC {_UNLIKE}", "set it alike on all nodes ('nvidia-smi -e 1', then restart the node)"),
    OfModel(
        "gpu",
        "power limit W",
        "the power limit of the GPU {places} is {value:g} W, and {usual:g} W on most",
        "raise it with 'nvidia-smi -pl {usual:g}', and look for what lowered it",
        {"": ("-pl", "{usual:g}")},
        lower=True,
    ),
)
SEAT = "reseat the card and its riser or cable, and look at the slot's setting in the firmware"
PCIE_SLOTS: tuple[OfModel, ...] = (
    OfModel(
        "gpu",
        "PCIe GT/s possible",
        "the PCIe link of the GPU {places} allows at most {value:g} GT/s, and {usual:g} on most",
        SEAT,
        lower=True,
    ),
)
NVLINK = "drain the node and reset all its GPUs, or restart it; if it comes back, have the GPU or the board replaced"
NVLINK_SPEED: tuple[OfModel, ...] = (
    OfModel(
        "nvlink",
        "slowest GB/s",
        "an NVLink of the GPU {places} runs at {value:g} GB/s, and most at {usual:g}",
        NVLINK,
        lower=True,
    ),
)

# --- growth since an earlier look: links ------------------------------------------------------------------------------

_HOUR = 3600.0
_IEEE_PER_HOUR = 1e10 * 3600 * 1e-12  # IEEE 802.3: a bit error ratio of 1e-12, on a full link of 10 Gb/s
_SENTINEL = "NVIDIA NVSentinel, docs/nic-health-monitor/link-counter-detection.md"
_IBTA = f"InfiniBand Architecture, a bit error rate of 1e-12, as quoted by {_SENTINEL}"
_IEEE = "IEEE 802.3, a bit error ratio of 1e-12; Linux, Documentation/ABI/testing/sysfs-class-net-statistics"
_CABLE = "clean or replace the cable or its transceiver, then try another port of the switch"

LIMITS: Mapping[tuple[str, str], GrowthLimit] = {
    ("rdma_port", "link_downed"): GrowthLimit(0, "error", "losses of the link", _CABLE, _SENTINEL),
    ("rdma_port", "symbol_error"): GrowthLimit(120, "warning", "symbol errors", _CABLE, _IBTA),
    ("rdma_port", "link_error_recovery"): GrowthLimit(5 * 60, "warning", "recoveries of the link", _CABLE, _SENTINEL),
    ("rdma_port", "port_rcv_errors"): GrowthLimit(10 * _HOUR, "warning", "broken packets received", _CABLE, _SENTINEL),
    ("rdma_port", "local_link_integrity_errors"): GrowthLimit(
        0, "error", "integrity errors of the link", _CABLE, _SENTINEL
    ),
    ("rdma_port", "excessive_buffer_overrun_errors"): GrowthLimit(
        0,
        "error",
        "overruns of its buffer",
        "look at the flow control of port and switch, then at the cable",
        _SENTINEL,
    ),
    ("rdma_port", "port_xmit_discards"): GrowthLimit(
        100 * _HOUR,
        "warning",
        "packets discarded at sending",
        "look for a congested link or a port without flow control behind it",
        _SENTINEL,
    ),
    ("rdma_port", "rnr_nak_retry_err"): GrowthLimit(
        0, "error", "connections lost since the receiver was not ready", "look at the job on the other end", _SENTINEL
    ),
    ("rdma_port", "req_transport_retries_exceeded"): GrowthLimit(
        0, "error", "connections lost after all retries", "look for a node or link that drops packets", _SENTINEL
    ),
    ("rdma_port", "local_ack_timeout_err"): GrowthLimit(
        _HOUR, "warning", "packets without an answer in time", "look for a node or link that drops packets", _SENTINEL
    ),
    ("rdma_port", "rx_icrc_encapsulated"): GrowthLimit(
        0,
        "warning",
        "RoCE packets with a wrong checksum (ICRC)",
        "look at the memory and the firmware of switches and cards on the path",
        'NVIDIA, "Understanding mlx5 Linux Counters and Status Parameters"',
    ),
    ("interface", "carrier_changes"): GrowthLimit(
        0.25, "warning", "changes of its carrier", _CABLE, _SENTINEL, at_least=2
    ),
    ("interface", "rx_crc_errors"): GrowthLimit(
        _IEEE_PER_HOUR, "warning", "frames with a wrong checksum (CRC)", _CABLE, _IEEE
    ),
    ("interface", "rx_crc_errors_phy"): GrowthLimit(
        _IEEE_PER_HOUR, "warning", "frames with a wrong checksum (CRC)", _CABLE, _IEEE
    ),
    ("interface", "rx_frame_errors"): GrowthLimit(_IEEE_PER_HOUR, "warning", "misaligned frames", _CABLE, _IEEE),
    ("interface", "tx_carrier_errors"): GrowthLimit(
        _IEEE_PER_HOUR, "warning", "losses of the carrier while it sent", _CABLE, _IEEE
    ),
    ("interface", "tx_pause_storm_error_events"): GrowthLimit(
        0,
        "error",
        "pause storms",
        "look for the process or the PCIe link that stalls the card",
        "Linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst",
    ),
}

# A sum that counts again what a counter with a limit counts: told only where none of those is.
SUMS: Mapping[tuple[str, str], GrowthLimit] = {
    ("interface", "rx_errors"): GrowthLimit(_IEEE_PER_HOUR, "warning", "errors at receiving", _CABLE, _IEEE),
    ("interface", "tx_errors"): GrowthLimit(_IEEE_PER_HOUR, "warning", "errors at sending", _CABLE, _IEEE),
}

# Losses and congestion: signs of load, and never an error by themselves. Packets they are set in relation to, and
# whether the counter tells of loss.
BESIDE_PEERS: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("rdma_port", "out_of_sequence"): ("port_rcv_packets", True),
    ("rdma_port", "packet_seq_err"): ("port_xmit_packets", True),
    ("rdma_port", "roce_adp_retrans"): ("port_xmit_packets", True),
    ("rdma_port", "roce_slow_restart"): ("port_xmit_packets", True),
    ("rdma_port", "np_cnp_sent"): ("port_rcv_packets", False),
    ("rdma_port", "np_ecn_marked_roce_packets"): ("port_rcv_packets", False),
    ("rdma_port", "rp_cnp_handled"): ("port_xmit_packets", False),
    ("interface", "rx_missed_errors"): ("rx_packets", True),
    ("interface", "rx_fifo_errors"): ("rx_packets", True),
    ("interface", "rx_out_of_buffer"): ("rx_packets", True),
    ("interface", "rx_discards_phy"): ("rx_packets", True),
    ("interface", "tx_discards_phy"): ("tx_packets", True),
    ("interface", "rx_pause_ctrl_phy"): ("tx_packets", False),
    ("interface", "tx_pause_ctrl_phy"): ("rx_packets", False),
    ("interface", "rx_pause_frames"): ("tx_packets", False),
    ("interface", "tx_pause_frames"): ("rx_packets", False),
    **{("interface", f"rx_prio{priority}_pause"): ("tx_packets", False) for priority in range(8)},
    **{("interface", f"tx_prio{priority}_pause"): ("rx_packets", False) for priority in range(8)},
    **{("interface", f"rx_prio{priority}_discards"): ("rx_packets", True) for priority in range(8)},
    **{("interface", f"tx_prio{priority}_discards"): ("tx_packets", True) for priority in range(8)},
    **{("interface", f"rx_pfc_ena_frames_pri{priority}"): ("tx_packets", False) for priority in range(8)},
    **{("interface", f"tx_pfc_ena_frames_pri{priority}"): ("rx_packets", False) for priority in range(8)},
}

# Counters of the attribute PortCounters stop at their highest value (InfiniBand Architecture, volume 1, 16.1.3.5).
SATURATED: Mapping[str, int] = {
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "link_error_recovery": 0xFF,
    "link_downed": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}

# Of these the kernel's log tells as well.
LOSSES = {key: LIMITS[key] for key in (("interface", "carrier_changes"), ("rdma_port", "link_downed"))}

# The counters of a switch's port by the names of ibqueryerrors, judged as those of an RDMA port.
_OF_FABRIC = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
}
FABRIC_PORTS = {("fabric_port", name): LIMITS["rdma_port", own] for name, own in _OF_FABRIC.items()}

# --- growth since an earlier look: GPUs, PCIe and NVLink --------------------------------------------------------------

_MEMORY = "NVIDIA, GPU Memory Error Management and Dynamic Page Retirement"
_RESET_GPU = _RESET.replace("{device}", "GPU")
_WORN_MEMORY = "reset the GPU when it is free ('nvidia-smi --gpu-reset -i GPU'); if it goes on, have the GPU replaced"
GPU_MEMORY: Mapping[tuple[str, str], GrowthLimit] = {
    ("gpu", "uncorrectable ECC errors"): GrowthLimit(0, "error", "uncorrectable ECC errors", _RESET_GPU, _MEMORY),
    **{key: GrowthLimit(0, "warning", key[1], _WORN_MEMORY, _MEMORY) for key in LASTING},
}
COOLING = "look at the fans, the air's way and the room's temperature; 'nvidia-smi -q -d TEMPERATURE' tells the margin"
CLOCKS = 'NVML API Reference, "nvmlClocksEventReasons"'
SLOWDOWN: Mapping[tuple[str, str], GrowthLimit] = {
    ("gpu", "microseconds of thermal slowdown"): GrowthLimit(0, "warning", "hardware thermal slowdown", COOLING, CLOCKS)
}
_AER = "PCI Express Base Specification, Advanced Error Reporting"
_LIMITS_OF_DCGM = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h"
_REPLAYS = GrowthLimit(8 * 60, "warning", "replays", SEAT, f"{_LIMITS_OF_DCGM}: 8 replays a minute", at_least=10)
PCIE_ERRORS: Mapping[tuple[str, str], GrowthLimit] = {
    ("gpu", "PCIe replays"): _REPLAYS,
    ("pcie", "correctable errors"): _REPLAYS._replace(what="correctable errors"),  # most of them end in a replay
    ("pcie", "non-fatal errors"): GrowthLimit(0, "error", "non-fatal errors", SEAT, _AER),
    ("pcie", "fatal errors"): GrowthLimit(0, "error", "fatal errors", SEAT, _AER),
}
# By error; a counter is of a link, such as 'link 4 replay'.
NVLINK_ERRORS: Mapping[str, GrowthLimit] = {
    error: GrowthLimit(per_hour, "warning", error, NVLINK, _LIMITS_OF_DCGM)
    for error, per_hour in {
        "crc": 100 * _HOUR,
        "replay": 0,
        "recovery": 0,
        "malformed packet": 0,
        "buffer overrun": 0,
        "rx remote": 0,
        "local link integrity": 0,
    }.items()
}

# --- changes since the last look --------------------------------------------------------------------------------------


class Watched(NamedTuple):
    """A row: a reading that should stay as it is; of a number with ``less``, only a smaller one is a fault.

    ``fix`` sets a number as it was: '@' stands for the device and '=' for the value.
    """

    kind: str
    name: str
    what: str
    cure: str
    less: bool = False
    fix: tuple[str, ...] = ()


_LINK = "reseat or replace the cable, and look at the port of the switch"
_RESET_ALL = "drain the node and reset its GPUs, or restart it; if it comes back, have the GPU or the board replaced"
_MEANT = "if nobody changed it on purpose, set it back"
FLASH = "if nobody updated it on purpose, flash the earlier version; give all devices of the model the same one"
_PARTITION = "set that of the subnet manager's partition, or of RoCE's interface"
_PKEYS = "make the port a member of the same partitions as before"
_LAYER = "set it back with 'mlxconfig', then restart the node"
_PL = ("nvidia-smi", "-i", "@", "-pl", "=")
WATCHED: tuple[Watched, ...] = (
    Watched("interface", "operstate", "the state", _LINK),
    Watched("rdma_port", "state", "the state", _LINK),
    Watched("interface", "speed", "the speed in Mb/s", _LINK, less=True),
    Watched("interface", "mtu", "the MTU", _MEANT, fix=("ip", "link", "set", "dev", "@", "mtu", "=")),
    Watched("interface", "duplex", "the duplex mode", _LINK),
    Watched("bond", "mode", "the mode", _MEANT),
    Watched("bond", "members", "the number of members", "add the missing interface to the bond", less=True),
    Watched("rdma_port", "rate_gbps", "the rate in Gb/s", _LINK, less=True),
    Watched("rdma_port", "width", "the number of lanes", _LINK, less=True),
    Watched("rdma_port", "active_mtu", "the active MTU", _PARTITION),
    Watched("rdma_port", "pkeys", "the P_Key table", _PKEYS),
    Watched("rdma_port", "link_layer", "the link layer", _LAYER),
    Watched("lossless", "pfc", "the priorities with PFC", _MEANT),
    Watched("lossless", "trust", "the trust state", _MEANT),
    Watched("lossless", "ecn_roce_np", "the priorities with ECN (notification point)", _MEANT),
    Watched("lossless", "ecn_roce_rp", "the priorities with ECN (reaction point)", _MEANT),
    Watched("gpu", "PCIe lanes", "the number of PCIe lanes", SEAT, less=True),
    Watched("gpu", "PCIe GT/s possible", "the PCIe speed in GT/s that its slot allows", SEAT, less=True),
    Watched("rdma card", "PCIe lanes", "the number of PCIe lanes", SEAT, less=True),
    Watched("rdma card", "PCIe GT/s", "the PCIe speed in GT/s", SEAT, less=True),
    Watched("nvlink", "links up", "the number of NVLinks up", _RESET_ALL, less=True),
    Watched("nvlink", "slowest GB/s", "the speed in GB/s of the slowest NVLink", _RESET_ALL, less=True),
    Watched("gpu", "power limit W", "the power limit in W", "raise it with 'nvidia-smi -pl'", less=True, fix=_PL),
    Watched("gpu", "persistence", "persistence mode", _MEANT),
    Watched("gpu", "compute mode", "the compute mode", _MEANT),
    Watched("gpu", "mig", "MIG mode", _MEANT),
    Watched("gpu", "ecc", "ECC", _MEANT),
    Watched("gpu", "way to the nearest RDMA card", "the way to the nearest RDMA card", SEAT),
    Watched("board", "firmware", "the firmware of the board", FLASH),
    Watched("memory", "memory modules", "the number of memory modules", "seat or replace the missing one", less=True),
    Watched("memory", "memory in KiB", "the memory in KiB", "look for a memory module that failed", less=True),
    Watched("memory", "reserved huge pages", "the number of reserved huge pages", _MEANT),
    *(
        Watched("cpu", name, f"the setting '{name}'", _MEANT)
        for name in (
            "governor",
            "energy preference",
            "turbo",
            "idle driver",
            "deepest C-state of intel_idle",
            "transparent huge pages",
            "automatic NUMA balancing",
            "zone reclaim",
            "hyperthreading",
            "processors offline",
            "NUMA nodes",
        )
    ),
)
