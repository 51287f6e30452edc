# SPDX-License-Identifier: Apache-2.0
"""Interfaces, addresses, routes, RDMA devices, and what names resolve to."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time

from . import machine
from .reading import Json, find_program, link_name, list_folder, output_of, read_number, read_text, reap

# Switch and port that each network interface and InfiniBand port hangs on, by LLDP and by the subnet.
#
# Formats: networkctl(1) of systemd 257, lldpctl(8) of lldpd, lldptool(8) of lldpad, and smpquery(8) of infiniband-
# diags. A program is started only if what it asks runs here and answers this user.

_NETWORKD = "/run/systemd/netif/io.systemd.Network"
_LLDPD = ("/run/lldpd.socket", "/run/lldpd/lldpd.socket", "/var/run/lldpd.socket")
_LLDPAD = "@/com/intel/lldpad"
_LIMIT_S = 2
_PORT_MAC = 3  # subtype of a port's id
_BRIDGE, _ROUTER = 0x04, 0x10  # bits of the enabled capabilities
_MOST_NEIGHBOURS, _MOST_ASKED, _MOST_PORTS, _MOST_TEXT = 64, 16, 2, 255
_MOST_BYTES = 1 << 20
_NODE_INFO = re.compile(r"^(NodeType|Guid|LocalPort):\.*(\S+)", re.MULTILINE)
_NODE_NAME = re.compile(r"^Node Description:\.*(.*)", re.MULTILINE)


def switch_ports(root: str = "") -> Json:
    """Return ``switch_ports``: of each interface and InfiniBand port with a known switch, that switch and its port.

    Each has ``interface`` (``eth0``, or ``mlx5_0:1``), ``above`` (interfaces that lie on it, such as a bond),
    ``switch``, ``id`` (of the chassis, or the GUID), ``port``, and ``source``.

    Args:
        root: begin of the paths of /sys and /run, for tests.
    """
    names = _interfaces(root)
    found: dict[str, Json] = {}
    for source in (_from_networkd, _from_lldpd, _from_lldpad):
        found.update(source([name for name in names if name not in found], root))
    ports = [{"interface": name, "above": _above(name, root), **found[name]} for name in names if name in found]
    return {"switch_ports": ports + _from_subnet(root)}


def _interfaces(root: str) -> list[str]:
    """Return the interfaces with a link that are not the loopback and lie on no other one."""
    base = f"{root}/sys/class/net"
    return [
        name
        for name in list_folder(base)
        if name != "lo"
        and read_text(f"{base}/{name}/carrier", "0") == "1"
        and not any(entry.startswith("lower_") and entry != f"lower_{name}" for entry in list_folder(f"{base}/{name}"))
    ]


def _above(name: str, root: str) -> list[str]:
    """Return the interfaces that lie on this one: its bond or bridge, and what lies on that."""
    found = [name]
    for one in found:
        uppers = [entry[6:] for entry in list_folder(f"{root}/sys/class/net/{one}") if entry.startswith("upper_")]
        found += [upper for upper in uppers if upper not in found]
    return found[1:]


def chosen_switch(neighbours: list[Json], source: str) -> Json | None:
    """Return the one switch among the neighbours of an interface, None if there is none or more than one.

    A bridge that passes LLDP on shows other hosts as well. These do not forward frames, as they say themselves.
    """
    ranked = [(_rank(one["able"]), one) for one in neighbours]
    best = max((rank for rank, _unused in ranked), default=0)
    switches = [one for rank, one in ranked if rank == best]
    if not best or len({(one["switch"], one["id"]) for one in switches}) != 1:
        return None
    return {**{key: _clean(switches[0][key]) for key in ("switch", "id", "port")}, "source": source}


def _rank(able: int | None) -> int:
    if able is None or able & (_BRIDGE | _ROUTER) == _ROUTER:
        return 1
    return 2 if able & _BRIDGE else 0


def _clean(text: str) -> str:
    return "".join(sign for sign in text if sign.isprintable()).strip()[:_MOST_TEXT]


def _neighbour(name: str, chassis: str, port: str, about: str, *, is_mac: bool, able: int | None) -> Json:
    """Return a neighbour; a port's address tells a reader less than its description."""
    return {"switch": name or chassis, "id": chassis, "port": about if is_mac and about else port, "able": able}


def _from_networkd(names: list[str], root: str) -> dict[str, Json]:
    """Return what systemd-networkd has heard; by default it listens to switches and routers."""
    program = find_program("networkctl") if names and os.access(f"{root}{_NETWORKD}", os.W_OK) else ""
    neighbours = read_networkctl(_answer(program, "--json=short", "lldp")) if program else {}
    return _chosen(names, neighbours, "systemd-networkd")


