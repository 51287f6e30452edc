# SPDX-License-Identifier: Apache-2.0
"""Counters of each RDMA port: errors of its link, losses and retries, and marks of congestion.

Formats: ``counters`` and ``hw_counters`` of Documentation/ABI/stable/sysfs-class-infiniband of Linux; NVIDIA's page
"Understanding mlx5 Linux Counters and Status Parameters" tells what those of mlx5 count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import ports

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_PORT = (
    "port_rcv_packets",
    "port_xmit_packets",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_HARDWARE = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "req_transport_retries_exceeded",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
)


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counters of each port."""
    for port in ports.rdma_ports(tree):
        for folder, names in (("counters", _PORT), ("hw_counters", _HARDWARE)):
            for name in names:
                value = tree.number(f"{port.path}/{folder}/{name}")
                if value is not None and value >= 0:
                    answer.counter("rdma_port", port.name, name, value)
