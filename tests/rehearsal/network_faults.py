"""Faults of interfaces, of RDMA and of the fabric."""

from __future__ import annotations

from typing import Any

from fault import Fault, Plant, grows, prints
from network_parts import NET, RDMA
from recorded_machine import Answer, Machine

_FABRIC = ("h100-sxm", "a100-sxm")
_ROCE = ("l40s-pcie", "dual-rail-roce")
_RDMA = (*_FABRIC, *_ROCE)
_BONDED = ("dual-rail-roce",)
_WIRED = (*_RDMA, "plain-ethernet")
_PORT = f"{RDMA}/mlx5_0/ports/1"
_INTERFACE = "ens4np0"  # of mlx5_0, on RoCE


def _is(path: str, text: str | int) -> Plant:
    def plant(machine: Machine, _look: int) -> None:
        assert path in machine.files, path
        machine.add(path, text)

    return plant


def _all(*plants: Plant) -> Plant:
    def plant(machine: Machine, look: int) -> None:
        for one in plants:
            one(machine, look)

    return plant


_pfc_off = prints(f"dcb pfc show dev {_INTERFACE}", "3:on", "3:off")


def _pfc_off_by_mlnx_qos(machine: Machine, _look: int) -> None:
    for tool in [tool for tool in machine.tools if tool.startswith("dcb ")]:
        del machine.tools[tool]
    machine.replace(f"mlnx_qos -i {_INTERFACE}", "enabled     0   0   0   1", "enabled     0   0   0   0")


def mtu(machine: Machine, _look: int) -> None:
    """Give an RDMA port a smaller MTU."""
    machine.replace("ibv_devinfo", "active_mtu:\t\t4096 (5)", "active_mtu:\t\t2048 (4)", 1)


def _gone(machine: Machine, _look: int) -> None:
    gone = f"{RDMA}/mlx5_1/"
    machine.files = {path: text for path, text in machine.files.items() if not path.startswith(gone)}
    machine.links = {path: text for path, text in machine.links.items() if not path.startswith(gone)}


def cards_gone(machine: Machine, _look: int) -> None:
    """Take all RDMA cards off the bus, with their interfaces."""
    devices = [path for path in machine.links if path.startswith(f"{RDMA}/") and path.endswith("/device")]
    places = tuple(machine.links[path].rpartition("/")[2] for path in devices)
    folders = [f"{RDMA}/", *(path.removesuffix("device") for path, to in machine.links.items() if to.endswith(places))]
    for held in (machine.files, machine.links):
        for path in [path for path in held if path.startswith(tuple(folders)) or any(one in path for one in places)]:
            del held[path]
    machine.tools["ibv_devinfo"] = Answer("No IB devices found\n", 255)


def one_lane(machine: Machine, _look: int) -> None:
    """Let a port run on one of its four lanes."""
    speed, _, rest = machine.files[f"{_PORT}/rate"].partition(" ")
    machine.add(f"{_PORT}/rate", f"{int(speed) // 4} {rest.strip().replace('4X', '1X')}")


def half_the_rate(machine: Machine, _look: int) -> None:
    """Let a port run at the rate of the generation before."""
    older = {"NDR": "HDR", "HDR": "EDR"}
    speed, _, rest = machine.files[f"{_PORT}/rate"].partition(" ")
    generation = rest.split()[-1].strip(")")
    machine.add(f"{_PORT}/rate", f"{int(speed) // 2} Gb/sec (4X {older[generation]})")


