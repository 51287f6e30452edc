"""Interfaces and RDMA devices of a recorded machine, healthy ones.

Totals differ by node and are not 0, as on machines that have run for days. ``work`` lets them grow as under a job.
"""

from __future__ import annotations

from recorded_machine import Answer, Machine

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
_GENERATION = {400: "NDR", 200: "HDR", 100: "EDR"}  # of four lanes
_BOARDS = {
    400: ("MT_0000000838", "28.39.1002"),
    200: ("MT_0000000223", "20.39.1002"),
    100: ("MT_0000000359", "22.39.1002"),
}
_STATISTICS = {
    "rx_packets": 918_273_645,
    "tx_packets": 837_261_504,
    "rx_errors": 3,
    "rx_crc_errors": 2,
    "rx_frame_errors": 0,
    "rx_length_errors": 1,
    "rx_fifo_errors": 0,
    "rx_missed_errors": 14,
    "rx_dropped": 21_733,
    "tx_errors": 0,
    "tx_carrier_errors": 0,
    "tx_aborted_errors": 0,
    "tx_fifo_errors": 0,
    "tx_dropped": 12,
}
_DRIVER_STATISTICS = {
    "rx_out_of_buffer": 44,
    "rx_crc_errors_phy": 2,
    "rx_discards_phy": 17,
    "tx_discards_phy": 0,
    "rx_pause_ctrl_phy": 0,
    "tx_pause_ctrl_phy": 0,
    "rx_prio3_pause": 81_923,
    "tx_prio3_pause": 40_112,
    "rx_prio3_discards": 0,
    "tx_pause_storm_error_events": 0,
}
_COUNTERS = {
    "port_rcv_packets": 9_182_736_450,
    "port_xmit_packets": 8_372_615_040,
    "port_rcv_data": 8_172_635_460_512,
    "port_xmit_data": 7_172_635_460_512,
    "symbol_error": 11,
    "link_error_recovery": 1,
    "link_downed": 2,
    "port_rcv_errors": 4,
    "port_rcv_remote_physical_errors": 0,
    "port_xmit_discards": 37,
    "port_xmit_wait": 1_029_384_756,
    "local_link_integrity_errors": 0,
    "excessive_buffer_overrun_errors": 0,
}
_HW_COUNTERS = {
    "out_of_sequence": 312,
    "packet_seq_err": 77,
    "local_ack_timeout_err": 9,
    "rnr_nak_retry_err": 0,
    "req_transport_retries_exceeded": 0,
    "roce_adp_retrans": 15,
    "roce_slow_restart": 3,
    "rx_icrc_encapsulated": 0,
    "np_cnp_sent": 2_918_273,
    "np_ecn_marked_roce_packets": 3_918_273,
    "rp_cnp_handled": 1_918_273,
}
_MINUTE = {  # of a job
    "rx_packets": 61_000_000,
    "tx_packets": 58_000_000,
    "port_rcv_packets": 610_000_000,
    "port_xmit_packets": 580_000_000,
    "port_xmit_wait": 9_000_000,
    "np_cnp_sent": 810_000,
    "np_ecn_marked_roce_packets": 900_000,
    "rp_cnp_handled": 790_000,
    "out_of_sequence": 40,
    "packet_seq_err": 9,
    "rx_prio3_pause": 70_000,
    "tx_prio3_pause": 60_000,
}