def read_networkctl(text: str) -> dict[str, list[Json]]:
    """Return the neighbours of each interface in the output of ``networkctl --json=short lldp``."""
    found: dict[str, list[Json]] = {}
    try:
        for link in json.loads(text)["Neighbors"]:
            found[str(link["InterfaceName"])] = [
                _neighbour(
                    str(one.get("SystemName", "")),
                    str(one["ChassisID"]),
                    str(one["PortID"]),
                    str(one.get("PortDescription", "")),
                    is_mac=list(one.get("RawPortID", ()))[:1] == [_PORT_MAC],
                    able=int(one["EnabledCapabilities"]) if "EnabledCapabilities" in one else None,
                )
                for one in link["Neighbors"][:_MOST_NEIGHBOURS]
            ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found


def _chosen(names: list[str], neighbours: dict[str, list[Json]], source: str) -> dict[str, Json]:
    chosen = {name: chosen_switch(neighbours[name], source) for name in names if name in neighbours}
    return {name: one for name, one in chosen.items() if one}


def _from_lldpd(names: list[str], root: str) -> dict[str, Json]:
    """Return what lldpd has heard; its socket answers root, and members of its group."""
    asked = names and any(os.access(f"{root}{path}", os.W_OK) for path in _LLDPD)
    program = find_program("lldpctl") if asked else ""
    neighbours = read_lldpctl(_answer(program, "-f", "json")) if program else {}
    return _chosen(names, neighbours, "lldpd")


def read_lldpctl(text: str) -> dict[str, list[Json]]:
    """Return the neighbours of each interface in the output of ``lldpctl -f json``.

    Several entries of a name are a list there, and a single one is not. A chassis without a name has its values in the
    place of the name.
    """
    found: dict[str, list[Json]] = {}
    try:
        listed = _each(json.loads(text)["lldp"].get("interface"))
        for name, one in [pair for entry in listed for pair in entry.items()]:
            chassis = one["chassis"]
            known = next(iter(chassis), "") if "id" not in chassis else ""
            about = chassis[known] if known else chassis
            port = one["port"]
            able = [each["type"] for each in _each(about.get("capability")) if each.get("enabled")]
            bits = (_BRIDGE if "Bridge" in able else 0) | (_ROUTER if "Router" in able else 0)
            found.setdefault(name, []).append(
                _neighbour(
                    known,
                    str(about["id"]["value"]),
                    str(port["id"]["value"]),
                    str(port.get("descr", "")),
                    is_mac=port["id"].get("type") == "mac",
                    able=bits if "capability" in about else None,
                )
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found


def _each(value: list | dict | None) -> list:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _from_lldpad(names: list[str], root: str) -> dict[str, Json]:
    """Return what lldpad has heard, which answers by interface."""
    if not names or _LLDPAD not in read_text(f"{root}/proc/net/unix", ""):
        return {}
    program = find_program("lldptool")
    found = {}
    for name in names[:_MOST_ASKED] if program else ():
        one = read_lldptool(_answer(program, "get-tlv", "-n", "-i", name))
        chosen = chosen_switch([one], "lldpad") if one else None
        if chosen:
            found[name] = chosen
    return found


def read_lldptool(text: str) -> Json | None:
    """Return the neighbour in the output of ``lldptool get-tlv -n``, None if it names none."""
    values: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("\t"):
            values.setdefault(title, []).append(line.strip())
        else:
            title = line.strip()
    chassis, port = (values.get(f"{one} ID TLV", [""])[0].partition(": ") for one in ("Chassis", "Port"))
    if not chassis[2] or not port[2]:
        return None
    enabled = [line for line in values.get("System Capabilities TLV", []) if line.startswith("Enabled capabilities:")]
    able = (_BRIDGE if "Bridge" in enabled[0] else 0) | (_ROUTER if "Router" in enabled[0] else 0) if enabled else None
    return _neighbour(
        values.get("System Name TLV", [""])[0],
        chassis[2],
        port[2],
        values.get("Port Description TLV", [""])[0],
        is_mac=port[0] == "MAC",
        able=able,
    )


def _from_subnet(root: str) -> list[Json]:
    """Return the switches that the fastest active InfiniBand ports hang on; the device file lets in root, as a rule.

    Two ports tell where the node is in the fabric. Each costs two processes.
    """
    program = find_program("smpquery")
    found = []
    for _unused, device, number in fastest_ports(root)[:_MOST_PORTS] if program else ():
        one = asked_of_subnet(program, device, number) if _may_ask(device, number, root) else None
        if one:
            above = list_folder(f"{root}/sys/class/infiniband/{device}/device/net")
            found.append({"interface": f"{device}:{number}", "above": above, **one})
    return found


def fastest_ports(root: str) -> list[tuple[float, str, str]]:
    """Return the active InfiniBand ports, the fastest first: the rate with its sign turned, device and number."""
    base = f"{root}/sys/class/infiniband"
    found = []
    for device in list_folder(base):
        for number in list_folder(f"{base}/{device}/ports"):
            port = f"{base}/{device}/ports/{number}"
            if read_text(f"{port}/link_layer", "") == "InfiniBand" and "ACTIVE" in read_text(f"{port}/state", ""):
                rate = re.match(r"[0-9]{1,6}(?:\.[0-9]{1,3})?", read_text(f"{port}/rate", ""))  # 100 Gb/sec (4X EDR)
                found.append((-float(rate.group()) if rate else 0.0, device, number))
    return sorted(found)


def _may_ask(device: str, number: str, root: str) -> bool:
    """Whether this user may send to the subnet by a port."""
    base = f"{root}/sys/class/infiniband_mad"
    return any(
        read_text(f"{base}/{name}/ibdev", "") == device
        and read_text(f"{base}/{name}/port", "") == number
        and os.access(f"{root}/dev/infiniband/{name}", os.R_OK | os.W_OK)
        for name in list_folder(base)
        if name.startswith("umad")
    )


def asked_of_subnet(program: str, device: str, number: str) -> Json | None:
    """Return the switch at the other end of an InfiniBand port, None if another thing is there.

    Args:
        program: the path of smpquery.
        device: the RDMA device.
        number: its port.
    """
    place = ("-C", device, "-P", number, "-t", "500", "-D", f"0,{number}")
    about = read_node_info(_answer(program, *place[:-2], "nodeinfo", *place[-2:]))
    if about is None:
        return None
    name = _NODE_NAME.search(_answer(program, *place[:-2], "nodedesc", *place[-2:]))
    guid, port = about
    return {"switch": _clean(name.group(1)) if name else guid, "id": guid, "port": port, "source": "subnet"}


def read_node_info(text: str) -> tuple[str, str] | None:
    """Return GUID and port in the output of ``smpquery nodeinfo``, None if the node is not a switch."""
    values = dict(_NODE_INFO.findall(text))
    if values.get("NodeType") != "Switch" or "Guid" not in values:
        return None
    return _clean(values["Guid"]), _clean(values.get("LocalPort", ""))


def _answer(program: str, *words: str) -> str:
    """Return what a program prints, '' if it does not end well and in time."""
    status, output = output_of([program, *words], _LIMIT_S)
    return output[:_MOST_BYTES].decode("utf-8", "replace") if status == 0 else ""


# --- network ---------------------------------------------------------------------------------------------------------

_ARPHRD_LOOPBACK = 772
_ARPHRD_INFINIBAND = 32
_IFF_UP = 0x1
_RTF_UP = 0x1
_RTF_GATEWAY = 0x2
_NO_INTERFACE = "*"  # as the kernel prints it for IPv4
_IPV6_SCOPES = {0x00: "global", 0x10: "host", 0x20: "link", 0x40: "site"}
# <linux/if_addr.h>: an address that will change (RFC 4941), one past its lifetime, and one that another machine has.
_IPV6_TEMPORARY, _IPV6_DUPLICATE, _IPV6_DEPRECATED = 0x01, 0x08, 0x20
_IPV4_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
_FABRIC = "/etc/clusterctl/fabric.json"


def interfaces() -> Json:
    """Return the network interfaces with their addresses."""
    addresses: dict[str, list[Json]] = {}
    for name, entry in _ipv4_addresses() + read_ipv6_addresses(read_text("/proc/net/if_inet6", "")):
        addresses.setdefault(name, []).append(entry)
    found = []
    net = "/sys/class/net"
    ends = {one: (read_number(f"{net}/{one}/ifindex"), read_number(f"{net}/{one}/iflink")) for one in list_folder(net)}
    for name, (index, other) in ends.items():
        base = f"{net}/{name}"
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
                **({"is_function": True} if os.path.exists(f"{base}/device/physfn") else {}),
                **({"has_both_ends": True} if index != other and (other, index) in ends.values() else {}),
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
    """Return the routes in the text of /proc/net/route, without those that lead to no interface."""
    found = []
    for line in text.splitlines()[1:]:
        name, target, gateway, flags, _unused, _unused, metric, mask = line.split()[:8]
        if not int(flags, 16) & _RTF_UP or name == _NO_INTERFACE:
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
            **({"carriers": [_carrier(one) for one in record["carriers"]]} if record.get("carriers") else {}),
        }
    }


def _carrier(entry: Json) -> Json:
    return {name: str(entry[name]) for name in ("cidr", "interface", "address")}


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
