# SPDX-License-Identifier: Apache-2.0
"""Network interfaces, RDMA ports and the InfiniBand fabric: states, counters, and what keeps RoCE free of loss."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .record import Answer, Json, Tree


# --- ports -----------------------------------------------------------------------------------------------------------
# Interfaces are those of /sys/class/net (Documentation/ABI/testing/sysfs-class-net of Linux), RDMA ports those of
# /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband).

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")  # phys_port_name of a virtual function's other end
_ANYWHERE = "00000000"
_FIRST_GIDS = 4


class RdmaPort(NamedTuple):
    """A port of an RDMA device, and the device's folder in /sys."""

    device: str
    number: str

    @property
    def name(self) -> str:
        """The name in the record, such as mlx5_0/1."""
        return f"{self.device}/{self.number}"

    @property
    def path(self) -> str:
        """The port's folder."""
        return f"{RDMA}/{self.device}/ports/{self.number}"


def interfaces(tree: Tree) -> list[str]:
    """Return the interfaces with a device behind them, and those that a default route leads over.

    A container's own interface is of the second kind. Bridges, tunnels and ends of other containers are left out, since
    programs take them up and down at will.
    """
    by_route = _with_default_route(tree)
    return [name for name in tree.names(NET) if name in by_route or physical(tree, name)]


def physical(tree: Tree, name: str) -> bool:
    """Whether a device is behind an interface, which does not stand for a virtual function."""
    path = f"{NET}/{name}"
    return tree.exists(f"{path}/device") and not _REPRESENTOR.fullmatch(tree.text(f"{path}/phys_port_name") or "")


def _with_default_route(tree: Tree) -> set[str]:
    rows = [line.split() for line in (tree.text("/proc/net/route") or "").splitlines()[1:]]
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == _ANYWHERE}  # noqa: PLR2004 - Mask is the 8th


def members(tree: Tree, name: str) -> list[str]:
    """Return the interfaces of a bond, and the interface itself if it is none."""
    return (tree.text(f"{NET}/{name}/bonding/slaves") or name).split()


def rdma_devices(tree: Tree) -> list[str]:
    """Return the RDMA devices that are a card's own: virtual functions come and go with their guests."""
    return [name for name in tree.names(RDMA) if not tree.exists(f"{RDMA}/{name}/device/physfn")]


def rdma_ports(tree: Tree) -> Iterator[RdmaPort]:
    """Yield the ports of those devices."""
    for device in rdma_devices(tree):
        for number in tree.names(f"{RDMA}/{device}/ports"):
            yield RdmaPort(device, number)


def link_layer(tree: Tree, port: RdmaPort) -> str:
    """Return InfiniBand, Ethernet or ''."""
    return tree.text(f"{port.path}/link_layer") or ""


def interface_of(tree: Tree, port: RdmaPort) -> str:
    """Return the interface of a port of RoCE, '' if there is none."""
    for index in range(_FIRST_GIDS):
        name = tree.text(f"{port.path}/gid_attrs/ndevs/{index}")
        if name:
            return name
    found = tree.names(f"{RDMA}/{port.device}/device/net")
    return found[0] if len(found) == 1 else ""


# --- interfaces ------------------------------------------------------------------------------------------------------
# Formats: Documentation/ABI/testing/sysfs-class-net and Documentation/networking/bonding.rst of Linux.

_UP = 1  # IFF_UP of flags
_PERMANENT = 0  # addr_assign_type of an address that is in the card
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VIRTUAL = frozenset({"ena", "gve", "hv_netvsc", "virtio_net", "vmxnet3"})  # a hypervisor invents their addresses
_TEXTS = ("operstate", "duplex")
_FAMILIES = ("IPv4", "IPv6")