def tenth(machine: Machine, _look: int) -> None:
    """Let an Ethernet port run at a tenth of its speed."""
    machine.add(f"{NET}/eth0/speed", int(machine.files[f"{NET}/eth0/speed"]) // 10)


def _driver_counts(name: str, count: int) -> Plant:
    """Let a counter of the driver grow, as ``ethtool -S`` prints it."""

    def plant(machine: Machine, look: int) -> None:
        tool = f"ethtool -S {_INTERFACE}"
        line = next(line for line in machine.tools[tool].text.splitlines() if name in line)
        head, _, value = line.partition(": ")
        machine.replace(tool, line, f"{head}: {int(value) + count * look}")

    return plant


def _flaps(machine: Machine, look: int) -> None:
    machine.grow(f"{NET}/eth0/carrier_changes", 6 * look)
    machine.events += [(50.0 - 10 * number, "mlx5_core 0000:17:00.0 eth0: Link down") for number in range(3)]


_pauses = _driver_counts("rx_prio3_pause", 5_000_000)
_storm = _driver_counts("tx_pause_storm_error_events", 2)
_no_manager = _all(
    _is(f"{_PORT}/state", "2: INIT"),
    _is(f"{_PORT}/sm_lid", "0x0"),
    _is(f"{_PORT}/lid", "0xffff"),
)
_port_down = _all(_is(f"{_PORT}/state", "1: DOWN"), _is(f"{_PORT}/phys_state", "2: Polling"))
_lossy = _all(_pfc_off, grows(f"{_PORT}/hw_counters/out_of_sequence", 90_000))
_slave_down = _is(f"{NET}/eth1/bonding_slave/mii_status", "down")
_other_group = _is(f"{NET}/eth1/bonding_slave/ad_aggregator_id", "2")
_other_mode = _is(f"{NET}/bond0/bonding/mode", "active-backup 1")
_no_carrier = _all(_is(f"{NET}/eth0/operstate", "down"), _is(f"{NET}/eth0/speed", -1))
_counters, _hw = f"{_PORT}/counters", f"{_PORT}/hw_counters"


def _counted(*rows: tuple[Any, ...]) -> list[Fault]:
    """Return faults that let a counter of the port grow, which the finding names; further words may follow."""
    return [
        Fault(
            name, cause, kinds, grows(f"{_PORT}/{path}", count), "links", ("mlx5_0/1", path.partition("/")[2], *words)
        )
        for name, cause, kinds, path, count, *words in rows
    ]


FAULTS: tuple[Fault, ...] = (
    Fault(
        "Ethernet link flaps", 11, _WIRED, grows(f"{NET}/eth0/carrier_changes", 6), "links", ("eth0 by 6", "carrier")
    ),
    Fault("Ethernet link flaps, and the kernel's log tells it", 11, _WIRED, _flaps, "links", ("eth0 by 6", "carrier")),
    Fault("Ethernet port without a carrier", 11, _WIRED, _no_carrier, "interfaces", ("eth0", "no carrier")),
    Fault("CRC errors grow", 0, _WIRED, grows(f"{NET}/eth0/statistics/rx_crc_errors", 40), "links", ("eth0", "CRC")),
    Fault("Ethernet port at a tenth of its speed", 0, _WIRED, tenth, "interfaces", ("the speed of eth0",)),
    Fault("half duplex", 0, _WIRED, _is(f"{NET}/eth0/duplex", "half"), "interfaces", ("eth0", "half duplex")),
    Fault("member of a bond is down", 0, _BONDED, _slave_down, "bonds", ("eth1 of bond0 is down",)),
    Fault("member of a bond outside its LACP group", 0, _BONDED, _other_group, "bonds", ("eth1 of bond0", "LACP")),
    Fault("bond of another mode", 0, _BONDED, _other_mode, "bonds", ("the mode of bond0 is active-backup",)),
    *_counted(
        ("InfiniBand link went down and came back", 11, _RDMA, "counters/link_downed", 1),
    ),
    Fault(
        "symbol errors above the limit",
        11,
        _FABRIC,
        grows(f"{_counters}/symbol_error", 60),
        "links",
        ("mlx5_0/1 by 60 in 60 s", "120 an hour"),
    ),
    Fault(
        "link recovers again and again",
        11,
        _FABRIC,
        grows(f"{_counters}/link_error_recovery", 30),
        "links",
        ("mlx5_0/1", "recover"),
    ),
    *_counted(
        ("broken packets are received", 0, _RDMA, "counters/port_rcv_errors", 3000),
        ("packets are discarded at sending", 0, _RDMA, "counters/port_xmit_discards", 30000),
    ),
    Fault(
        "integrity errors of a link",
        0,
        _FABRIC,
        grows(f"{_counters}/local_link_integrity_errors", 2),
        "links",
        ("mlx5_0/1",),
    ),
    *_counted(
        ("packets without an answer", 10, _RDMA, "hw_counters/local_ack_timeout_err", 400),
        (
            "connections lost since the receiver was not ready",
            10,
            _RDMA,
            "hw_counters/rnr_nak_retry_err",
            2,
            "the job on the other end",
        ),
        (
            "connections lost after all retries",
            10,
            _RDMA,
            "hw_counters/req_transport_retries_exceeded",
            3,
            "drops packets",
        ),
    ),
    Fault(
        "overruns of a port's buffer",
        0,
        _RDMA,
        grows(f"{_counters}/excessive_buffer_overrun_errors", 2),
        "links",
        ("mlx5_0/1", "overruns of its buffer", "flow control"),
    ),
    Fault("pause storm", 10, _ROCE, _storm, "links", (_INTERFACE, "pause storms", "stalls the card")),
    Fault(
        "the carrier is lost while a port sends",
        11,
        _WIRED,
        grows(f"{NET}/eth0/statistics/tx_carrier_errors", 40),
        "links",
        ("eth0", "losses of the carrier"),
    ),
    Fault("RoCE checksum errors", 0, _ROCE, grows(f"{_hw}/rx_icrc_encapsulated", 5), "links", ("mlx5_0/1", "ICRC")),
    Fault("loss on RoCE without PFC", 10, _ROCE, _lossy, "roce", ("mlx5_0/1 loses packets", "PFC is off")),
    Fault(
        "loss on RoCE with PFC",
        10,
        _ROCE,
        grows(f"{_hw}/out_of_sequence", 90_000),
        "congestion",
        ("mlx5_0/1", "out_of_sequence"),
    ),
    Fault(
        "one node sends again far more often",
        10,
        _ROCE,
        grows(f"{_hw}/roce_adp_retrans", 90_000),
        "congestion",
        ("mlx5_0/1 loses packets", "roce_adp_retrans"),
    ),
    Fault(
        "one node sends far more congestion notes",
        0,
        _RDMA,
        grows(f"{_hw}/np_cnp_sent", 60_000_000),
        "congestion",
        ("mlx5_0/1", "np_cnp_sent"),
    ),
    Fault("one node is paused far more often", 0, _ROCE, _pauses, "congestion", (_INTERFACE, "rx_prio3_pause")),
    Fault("PFC off on one node (dcb)", 10, _ROCE, _pfc_off, "roce", ("PFC", _INTERFACE, "is off, and 3 on most")),
    Fault("PFC off on one node (mlnx_qos)", 10, _ROCE, _pfc_off_by_mlnx_qos, "roce", ("PFC", "is off, and 3 on most")),
    Fault(
        "ECN off on one node", 10, _ROCE, _is(f"{NET}/{_INTERFACE}/ecn/roce_np/enable/3", 0), "roce", ("ECN", "is off")
    ),
    Fault("active MTU of InfiniBand", 9, _FABRIC, mtu, "rdma", ("active MTU of RDMA mlx5_0/1 is 2048",)),
    Fault("active MTU of RoCE", 9, _ROCE, mtu, "rdma", ("active MTU of RDMA mlx5_0/1 is 2048", "interface")),
    Fault("MTU of RoCE", 9, _ROCE, _is(f"{NET}/{_INTERFACE}/mtu", 1500), "rdma", ("MTU", "mlx5_0/1 is 1500")),
    Fault("P_Key is missing", 12, _FABRIC, _is(f"{_PORT}/pkeys/1", "0x0000"), "rdma", ("P_Key table", "0x8001")),
    Fault("link on one of four lanes", 0, _FABRIC, one_lane, "rdma", ("mlx5_0/1", "1X")),
    Fault("link of an older generation", 0, _FABRIC, half_the_rate, "rdma", ("the rate of RDMA mlx5_0/1",)),
    Fault(
        "firmware of one card differs",
        12,
        _RDMA,
        _is(f"{RDMA}/mlx5_0/fw_ver", "26.33.1048"),
        "firmware",
        ("mlx5_0", "26.33.1048"),
    ),
    Fault(
        "card of another board",
        12,
        _RDMA,
        _is(f"{RDMA}/mlx5_0/board_id", "DEL0000000031"),
        "rdma",
        ("the board of mlx5_0",),
    ),
    Fault(
        "an RDMA device is missing",
        12,
        ("h100-sxm", "a100-sxm", "dual-rail-roce"),
        _gone,
        "rdma",
        ("missing: mlx5_1 (0000:48:00.0)",),
    ),
    Fault(
        "all RDMA cards of a node are gone",
        12,
        _RDMA,
        cards_gone,
        "rdma",
        ("has no RDMA card", "most nodes with its board"),
    ),
    Fault("RDMA port is down", 11, _RDMA, _port_down, "rdma", ("mlx5_0/1 is DOWN (Polling)",)),
    Fault("InfiniBand port without a subnet manager", 12, _FABRIC, _no_manager, "rdma", ("INIT", "subnet manager")),
)
