# SPDX-License-Identifier: Apache-2.0
"""Interfaces, addresses, routes, RDMA devices, and what names resolve to."""

from __future__ import annotations

import json
import os
import socket
import struct
import time

from . import machine
from .reading import Json, link_name, list_folder, read_number, read_text, reap

# --- network ---------------------------------------------------------------------------------------------------------

_ARPHRD_LOOPBACK = 772
_ARPHRD_INFINIBAND = 32
_IFF_UP = 0x1
_RTF_UP = 0x1
_RTF_GATEWAY = 0x2
_IPV6_SCOPES = {0x00: "global", 0x10: "host", 0x20: "link", 0x40: "site"}
# <linux/if_addr.h>: an address that will change (RFC 4941), one past its lifetime, and one that another machine has.
_IPV6_TEMPORARY, _IPV6_DUPLICATE, _IPV6_DEPRECATED = 0x01, 0x08, 0x20
_IPV4_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
_FABRIC = "/etc/clusterctl/fabric.json"


def interfaces() -> Json:
    """Return the network interfaces with their addresses."""
    addresses: dict[str, list[Json]] = {}
    for name, entry in _ipv4_addresses() + _ipv6_addresses():
        addresses.setdefault(name, []).append(entry)
    found = []
    for name in list_folder("/sys/class/net"):
        base = f"/sys/class/net/{name}"
        if not os.path.isdir(base):  # bonding_masters is a file
            continue
        flags = int(read_text(f"{base}/flags", "0x0"), 16)
        speed = read_number(f"{base}/speed")
        found.append(
            {
                "name": name,
                "kind": _interface_kind(base),
                "mac": read_text(f"{base}/address", ""),
                "mtu": read_number(f"{base}/mtu"),
                "up": bool(flags & _IFF_UP),
                "carrier": read_text(f"{base}/carrier", "0") == "1",
                "speed_mbps": speed if speed and speed > 0 else None,
                "driver": link_name(f"{base}/device/driver"),
                "master": link_name(f"{base}/master"),
                "addresses": addresses.get(name, []),
                "rx_bytes": read_number(f"{base}/statistics/rx_bytes"),
                "tx_bytes": read_number(f"{base}/statistics/tx_bytes"),
            }
        )
    return {"interfaces": found}


def _interface_kind(base: str) -> str:
    number = read_number(f"{base}/type")
    if number == _ARPHRD_LOOPBACK:
        return "loopback"
    if number == _ARPHRD_INFINIBAND:
        return "infiniband"
    for line in read_text(f"{base}/uevent", "").splitlines():
        if line.startswith("DEVTYPE="):  # bridge, bond, vlan, vxlan, wlan, …
            return line[8:]
    for folder, kind in (("bridge", "bridge"), ("bonding", "bond"), ("tun_flags", "tun"), ("device", "physical")):
        if os.path.exists(f"{base}/{folder}"):
            return kind
    # The other end of a veth pair has another index than the interface itself.
    return "veth" if read_number(f"{base}/iflink") != read_number(f"{base}/ifindex") else "virtual"


def _ipv4_addresses() -> list[tuple[str, Json]]:
    """Ask the kernel over netlink (rtnetlink(7)), which lists secondary addresses as well."""
    request = struct.pack("=IHHII", 24, 22, 0x301, 1, 0) + struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)
    names = dict(socket.if_nameindex())
    found: list[tuple[str, Json]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as channel:
        channel.settimeout(2)
        channel.send(request)
        while True:
            data = channel.recv(1 << 16)
            while len(data) >= 16:  # noqa: PLR2004 - the size of struct nlmsghdr
                length, kind = struct.unpack_from("=IH", data)
                if kind == 2:  # noqa: PLR2004 - NLMSG_ERROR
                    raise OSError("the kernel refused to list the addresses")
                if kind == 3 or length < 16:  # noqa: PLR2004 - NLMSG_DONE
                    return found
                entry = _ipv4_entry(data[16:length], names)
                if entry:
                    found.append(entry)
                data = data[(length + 3) & ~3 :]


def _ipv4_entry(message: bytes, names: dict[int, str]) -> tuple[str, Json] | None:
    _unused, prefix, _unused, scope, index = struct.unpack_from("=BBBBI", message)
    attributes, rest = {}, message[8:]
    while len(rest) >= 4:  # noqa: PLR2004 - the size of struct rtattr
        length, kind = struct.unpack_from("=HH", rest)
        if length < 4:  # noqa: PLR2004 - the same size; a smaller one would loop forever
            break
        attributes[kind] = rest[4:length]
        rest = rest[(length + 3) & ~3 :]
    raw = attributes.get(2) or attributes.get(1)  # IFA_LOCAL, else IFA_ADDRESS
    if not raw:
        return None
    return names.get(index, str(index)), {
        "family": 4,
        "address": socket.inet_ntop(socket.AF_INET, raw),
        "prefix": prefix,
        "scope": _IPV4_SCOPES.get(scope, str(scope)),
    }


def _ipv6_addresses() -> list[tuple[str, Json]]:
    return read_ipv6_addresses(read_text("/proc/net/if_inet6", ""))


def read_ipv6_addresses(text: str) -> list[tuple[str, Json]]:
    """Return interface and address of each line of /proc/net/if_inet6; a duplicate of another machine's is left out."""
    found = []
    for line in text.splitlines():
        raw, _unused, prefix, scope, flags, name = line.split()
        state = int(flags, 16)
        if state & _IPV6_DUPLICATE:
            continue
        entry: Json = {
            "family": 6,
            "address": socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)),
            "prefix": int(prefix, 16),
            "scope": _IPV6_SCOPES.get(int(scope, 16), scope),
        }
        if state & (_IPV6_TEMPORARY | _IPV6_DEPRECATED):
            entry["temporary"] = True
        found.append((name, entry))
    return found


