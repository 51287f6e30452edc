# SPDX-License-Identifier: Apache-2.0
"""RDMA devices (InfiniBand and RoCE), their ports and GID tables."""

from __future__ import annotations

from . import topology
from .reading import Json, link_name, list_folder, read_number, read_text

_INFINIBAND = "/sys/class/infiniband"
_COUNTER_WORD = 4  # port_rcv_data and port_xmit_data count units of four bytes
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def rdma() -> Json:
    """Return the RDMA devices of this node."""
    return {"rdma": read_rdma(_INFINIBAND)}


def read_rdma(root: str) -> list[Json]:
    """Return the RDMA devices of a tree like /sys/class/infiniband, each with its ports and their GID tables."""
    found = []
    for name in list_folder(root):
        base = f"{root}/{name}"
        ports = [_rdma_port(f"{base}/ports/{number}", int(number)) for number in list_folder(f"{base}/ports")]
        found.append(
            {
                "name": name,
                "driver": link_name(f"{base}/device/driver"),
                "node_guid": read_text(f"{base}/node_guid", ""),
                **topology.place(f"{base}/device"),
                "ports": sorted(ports, key=lambda port: int(port["number"])),
            }
        )
    return found


def _rdma_port(base: str, number: int) -> Json:
    gids = []
    for index in sorted(int(entry) for entry in list_folder(f"{base}/gids")):
        gid = read_text(f"{base}/gids/{index}", "")
        if gid and gid != _NO_GID:
            netdev = read_text(f"{base}/gid_attrs/ndevs/{index}", "")
            gids.append(
                {"index": index, "gid": gid, "type": read_text(f"{base}/gid_attrs/types/{index}", ""), "netdev": netdev}
            )
    rate = read_text(f"{base}/rate", "").split()  # 100 Gb/sec (4X EDR)
    counters = {
        key: read_number(f"{base}/counters/{name}")
        for key, name in (("rx_bytes", "port_rcv_data"), ("tx_bytes", "port_xmit_data"))
    }
    return {
        "number": number,
        "state": read_text(f"{base}/state", "").rpartition(":")[2].strip(),  # 4: ACTIVE
        "physical_state": read_text(f"{base}/phys_state", "").rpartition(":")[2].strip(),
        "link_layer": read_text(f"{base}/link_layer", ""),
        "rate_gbps": float(rate[0]) if rate else None,
        "netdev": gids[0]["netdev"] if gids else "",
        "gids": gids,
        **{key: None if words is None else words * _COUNTER_WORD for key, words in counters.items()},
    }