def add_ethernet(machine: Machine, node: int, name: str, speed_mbps: int) -> None:
    """Put an Ethernet port into a machine."""
    number = len([path for path in machine.files if path.startswith(NET) and path.endswith("/carrier_changes")])
    bus = f"0000:{0x17 + number:02x}:00"
    _interface(machine, node, name, f"{bus}.0", speed_mbps or -1)
    if not speed_mbps:
        machine.add(f"{NET}/{name}/duplex", "unknown")
        machine.links[f"/sys/devices/pci0000:00/{bus}.0/driver"] = "../../../bus/virtio/drivers/virtio_net"
    header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    machine.files.setdefault(
        "/proc/net/route", f"{header}\n{name}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    )
    spare = f"{name}s1"  # a second port of the card that nobody uses, and a bridge of containers
    if speed_mbps:
        _interface(machine, node, spare, f"{bus}.1", -1)
        machine.add(f"{NET}/{spare}/operstate", "down")
        machine.add(f"{NET}/{spare}/flags", "0x1002" if node % 2 else "0x1003")
    machine.add(f"{NET}/docker0/carrier_changes", 1000 + node)
    machine.add(f"{NET}/docker0/operstate", "down" if node % 2 else "up")


def _interface(machine: Machine, node: int, name: str, place: str, speed_mbps: int) -> None:
    path = f"{NET}/{name}"
    bus = int(place[5:7], 16)
    for attribute, value in {
        "carrier_changes": 2 + node,
        "operstate": "up",
        "flags": "0x1003",
        "duplex": "full",
        "speed": speed_mbps,
        "mtu": 1500 if speed_mbps < 100_000 else 4200,
        "address": f"b8:3f:d2:{node:02x}:{bus:02x}:{int(place[-1])}0",
        "addr_assign_type": 0,
    }.items():
        machine.add(f"{path}/{attribute}", value)
    for counter, value in _STATISTICS.items():
        machine.add(f"{path}/statistics/{counter}", value * node)
    machine.add(f"/sys/devices/pci0000:00/{place}/vendor", "0x15b3")
    machine.links[f"{path}/device"] = f"../../../devices/pci0000:00/{place}"
    machine.links[f"/sys/devices/pci0000:00/{place}/driver"] = "../../../bus/pci/drivers/mlx5_core"
    counters = "".join(f"     {name}: {value * node}\n" for name, value in _DRIVER_STATISTICS.items())
    rings = "".join(f"     rx{ring}_packets: {ring * node}\n" for ring in range(16))
    machine.tools[f"ethtool -S {name}"] = Answer(f"NIC statistics:\n{rings}{counters}")


def add_bond(machine: Machine, name: str, members: tuple[str, ...]) -> None:
    """Join interfaces to a bond by LACP."""
    machine.add(f"{NET}/{name}/bonding/mode", "802.3ad 4")
    machine.add(f"{NET}/{name}/bonding/slaves", " ".join(members))
    machine.add(f"{NET}/{name}/bonding/ad_aggregator", 1)
    for member in members:
        machine.add(f"{NET}/{member}/addr_assign_type", 3)
        machine.add(f"{NET}/{member}/bonding_slave/mii_status", "up")
        machine.add(f"{NET}/{member}/bonding_slave/ad_aggregator_id", 1)


def add_rdma(machine: Machine, node: int, link_layer: str, count: int, gbps: int) -> None:
    """Put RDMA devices into a machine: InfiniBand, or Ethernet for RoCE."""
    told = []
    for number in range(count):
        device, place = f"mlx5_{number}", f"0000:{0x40 + 8 * number:02x}:00.0"
        path, guid = f"{RDMA}/{device}", f"b83f:d203:00{node:02x}:{number:02x}0a"
        board, firmware = _BOARDS[gbps]
        facts = {"fw_ver": firmware, "board_id": board, "node_guid": guid, "sys_image_guid": guid}
        for name, text in facts.items():
            machine.add(f"{path}/{name}", text)
        machine.add(f"/sys/devices/pci0000:00/{place}/vendor", "0x15b3")
        machine.links[f"{path}/device"] = f"../../../devices/pci0000:00/{place}"
        _port(machine, node, f"{path}/ports/1", link_layer, gbps, number)
        if link_layer == "Ethernet":
            _roce(machine, node, number, place, gbps)
        told.append(_DEVICE.format(device=device, firmware=firmware, guid=guid, board=board, layer=link_layer))
    machine.tools["ibv_devinfo"] = Answer("\n".join(told))


def _port(machine: Machine, node: int, path: str, link_layer: str, gbps: int, number: int) -> None:
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "link_layer": link_layer,
        "rate": f"{gbps} Gb/sec (4X {_GENERATION[gbps]})",
        "sm_lid": "0x1" if link_layer == "InfiniBand" else "0x0",
        "lid": f"{16 * node + number:#x}" if link_layer == "InfiniBand" else "0x0",
        "pkeys/0": "0xffff",
        "pkeys/1": "0x8001" if link_layer == "InfiniBand" else "0x0000",
        "pkeys/2": "0x0000",
    }.items():
        machine.add(f"{path}/{name}", text)
    for folder, counters in (("counters", _COUNTERS), ("hw_counters", _HW_COUNTERS)):
        for name, value in counters.items():
            machine.add(f"{path}/{folder}/{name}", value * node)


def _roce(machine: Machine, node: int, number: int, place: str, gbps: int) -> None:
    """Put the interface of a port of RoCE beside it, with PFC and ECN on priority 3."""
    interface = f"ens{number + 4}np0"
    _interface(machine, node, interface, place, gbps * 1000)
    machine.add(f"{RDMA}/mlx5_{number}/ports/1/gid_attrs/ndevs/0", interface)
    for side in ("roce_np", "roce_rp"):
        for priority in range(8):
            machine.add(f"{NET}/{interface}/ecn/{side}/enable/{priority}", int(priority == 3))
    machine.tools[f"dcb pfc show dev {interface}"] = Answer(
        "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off\n"
    )
    machine.tools[f"mlnx_qos -i {interface}"] = Answer(_MLNX_QOS)


def work(machine: Machine) -> None:
    """Let a minute of a job pass: traffic, and the congestion that goes with it, much the same on every node."""
    for path, text in list(machine.files.items()):
        if path.startswith((NET, RDMA)) and path.rpartition("/")[2] in _MINUTE:
            machine.add(path, int(text) + _MINUTE[path.rpartition("/")[2]])
    for words, answer in machine.tools.items():
        if words.startswith("ethtool -S"):
            lines = [line.partition(": ") for line in answer.text.splitlines()]
            grown = (
                (head, colon, str(int(value) + _MINUTE[head.strip()]) if head.strip() in _MINUTE else value)
                for head, colon, value in lines
            )
            answer.text = "".join("".join(parts) + "\n" for parts in grown)


_DEVICE = """hca_id:\t{device}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t{firmware}
\tnode_guid:\t\t\t{guid}
\tsys_image_guid:\t\t\t{guid}
\tvendor_id:\t\t\t0x02c9
\tboard_id:\t\t\t{board}
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tlink_layer:\t\t{layer}
"""
_MLNX_QOS = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:3 dscp:31,30,29,28,27,26,25,24,
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   0   0
\tbuffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
\t priority:  1
"""