def routes() -> Json:
    """Return the routes of the main table."""
    return {
        "routes": read_ipv4_routes(read_text("/proc/net/route", ""))
        + read_ipv6_routes(read_text("/proc/net/ipv6_route", ""))
    }


def read_ipv4_routes(text: str) -> list[Json]:
    """Return the routes in the text of /proc/net/route."""
    found = []
    for line in text.splitlines()[1:]:
        name, target, gateway, flags, _unused, _unused, metric, mask = line.split()[:8]
        if not int(flags, 16) & _RTF_UP:
            continue
        prefix = bin(int(mask, 16)).count("1")  # noqa: FURB161 - int.bit_count came with Python 3.10
        has_gateway = bool(int(flags, 16) & _RTF_GATEWAY)
        found.append(
            {
                "family": 4,
                "destination": f"{_ipv4_of_hex(target)}/{prefix}",
                "gateway": _ipv4_of_hex(gateway) if has_gateway else None,
                "interface": name,
                "metric": int(metric),
            }
        )
    return found


def _ipv4_of_hex(text: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(text, 16)))  # the kernel prints the word in host order


def read_ipv6_routes(text: str) -> list[Json]:
    """Return the unicast routes in the text of /proc/net/ipv6_route, without those of the loopback."""
    found = []
    for line in text.splitlines():
        target, prefix, _unused, _unused, gateway, metric, _unused, _unused, flags, name = line.split()
        if name == "lo" or target.startswith("ff") or not int(flags, 16) & _RTF_UP:
            continue
        has_gateway = bool(int(flags, 16) & _RTF_GATEWAY)
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(target))
        found.append(
            {
                "family": 6,
                "destination": f"{address}/{int(prefix, 16)}",
                "gateway": socket.inet_ntop(socket.AF_INET6, bytes.fromhex(gateway)) if has_gateway else None,
                "interface": name,
                "metric": int(metric, 16),
            }
        )
    return found


def fabric() -> Json:
    """Return the networks that the role ``fabric`` chose, None if the role never ran here."""
    text = read_text(_FABRIC, "")
    if not text:
        return {"fabric": None}
    record = json.loads(text)
    return {
        "fabric": {
            "cidrs": [str(cidr) for cidr in record["cidrs"]],
            "interface": str(record["interface"]),
            "address": str(record["address"]),
            "proven": [str(name) for name in record.get("proven") or ()],
            **({"opened": True} if record.get("opened") is True else {}),
        }
    }


# --- rdma ------------------------------------------------------------------------------------------------------------

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
                **machine.place(f"{base}/device"),
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


# --- name lookup -----------------------------------------------------------------------------------------------------

_ANSWER_OF_NAMES_S = 4.0


def resolved(asked: list[str] | None) -> Json:
    """Look up the node's own name and those asked for, as ssh and mpirun do; None looks up nothing."""
    if asked is None:
        return {"names": []}
    names = list(dict.fromkeys([socket.gethostname(), *(str(name) for name in asked)]))
    answers = _look_up(names)
    late = f"no answer within {_ANSWER_OF_NAMES_S:g} s"
    return {
        "names": [{"name": name, **answers.get(name, {"addresses": [], "problem": late})} for name in names],
    }


def _look_up(names: list[str]) -> dict[str, Json]:
    """Ask the resolver in a child process: a call to it cannot be interrupted, and a dead server costs 30 s."""
    import select  # noqa: PLC0415 - seldom needed

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for name in names:
                os.write(writer, json.dumps({name: _addresses_of(name)}).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    end = time.monotonic() + _ANSWER_OF_NAMES_S
    try:
        while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            block = os.read(reader, 1 << 16)
            if not block:
                break
            data += block
    finally:
        os.close(reader)
        reap(child)
    answers: dict[str, Json] = {}
    for line in data.split(b"\n")[:-1]:
        answers.update(json.loads(line))
    return answers


def _addresses_of(name: str) -> Json:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "problem": error.strerror or str(error)}
    return {"addresses": list(dict.fromkeys(str(entry[4][0]) for entry in found)), "problem": ""}