def read_interfaces(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the state of each interface and bond, the cards' own addresses, and how many neighbours and ports there are.

    A container does not see the neighbours: its kernel has one table for all (Documentation/networking/ip-sysctl.rst).
    """
    for name in interfaces(tree):
        _interface(tree, answer, name)
    for name in tree.names(NET):
        if tree.exists(f"{NET}/{name}/bonding"):
            _bond(tree, answer, name)
    for family in _FAMILIES:
        limit = tree.number(f"/proc/sys/net/{family.lower()}/neigh/default/gc_thresh3")
        if limit is not None:
            answer.reading("node", "", f"{family} neighbours", limit)
    ports = (tree.text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()  # of both families
    if len(ports) == 2 and all(port.isdecimal() for port in ports):  # noqa: PLR2004 - the first and the last
        answer.reading("node", "", "local ports", int(ports[1]) - int(ports[0]) + 1)


def _interface(tree: Tree, answer: Answer, name: str) -> None:
    path = f"{NET}/{name}"
    driver = tree.link(f"{path}/device/driver")
    answer.reading("interface", name, "driver", driver)
    answer.reading("interface", name, "wanted_up", bool((tree.number(f"{path}/flags") or 0) & _UP))
    for attribute in _TEXTS:
        text = tree.text(f"{path}/{attribute}")
        if text:
            answer.reading("interface", name, attribute, text)
    for attribute in ("speed", "mtu"):
        number = tree.number(f"{path}/{attribute}")  # a port without a link has the speed -1, or none
        if number is not None and number > 0:
            answer.reading("interface", name, attribute, number)
    address = tree.text(f"{path}/address") or ""
    if address:
        answer.reading("interface", name, "address", address)  # says whether it is the same device as before
    place = tree.link(f"{path}/device")
    own = address and tree.number(f"{path}/addr_assign_type") == _PERMANENT
    if own and _PCI.fullmatch(place) and driver not in _VIRTUAL and physical(tree, name):
        answer.part("nic", place, driver, address)


def _bond(tree: Tree, answer: Answer, name: str) -> None:
    path = f"{NET}/{name}/bonding"
    answer.reading("bond", name, "mode", (tree.text(f"{path}/mode") or "").partition(" ")[0])  # 802.3ad 4
    slaves = (tree.text(f"{path}/slaves") or "").split()
    answer.reading("bond", name, "members", len(slaves))
    group = tree.text(f"{path}/ad_aggregator")
    for slave in slaves:
        own = f"{NET}/{slave}/bonding_slave"
        state = tree.text(f"{own}/mii_status")
        if state:
            answer.reading("bond_member", slave, "mii_status", state)
            answer.reading("bond_member", slave, "bond", name)
        their_group = tree.text(f"{own}/ad_aggregator_id")
        if group and their_group:
            answer.reading("bond_member", slave, "in_group", group == their_group)


# --- interface counters ----------------------------------------------------------------------------------------------
# Formats: Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-statistics of Linux. The counters of ethtool
# are their driver's: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst has those of mlx5.

_STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_errors",
    "tx_carrier_errors",
)
_OF_DRIVERS = re.compile(
    r"\s*([rt]x_prio[0-7]_(?:pause|discards)|[rt]x_(?:pause_ctrl|discards|crc_errors)_phy"
    r"|rx_out_of_buffer|tx_pause_storm_error_events"
    r"|[rt]x_pause_frames|[rt]x_pfc_ena_frames_pri[0-7]): (\d+)\s*"
)
_COUNTER = re.compile(r"\s+\S.*: -?\d+\s*")  # of any name
_BEGINNINGS = {"rx", "tx"}  # how a line of interest begins: a driver prints thousands for its queues


def read_interface_counters(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counters of each interface."""
    ethtool = tree.tool("ethtool")
    for name in interfaces(tree):
        path = f"{NET}/{name}"
        changes = tree.number(f"{path}/carrier_changes")
        if changes is not None:
            answer.counter("interface", name, "carrier_changes", changes)
        for counter in _STATISTICS:
            value = tree.number(f"{path}/statistics/{counter}")
            if value is not None:
                answer.counter("interface", name, counter, value)
        if ethtool and physical(tree, name) and tree.text(f"{path}/operstate") == "up":
            _of_driver(tree, answer, ethtool, name)


def _of_driver(tree: Tree, answer: Answer, ethtool: str, name: str) -> None:
    output = tree.run([ethtool, "-S", name])
    lines = output.text.splitlines()
    has_none = "no stats available" in output.text.lower()
    if not has_none and (output.problem or not any(map(_COUNTER.fullmatch, lines))):
        answer.unseen(f"counters of the driver of {name}", output.problem or f"ethtool -S {name} printed no counter")
        return
    for line in lines:
        if line.lstrip()[:2] not in _BEGINNINGS:
            continue
        found = _OF_DRIVERS.fullmatch(line)
        if found:
            answer.counter("interface", name, found.group(1), int(found.group(2)))


# --- rdma ports ------------------------------------------------------------------------------------------------------
# Formats: Documentation/ABI/stable/sysfs-class-infiniband of Linux, and ibv_devinfo(1) for the MTU, which sysfs lacks.

_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X(?: (\w+))?\))?")  # 400 Gb/sec (4X NDR)
_MTU = re.compile(r"active_mtu:\s+(\d+)\b")
_HCA = re.compile(r"hca_id:\s+(\S+)")
_PORT = re.compile(r"\s+port:\s+(\d+)\s*")
_MTUS = "active MTU of RDMA ports"
_NO_KEY = 0
_MEMBER = 0x8000  # of a P_Key: a full member
_FABRIC = "InfiniBand"


