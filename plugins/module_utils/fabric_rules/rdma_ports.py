# SPDX-License-Identifier: Apache-2.0
"""Say what each RDMA port offers: its state, and the GID index that RoCE needs."""

from __future__ import annotations

import re
from typing import Dict, Optional, Sequence, Tuple

from .. import ip_address
from .model import FabricError, Facts, RdmaChoice

_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}(?::[0-9]{1,3})?")


def rdma(node: Facts) -> Tuple[RdmaChoice, ...]:
    """Return what each port of each RDMA device offers, and on Ethernet the GID that routes over IPv4.

    The GID table of a RoCE port has an entry for each address and each version of RoCE. The wanted entry has the type
    RoCE v2 and maps an IPv4 address (::ffff:a.b.c.d). If several do, the port's own interface decides.
    """
    return tuple(_choice(device["name"], port) for device in node.get("rdma") or () for port in device["ports"])


def _choice(device: str, port: Facts) -> RdmaChoice:
    layer, state = port.get("link_layer") or "", port.get("state") or ""
    index, gid = None, ""
    usable = state == "ACTIVE"
    if not usable:
        reason = f"the port is {state or 'of unknown state'} ({port.get('physical_state') or 'no physical state'})"
    elif layer == "InfiniBand":
        reason = "InfiniBand needs no GID index"
    else:
        index, gid, reason = _roce_gid(port)
        usable = index is not None
    return RdmaChoice(
        device=device,
        port=int(port["number"]),
        link_layer=layer,
        state=state,
        rate_gbps=port.get("rate_gbps"),
        gid_index=index,
        gid=gid,
        reason=reason,
        usable=usable,
    )


def _roce_gid(port: Facts) -> Tuple[Optional[int], str, str]:
    second = [entry for entry in port.get("gids") or () if entry.get("type") == "RoCE v2"]
    mapped = [entry for entry in second if _ipv4(entry["gid"])]
    if not mapped:
        if second:
            return None, "", "its RoCE v2 GIDs are of IPv6 alone; give its interface an IPv4 address"
        return None, "", "it has no RoCE v2 GID; give its interface an address, and see that RoCE v2 is enabled"
    own = [entry for entry in mapped if entry.get("netdev") == port.get("netdev")]
    taken = min(own or mapped, key=lambda entry: int(entry["index"]))
    return (
        int(taken["index"]),
        str(taken["gid"]),
        f"RoCE v2 of {_ipv4(taken['gid'])} on {taken.get('netdev') or 'its interface'}",
    )


def _ipv4(gid: str) -> str:
    """Return the IPv4 address that a GID maps, '' if it maps none or is not readable."""
    try:
        address = ip_address.parsed(gid)
    except ValueError:
        return ""
    return str(address) if address.version == 4 else ""  # noqa: PLR2004


def nccl_pins(host: str, choices: Sequence[RdmaChoice], devices: Sequence[str], *, gid: bool) -> Dict[str, str]:
    """Return the variables of NCCL that the user wants pinned.

    Args:
        host: the name of the node, for messages.
        choices: of this node.
        devices: names such as mlx5_0 or mlx5_0:1, or ``auto`` for all usable ports of the fastest rate.
        gid: whether to pin the GID index.

    Raises:
        FabricError: a device is missing, its port is not usable, or one index does not fit all devices.
    """
    for name in devices:
        if not _DEVICE.fullmatch(str(name)):
            raise FabricError(f"fabric_pin_hca has {name!r}, which is not a device; write mlx5_0 or mlx5_0:1.")
    if "auto" in devices:
        rates = [choice.rate_gbps or 0 for choice in choices if choice.usable]
        wanted = [choice for choice in choices if choice.usable and (choice.rate_gbps or 0) == max(rates)]
        names = [f"{choice.device}:{choice.port}" for choice in wanted]
    else:
        names = [str(name) for name in devices]
        wanted = [
            choice for name in names for choice in choices if name in {choice.device, f"{choice.device}:{choice.port}"}
        ]
    pins: Dict[str, str] = {}
    for name in names:
        its = [choice for choice in wanted if name in {choice.device, f"{choice.device}:{choice.port}"}]
        if not any(choice.usable for choice in its):
            why = its[0].reason if its else f"it has {', '.join(sorted({one.device for one in choices})) or 'none'}"
            raise FabricError(f"fabric_pin_hca names {name}, which {host} cannot use: {why}.", [host])
    if names:
        pins["NCCL_IB_HCA"] = "=" + ",".join(names)
    if gid:
        roce = [choice for choice in (wanted if devices else choices) if choice.usable and choice.gid_index is not None]
        indices = {choice.gid_index for choice in roce}
        if len(indices) > 1:
            words = ", ".join(f"{choice.device} at {choice.gid_index}" for choice in roce)
            raise FabricError(
                f"fabric_pin_gid: NCCL takes one index for all devices of a node, and {host} has {words}; "
                "leave it to NCCL, or name devices of one index in fabric_pin_hca.",
                [host],
            )
        if indices:
            pins["NCCL_IB_GID_INDEX"] = str(indices.pop())
    return pins
