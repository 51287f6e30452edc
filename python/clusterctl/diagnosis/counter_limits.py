"""Limits for the growth of counters of interfaces and RDMA ports, each with its source. Pure data.

A counter without a limit in the literature is only held against the same counter of other nodes: see ``BESIDE_PEERS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.findings import Severity

_HOUR = 3600.0
_IEEE_PER_HOUR = 1e10 * 3600 * 1e-12  # IEEE 802.3: a bit error ratio of 1e-12, on a full link of 10 Gb/s
_SENTINEL = "NVIDIA NVSentinel, docs/nic-health-monitor/link-counter-detection.md"
_IBTA = f"InfiniBand Architecture, a bit error rate of 1e-12, as quoted by {_SENTINEL}"
_IEEE = "IEEE 802.3, a bit error ratio of 1e-12; Linux, Documentation/ABI/testing/sysfs-class-net-statistics"
_CABLE = "clean or replace the cable or its transceiver, then try another port of the switch"


class GrowthLimit(NamedTuple):
    """How fast a counter may grow.

    Attributes:
        per_hour: growth above it is a fault. With 0, any growth is.
        severity: an error breaks jobs.
        what: what the counter counts, in words.
        cure: in one line.
        source: where the figure or the meaning is written down.
        at_least: smaller growth is never a fault, however short the time.
    """

    per_hour: float
    severity: Severity
    what: str
    cure: str
    source: str
    at_least: int = 1

    @property
    def beside(self) -> str:
        """The limit, as it ends a sentence; empty where any growth is a fault."""
        return f", and the limit is {self.per_hour:g} an hour" if self.per_hour else ""


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