def read_rdma_ports(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell each device and each of its ports."""
    for device in rdma_devices(tree):
        _device(tree, answer, device)
    layers = {port.name: link_layer(tree, port) for port in rdma_ports(tree)}
    for port in rdma_ports(tree):
        _port(tree, answer, port, layers[port.name])
    if layers:
        _mtus(tree, answer, list(layers))


def _device(tree: Tree, answer: Answer, device: str) -> None:
    path = f"{RDMA}/{device}"
    place = tree.link(f"{path}/device")
    facts = {name: tree.text(f"{path}/{name}") or "" for name in ("fw_ver", "board_id", "node_guid", "sys_image_guid")}
    answer.reading("rdma_device", device, "place", place)
    for name in ("fw_ver", "board_id"):
        if facts[name]:
            answer.reading("rdma_device", device, name, facts[name])
    guid = facts["node_guid"] or facts["sys_image_guid"]
    if guid.strip("0:"):
        answer.part("hca", place or device, facts["board_id"], guid, facts["fw_ver"])


def _port(tree: Tree, answer: Answer, port: RdmaPort, layer: str) -> None:
    answer.reading("rdma_port", port.name, "link_layer", layer)
    for name in ("state", "phys_state"):  # 4: ACTIVE
        text = (tree.text(f"{port.path}/{name}") or "").rpartition(":")[2].strip()
        if text:
            answer.reading("rdma_port", port.name, name, text)
    rate = _RATE.fullmatch(tree.text(f"{port.path}/rate") or "")
    if rate:
        answer.reading("rdma_port", port.name, "rate_gbps", float(rate.group(1)))
        if rate.group(2):
            answer.reading("rdma_port", port.name, "width", int(rate.group(2)))
        if rate.group(3):
            answer.reading("rdma_port", port.name, "generation", rate.group(3))
    if layer == _FABRIC:
        sm_lid = tree.number(f"{port.path}/sm_lid")
        if sm_lid is not None:
            answer.reading("rdma_port", port.name, "sm_lid", sm_lid)
        keys = [tree.number(f"{port.path}/pkeys/{index}") for index in tree.names(f"{port.path}/pkeys")]
        partitions = sorted({key for key in keys if key is not None and key & ~_MEMBER != _NO_KEY})
        if keys and None not in keys:
            answer.reading("rdma_port", port.name, "pkeys", " ".join(f"0x{key:04x}" for key in partitions) or "none")
    else:
        interface = interface_of(tree, port)
        if interface:
            answer.reading("rdma_port", port.name, "interface", interface)


def _mtus(tree: Tree, answer: Answer, wanted: list[str]) -> None:
    """Tell the MTU of each port: the subnet manager sets that of InfiniBand, the interface that of RoCE."""
    tool = tree.tool("ibv_devinfo")
    if not tool:
        answer.unseen(_MTUS, "ibv_devinfo is not installed (package ibverbs-utils)")
        return
    output = tree.run([tool])
    device, port, found = "", "", 0
    for line in output.text.splitlines():
        hca, number, mtu = _HCA.match(line), _PORT.fullmatch(line), _MTU.search(line)
        device = hca.group(1) if hca else device
        port = number.group(1) if number else port
        if mtu and f"{device}/{port}" in wanted:
            found += 1
            answer.reading("rdma_port", f"{device}/{port}", "active_mtu", int(mtu.group(1)))
    if not found:
        answer.unseen(_MTUS, output.problem or "ibv_devinfo tells of none of its ports")


# --- rdma counters ---------------------------------------------------------------------------------------------------
# Formats: ``counters`` and ``hw_counters`` of Documentation/ABI/stable/sysfs-class-infiniband of Linux; NVIDIA's page
# "Understanding mlx5 Linux Counters and Status Parameters" tells what those of mlx5 count.

_OF_PORT = (
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
_OF_HARDWARE = (
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


def read_rdma_counters(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counters of each port."""
    for port in rdma_ports(tree):
        for folder, names in (("counters", _OF_PORT), ("hw_counters", _OF_HARDWARE)):
            for name in names:
                value = tree.number(f"{port.path}/{folder}/{name}")
                if value is not None and value >= 0:
                    answer.counter("rdma_port", port.name, name, value)


# --- lossless --------------------------------------------------------------------------------------------------------
# Formats: dcb-pfc(8) of iproute2, ``mlnx_qos`` of MLNX_OFED, and /sys/class/net/<interface>/ecn of the mlx5 driver.

_DCB = re.compile(r"(?:prio|pg)-pfc ((?:[0-7]:(?:on|off)\s*){8})")
_MLNX = re.compile(r"priority\s+0\s+1\s+2\s+3\s+4\s+5\s+6\s+7\s+enabled\s+((?:[01]\s*){8})")
_TRUST = re.compile(r"Priority trust state: (\w+)")
_UNSUPPORTED = ("not supported", "Invalid argument")


def read_lossless(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the settings of each interface that RoCE goes over."""
    found: dict[str, None] = {}
    for port in rdma_ports(tree):
        if link_layer(tree, port) == "Ethernet":
            interface = interface_of(tree, port)
            found.update(dict.fromkeys(members(tree, interface) if interface else ()))
    for interface in found:
        for side in ("roce_np", "roce_rp"):
            _ecn(tree, answer, interface, side)
    if found:
        _pfc(tree, answer, list(found))


def _ecn(tree: Tree, answer: Answer, interface: str, side: str) -> None:
    folder = f"{NET}/{interface}/ecn/{side}/enable"
    values = {priority: tree.number(f"{folder}/{priority}") for priority in tree.names(folder)}
    if values and None not in values.values():
        answer.reading("lossless", interface, f"ecn_{side}", _listed(key for key, value in values.items() if value))


def _listed(priorities) -> str:  # noqa: ANN001 - an iterable of texts
    return ",".join(priorities) or "off"


def _pfc(tree: Tree, answer: Answer, interfaces: list[str]) -> None:
    dcb, mlnx_qos = tree.tool("dcb"), tree.tool("mlnx_qos")
    if not dcb and not mlnx_qos:
        answer.unseen("PFC", "neither dcb nor mlnx_qos is installed")
    for interface in interfaces:
        why = ""
        if dcb:
            output = tree.run([dcb, "pfc", "show", "dev", interface])
            found = _DCB.search(output.text)
            if found and not output.problem:
                words = (word.split(":") for word in found.group(1).split())
                answer.reading("lossless", interface, "pfc", _listed(key for key, state in words if state == "on"))
                continue
            why = output.problem or "dcb gave no readable answer"
            if any(words in output.text for words in _UNSUPPORTED):
                why = ""
        if mlnx_qos:
            why = _by_mlnx_qos(tree, answer, mlnx_qos, interface)
        if why:
            answer.unseen(f"PFC of {interface}", why)


def _by_mlnx_qos(tree: Tree, answer: Answer, tool: str, interface: str) -> str:
    """Tell what mlnx_qos says, and return why it says nothing."""
    output = tree.run([tool, "-i", interface])
    trust = _TRUST.search(output.text)
    if trust:
        answer.reading("lossless", interface, "trust", trust.group(1))
    found = _MLNX.search(output.text)
    if found is None or output.problem:
        return output.problem or "mlnx_qos gave no readable answer"
    states = enumerate(found.group(1).split())
    answer.reading("lossless", interface, "pfc", _listed(str(key) for key, state in states if state == "1"))
    return ""


# --- fabric ----------------------------------------------------------------------------------------------------------
# Formats: iblinkinfo(8) and ibqueryerrors(8) of infiniband-diags. They need /dev/infiniband/umad*, as a rule root.

_LINK = re.compile(
    r'(0x[0-9a-f]+) "\s*(.*?)\s*"\s+\d+\s+(\d+)\[.*?\] ==\(\s*(\d+)X\s+([\d.]+) Gbps\s+\S+/\s*\S+?\)==>'
    r'\s+(0x[0-9a-f]+)\s+\d+\s+(\d+)\[.*?\] "\s*(.*?)\s*" \((.*)\)\s*'
)
# A port that is up, with something at its other end that gives no answer.
_SILENT = re.compile(
    r'0x[0-9a-f]+ "\s*(.*?)\s*"\s+\d+\s+(\d+)\[.*?\] ==\([^)]*Active[^)]*\)==>\s+"Port not available"\s*'
)
_ERRORS = re.compile(r"\s*GUID (0x[0-9a-f]+) port (\d+): (.*)")
_ERROR = re.compile(r"\[(\w+) == (\d+)")
_LIMITED = (
    "SymbolErrorCounter",
    "LinkErrorRecoveryCounter",
    "LinkDownedCounter",
    "PortRcvErrors",
    "PortXmitDiscards",
    "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
)
_NO_ANSWER = re.compile(r"^##\s+(\d+) (?:PMA )?query failures", re.MULTILINE)
_SUMMARY = "## Summary:"  # ibqueryerrors ends with 1 where it found errors, and with 0 where it could not look


def read_fabric(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the links of all switches, and the counters of both ends."""
    links, errors = tree.tool("iblinkinfo"), tree.tool("ibqueryerrors")
    if not links or not errors:
        answer.unseen("InfiniBand fabric", "iblinkinfo or ibqueryerrors is not installed (package infiniband-diags)")
        return
    output = tree.run([links, "-l", "--switches-only"])
    found = [row.groups() for row in map(_LINK.fullmatch, output.text.splitlines()) if row]
    if output.problem or not found:
        answer.unseen("InfiniBand fabric", output.problem or "iblinkinfo tells of no link")
        return
    switches = {int(row[0], 16) for row in found}
    ends: dict[tuple[int, int], str] = {}
    for guid, name, port, lanes, speed, peer, peer_port, peer_name, hint in found:
        near, far = f"{name} port {port}", f"{peer_name} port {peer_port}"
        own, other = (int(guid, 16), int(port)), (int(peer, 16), int(peer_port))
        if other in ends:  # told from its other end
            continue
        ends[own], ends[other] = f"{near} to {far}", f"{far} to {near}"
        device = f"{near} to {far}"
        answer.reading("fabric_link", device, "lanes", int(lanes))
        answer.reading("fabric_link", device, "lane_gbps", float(speed))
        answer.reading("fabric_link", device, "ends", "switches" if other[0] in switches else "adapter")
        answer.reading("fabric_link", device, "could_be", hint.strip())
    for name, port in _SILENT.findall(output.text):
        answer.reading("fabric_link", f"{name} port {port}", "ends", "silent")
    _counters(tree, answer, errors, ends)


def _counters(tree: Tree, answer: Answer, tool: str, ends: dict[tuple[int, int], str]) -> None:
    """Tell the counters of each end.

    A port that ibqueryerrors leaves out has none above 0, unless a port gave no answer: then it may be that one.
    """
    output = tree.run([tool])
    if _SUMMARY not in output.text:
        answer.unseen("counters of the InfiniBand fabric", output.problem or "ibqueryerrors gave no summary")
        return
    told: dict[tuple[int, int], dict[str, int]] = {}
    for line in output.text.splitlines():
        row = _ERRORS.match(line)
        if row:
            values = {name: int(value) for name, value in _ERROR.findall(row.group(3))}
            told[int(row.group(1), 16), int(row.group(2))] = values
    closed = _NO_ANSWER.search(output.text)
    if closed:
        answer.unseen("counters of the InfiniBand fabric", f"{closed.group(1)} ports gave no answer to ibqueryerrors")
    for end, device in ends.items():
        for name in _LIMITED if end in told or not closed else ():
            answer.counter("fabric_port", device, name, told.get(end, {}).get(name, 0))
