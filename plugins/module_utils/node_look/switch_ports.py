# SPDX-License-Identifier: Apache-2.0
"""Switch and port that each network interface and InfiniBand port hangs on, by LLDP and by the subnet.

Formats: networkctl(1) of systemd 257, lldpctl(8) of lldpd, lldptool(8) of lldpad, and smpquery(8) of infiniband-diags.
A program is started only if what it asks runs here and answers this user.
"""

from __future__ import annotations

import json
import os
import re

from .reading import Json, find_program, list_folder, output_of, read_text

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
