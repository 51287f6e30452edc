"""Read the bytes that each interface and RDMA port of this node has carried, and which of them count the same bytes.

Formats: Documentation/ABI/testing/sysfs-class-net-statistics and Documentation/ABI/stable/sysfs-class-infiniband of
Linux. It needs the standard library only.
"""

from __future__ import annotations

from pathlib import Path

SYS = Path("/sys/class")
LOOPBACK = "772"  # ARPHRD_LOOPBACK of the kernel
MOST_CARRIERS = 12  # are told, so that a line stays below what a pipe writes in one piece


def told(before: dict[str, tuple[int, int]], root: Path = SYS) -> dict[str, list[object]]:
    """Return by how much the counters rose, received and sent, and what each lies on; the busiest come first."""
    related = relations(root)
    risen = {
        name: [now[0] - before[name][0], now[1] - before[name][1], related.get(name, "")]
        for name, now in counters(root).items()
        if name in before
    }
    order = sorted(risen, key=lambda name: -(int(risen[name][0]) + int(risen[name][1])))
    return {name: risen[name] for name in order[:MOST_CARRIERS]}


def counters(root: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes that every interface and every RDMA port of a node has received and sent.

    Ports are named ``mlx5_0/1``; what InfiniBand calls data is counted in words of four bytes.
    """
    found = {}
    for interface in root.glob("net/*"):
        if read(interface / "type") != LOOPBACK:
            pair = [read(interface / "statistics" / name) for name in ("rx_bytes", "tx_bytes")]
            if all(text.isdigit() for text in pair):
                found[interface.name] = (int(pair[0]), int(pair[1]))
    for port in root.glob("infiniband/*/ports/*"):
        pair = [read(port / "counters" / name) for name in ("port_rcv_data", "port_xmit_data")]
        if all(text.isdigit() for text in pair):
            found[port_name(port)] = (4 * int(pair[0]), 4 * int(pair[1]))
    return found


def relations(root: Path) -> dict[str, str]:
    """Return what bytes of a carrier are counted on as well.

    For an interface these are those below it (a bond's or bridge's members, what a VLAN lies on): ``over eth1 eth2``;
    for an RDMA port the link layer and its network interfaces: ``InfiniBand ib0``.
    """
    found = {}
    for interface in root.glob("net/*"):
        below = sorted(entry.name.partition("_")[2] for entry in interface.glob("lower_*"))
        found[interface.name] = f"over {' '.join(below)}" if below else ""
    for port in root.glob("infiniband/*/ports/*"):
        names = {read(entry) for entry in port.glob("gid_attrs/ndevs/*")} - {""}
        names |= {entry.name for entry in (port.parent.parent / "device" / "net").glob("*")} if not names else set()
        found[port_name(port)] = " ".join([read(port / "link_layer"), *sorted(names)])
    return found


def active_ports(root: Path) -> list[str]:
    """Return the RDMA ports that can carry something."""
    return sorted(port_name(port) for port in root.glob("infiniband/*/ports/*") if "ACTIVE" in read(port / "state"))


def port_name(port: Path) -> str:
    """Return ``mlx5_0/1`` for a port's folder."""
    return f"{port.parent.parent.name}/{port.name}"


def read(path: Path) -> str:
    """Return a small file's text, empty where the kernel has none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
