"""The way that a job's traffic took, by NCCL's own log and the counters of interfaces and RDMA ports around the job.

A fall back to sockets where RDMA is up, ports that are left out, GPUDirect that is off, or an interface outside the
cluster's network is a fault. It names the node, the port and the setting. A log that says nothing proves nothing.

``clusterctl launch`` imports this module, so it needs the standard library alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clusterctl.analysis.carriers import Carrier, carrier, of_fabric, without_doubles
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.analysis.carriers import FabricPath

_DIRECT = "GDRDMA"
_BETWEEN_NODES = "P2P/MNNVL"
_LEAST_BYTES = 2**20  # of a node's traffic; less says nothing of the way that a job takes
_MOSTLY = 0.5  # of a node's traffic
_PARTLY = 0.1  # of a node's traffic, where a setting of the node itself chose the way
_MOST_NAMED, _MOST_PORTS = 4, 8
# NVIDIA's documentation of GPUDirect RDMA names data-centre and workstation GPUs alone. The GB10 of a DGX Spark shares
# its memory with the processor and has none either.
NO_GPUDIRECT = re.compile(r"GeForce|\bGB10\b")
_MOST_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")  # the last is the old name of the first
_TOPOLOGY = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_NETDEVS_POLICY", "NCCL_CROSS_NIC")
_SOCKET_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class PathSite(Protocol):
    """What is known of the nodes by their names: ranks, RDMA ports, GPUs, and where NCCL's variables are set."""

    @property
    def slots(self) -> Mapping[str, int]: ...  # ranks of each node

    @property
    def rdma(self) -> Mapping[str, tuple[str, ...]]: ...  # its RDMA ports that are up and of its fastest kind, mlx5_0:1

    @property
    def gpus(self) -> Mapping[str, str]: ...  # the name of its GPUs

    @property
    def gids(self) -> Mapping[str, Mapping[str, GidTable]]: ...  # the GIDs of its RoCE ports, by mlx5_0:1

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]: ...  # where it sets variables of NCCL and Gloo

    @property
    def fabric(self) -> Mapping[str, FabricPath]: ...  # the interfaces that must carry jobs; left out without a record


@dataclass(frozen=True)
class GidTable:
    """The GIDs of a RoCE port: index and GID of RoCE v2 for IPv4, and by index what makes others unfit for it."""

    index: int
    gid: str
    unfit: Mapping[int, str]


@dataclass(frozen=True)
class PathFault:
    """A wrong way: the nodes, what is wrong, and what to do."""

    hosts: tuple[str, ...]
    words: str
    cure: str


def praise(paths: Mapping[str, NcclPath]) -> str:
    """Return the way in words, '' where the log says nothing of one."""
    ways = {one.network for one in paths.values() if one.network}
    if len(ways) != 1:
        return ""
    if all(one.via(_BETWEEN_NODES) and not one.via(NET) for one in paths.values()):
        return "NCCL goes over NVLink between nodes"
    name = next(iter(ways))
    over = unique(port for one in paths.values() for port in one.used)
    over = over or unique(name for one in paths.values() if one.is_socket for name in one.interfaces)
    direct = all(any(_DIRECT in way for way in one.via(NET)) for one in paths.values())
    words = f"NCCL goes over {name}" + (f" ({', '.join(over[:_MOST_PORTS])})" if over else "")
    return f"{words} with GPUDirect RDMA" if direct else words


def silent(users: Iterable[str], paths: Mapping[str, NcclPath]) -> tuple[str, ...]:
    """Return the nodes with ranks over NCCL whose log says nothing of the way."""
    return tuple(host for host in users if host not in paths or not (paths[host].network or paths[host].ways))


def unproved(where: str) -> str:
    """Return what a PASS says of nodes whose log is silent; ``where`` has their names."""
    return f"NCCL's way was not proved on {where}, for its log says nothing of it (is NCCL_DEBUG_FILE set?)"


def ring_note(site: PathSite, paths: Mapping[str, NcclPath]) -> str:
    """Return that NCCL's first ring goes from node to node more often than it must, '' where it does not.

    A ring that enters and leaves each node once changes nodes as often as there are nodes. NCCL builds such rings by
    itself, unless it takes ranks of a node for ranks of several (``NCCL_HOSTID``, containers with other host names).
    """
    places = [host for host, ranks in site.slots.items() for _rank in range(ranks)]
    ring = next((one.ring for one in paths.values() if one.ring), ())
    if len(site.slots) < 2 or sorted(ring) != list(range(len(places))):  # noqa: PLR2004 - one node has no other
        return ""
    hosts = [places[rank] for rank in ring]
    changes = sum(host != hosts[at - 1] for at, host in enumerate(hosts))
    if changes <= len(site.slots):
        return ""
    words = f"NCCL's ring changes nodes {changes} times where {len(site.slots)} are enough"
    return f"{words}; see whether NCCL_HOSTID or a container's host name differs within a node"


def rails_note(site: PathSite, paths: Mapping[str, NcclPath]) -> str:
    """Return that every node leaves some of its ports unused, '' where one node uses all or too little is known.

    NCCL leaves out ports that are far from every GPU, and takes no more channels than the way to the GPUs carries. So
    what all nodes have alike is a note.
    """
    if not site.slots or not all(
        host in paths and _is_partial(site, host, paths[host], site.rdma.get(host, ())) for host in site.slots
    ):
        return ""
    host = next(iter(site.slots))
    one, up = paths[host], site.rdma[host]
    unused = _unused(one, up)
    given = _setting(site, host, one, dict.fromkeys(_TOPOLOGY, ()))
    words = f"NCCL uses {len(up) - len(unused)} of {len(up)} ports that are up on every node, not {_named(unused)}"
    return f"{words}{f', with {given}' if given else ''}; see whether these have a GPU near ('nvidia-smi topo -m')"


def proof(site: PathSite, paths: Mapping[str, NcclPath], unproved_on: str = "") -> tuple[str, ...]:
    """Return what a PASS says of NCCL's way; ``unproved_on`` has the names of the nodes whose log is silent."""
    told = (praise(paths), rails_note(site, paths), ring_note(site, paths))
    return tuple(one for one in (*told, unproved(unproved_on) if unproved_on else "") if one)


def nccl_faults(site: PathSite, paths: Mapping[str, NcclPath]) -> Iterator[PathFault]:
    """Yield the wrong ways of NCCL, by its own words."""
    for host, one in paths.items():
        up = site.rdma.get(host, ())
        if one.is_socket:
            if up:
                yield _fell_back(site, host, one, up)
            yield from _wrong_interface(site, host, one)
        elif one.rails:
            if one.has_names:
                yield from _left_out(site, host, one, up, paths)
            else:
                yield from _devices_left_out(site, host, one, paths)
            yield from _indirect(site, host, one, paths)
            yield from _unfit_gids(site, host, one)
        off = _setting(site, host, one, {"NCCL_P2P_DISABLE": ("0",)})
        if off and any(way.startswith("SHM") for way in one.ways):
            words = "GPUs of the node exchange through its memory, not directly"
            yield PathFault((host,), f"{words}, by {off}", "take that setting away")


def carrier_faults(site: PathSite, events: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[PathFault]:
    """Yield nodes whose counters rose outside the cluster's network.

    A node whose own setting chose that way is at fault, and the others only follow it. Without such a setting, one node
    alone may have served files.

    Args:
        site: the nodes.
        events: each with its node: what ``port_counters.py`` told there, and the settings that choose interfaces.
    """
    chosen, astray = {}, {}
    for host, event in events:
        fabric, own = site.fabric.get(host), without_doubles(_carriers(event.get("ports")))
        if fabric is None or host not in site.slots:
            continue
        right = {one.name for one in of_fabric(fabric, own)}
        others = [one for one in own if one.name not in right]
        total, aside = sum(map(_bytes, own)), sum(map(_bytes, others))
        if not others or aside < _LEAST_BYTES:
            continue
        most = max(others, key=_bytes)
        given = event.get("settings")
        told = {name: given[name] for name in _SOCKET_NAMES if isinstance(given, dict) and given.get(name)}
        guilty = [name for name, value in told.items() if _takes(name, str(value), most.name)]
        words = f"{aside / 2**20:.1f} MiB of {total / 2**20:.1f} MiB went over {most.name}, not over"
        words += f" {fabric.interfaces[0]}"
        cure = f"set {' and '.join(_SOCKET_NAMES)} to {fabric.interfaces[0]}, or provision it again (role fabric)"
        if guilty and aside >= _PARTLY * total:
            by = " and ".join(f"{name}={told[name]}{_of(site, host, name)}" for name in guilty)
            cure = f"set {' and '.join(guilty)} to {fabric.interfaces[0]}, or take that setting away"
            chosen[host] = PathFault((host,), f"{words}, by {by}", cure)
        elif aside >= _MOSTLY * total:
            astray[host] = PathFault((host,), words, cure)
    if chosen:
        yield from chosen.values()
    elif len(astray) > 1:
        yield from astray.values()


def _bytes(one: Carrier) -> float:
    return one.rx_bytes + one.tx_bytes


def _takes(name: str, value: str, interface: str) -> bool:
    """Whether a variable chooses an interface: NCCL takes prefixes, ``=`` whole names and ``^`` all others."""
    if name.startswith("NCCL_") and value.startswith("^"):
        return not _takes(name, value[1:], interface)
    whole = value.startswith("=") or not name.startswith("NCCL_")
    words = [word.partition(":")[0] for word in value.lstrip("=").split(",") if word]
    return any(interface == word if whole else interface.startswith(word) for word in words)


# --- one fault each ---------------------------------------------------------------------------------------------------


def _fell_back(site: PathSite, host: str, one: NcclPath, up: Sequence[str]) -> PathFault:
    ways = {"NCCL_IB_DISABLE": ("0",), "NCCL_NET": ("IB", "ib"), "NCCL_IB_HCA": (), "NCCL_NET_PLUGIN": ()}
    why = _setting(site, host, one, ways)
    over = f" on {', '.join(one.interfaces[:_MOST_NAMED])}" if one.interfaces else ""
    words = f"NCCL goes over sockets{over} although {_named(up)} {'is' if len(up) == 1 else 'are'} up"
    if why:
        return PathFault((host,), f"{words}, by {why}", "take that setting away")
    if one.no_device:
        cure = "see that libibverbs and its driver are installed, and that jobs may open /dev/infiniband"
        return PathFault((host,), f"{words}; it found no RDMA port that it can use", cure)
    return PathFault((host,), words, "read NCCL's log with NCCL_DEBUG=INFO")


def _wrong_interface(site: PathSite, host: str, one: NcclPath) -> Iterator[PathFault]:
    fabric = site.fabric.get(host)
    wrong = [name for name in one.interfaces if fabric is not None and name not in fabric.interfaces]
    if fabric is not None and wrong:
        why = _setting(site, host, one, {"NCCL_SOCKET_IFNAME": ()})
        words = f"NCCL's sockets go over {', '.join(wrong[:_MOST_NAMED])}, not over {fabric.interfaces[0]}"
        words += f", by {why}" if why else ""
        yield PathFault((host,), words, f"set NCCL_SOCKET_IFNAME to ={fabric.interfaces[0]}")


def _left_out(
    site: PathSite, host: str, one: NcclPath, up: Sequence[str], paths: Mapping[str, NcclPath]
) -> Iterator[PathFault]:
    opened = {_device(name) for port in one.ports for name in port.split("+")}
    missing = [port for port in up if opened and _device(port) not in opened]
    cure = "take that setting away, or name all ports in it"
    if missing:
        why = _setting(site, host, one, {"NCCL_IB_HCA": ()})
        words = f"NCCL leaves out {_named(missing)} of {len(up)} ports that are up{f', by {why}' if why else ''}"
        yield PathFault((host,), words, cure if why else "see whether these ports have the cluster's network or P_Key")
        return
    if _is_partial(site, host, one, up) and (by := _few_channels(site, host, one, len(up))):
        words = f"NCCL uses {_named(one.used)} of {len(up)} ports that are up, by {by}"
        yield PathFault((host,), words, "take that setting away, or allow a channel for each port")
        return
    alike = [other for name, other in paths.items() if len(site.rdma.get(name, ())) == len(up)]
    most = max((len(other.used) for other in alike), default=0)
    used = len(one.used)
    why = _setting(site, host, one, {"NCCL_IB_HCA": (), "NCCL_CROSS_NIC": (), "NCCL_TOPO_FILE": ()})
    alone = used == 1 and site.slots[host] >= (2 if why else len(up))  # two GPUs may have the same port nearest
    if len(up) > 1 and used and (used < most or alone):
        words = f"NCCL uses {_named(one.used)} alone of {len(up)} ports that are up{f', by {why}' if why else ''}"
        yield PathFault(
            (host,), words, cure if why else "compare the PCI topology with other nodes ('nvidia-smi topo -m')"
        )


def _is_partial(site: PathSite, host: str, one: NcclPath, up: Sequence[str]) -> bool:
    """Whether fewer ports carry connections than are up, where each port could serve a rank and every rank told it."""
    is_known = one.has_names and one.told >= site.slots[host] >= len(up)
    return is_known and bool(one.used) and bool(_unused(one, up))


def _unused(one: NcclPath, up: Sequence[str]) -> list[str]:
    """Return the ports that carry nothing; NCCL may join two ports to one (``mlx5_0+mlx5_1``)."""
    used = {_device(name) for port in one.used for name in port.split("+")}
    return [port for port in up if _device(port) not in used]


def _few_channels(site: PathSite, host: str, one: NcclPath, ports: int) -> str:
    """Return the setting that allows fewer channels than there are ports; each channel takes a port of its own."""
    for name in _MOST_CHANNELS:
        value = one.settings.get(name, "")
        if _is_number(value) and 0 < int(value) <= len(one.used) < ports:
            return f"{name}={value}{_of(site, host, name)}"
    return ""


def _devices_left_out(site: PathSite, host: str, one: NcclPath, paths: Mapping[str, NcclPath]) -> Iterator[PathFault]:
    """Find a plugin that offers or uses fewer devices than on nodes with the same GPUs and as many ranks."""
    alike = [
        other
        for name, other in paths.items()
        if other.network == one.network and _alike(site, host, name) and site.slots[name] == site.slots[host]
    ]
    offered = max((other.devices for other in alike), default=0)
    if 0 < one.devices < offered:
        words = f"{one.network} finds {one.devices} of the {offered} devices that it finds on other nodes"
        yield PathFault((host,), words, "compare the network cards and their drivers with those of other nodes")
        return
    most = max((len(other.used_numbers) for other in alike), default=0)
    used = one.used_numbers
    why = _setting(site, host, one, {"NCCL_CROSS_NIC": (), "NCCL_TOPO_FILE": ()})
    alone = len(used) == 1 < one.devices and site.slots[host] >= (2 if why else one.devices)
    if used and (len(used) < most or alone):
        of = f" of {one.devices}" if one.devices else ""
        than = f", and {most} on other nodes" if len(used) < most else ""
        number = ", ".join(map(str, used[:_MOST_NAMED]))
        words = f"{one.network} uses its device {number} alone{of}{than}{f', by {why}' if why else ''}"
        cure = "take that setting away" if why else "compare the PCI topology with other nodes ('nvidia-smi topo -m')"
        yield PathFault((host,), words, cure)


def _alike(site: PathSite, host: str, other: str) -> bool:
    """Whether two nodes have the same GPUs, as far as both are known."""
    return site.gpus.get(host, "") == site.gpus.get(other, "")


def _indirect(site: PathSite, host: str, one: NcclPath, paths: Mapping[str, NcclPath]) -> Iterator[PathFault]:
    if any(_DIRECT in way for way in one.rails):
        return
    if NO_GPUDIRECT.search(site.gpus.get(host, "")):
        return
    over = _named(one.used or one.ports) or one.network
    why = _setting(
        site, host, one, {"NCCL_NET_GDR_LEVEL": (), "NCCL_DMABUF_ENABLE": ("1",), "NCCL_IB_CUDA_SUPPORT": ("1",)}
    )
    neighbours = (other for name, other in paths.items() if _alike(site, host, name) and other.network == one.network)
    if why:
        yield PathFault((host,), f"GPUDirect RDMA is off for {over}, by {why}", "take that setting away")
    elif one.not_direct or any(_DIRECT in way for other in neighbours for way in other.rails):
        cure = "load the module nvidia_peermem, or a driver and a kernel with DMA-BUF; see that ACS and IOMMU are off"
        yield PathFault((host,), f"GPUDirect RDMA is off for {_named(one.not_direct) or over}", cure)


def _unfit_gids(site: PathSite, host: str, one: NcclPath) -> Iterator[PathFault]:
    for number, (index, gid) in one.gids.items():
        port = one.numbers.get(number, "")
        table = site.gids.get(host, {}).get(port)
        if table is not None and index in table.unfit:
            why = _setting(site, host, one, {"NCCL_IB_GID_INDEX": ()})
            words = (
                f"NCCL takes GID {index} ({gid}) of {port}, which is {table.unfit[index]}{f', by {why}' if why else ''}"
            )
            right = f"index {table.index} is RoCE v2 for IPv4 ({table.gid})"
            cure = "take that setting away" if why else f"set NCCL_IB_GID_INDEX={table.index}, or fabric_pin_gid: true"
            yield PathFault((host,), words, f"{right}; {cure}")


def _setting(site: PathSite, host: str, one: NcclPath, names: Mapping[str, tuple[str, ...]]) -> str:
    """Return the first of these settings that somebody made, with its place; ``names`` have their harmless values."""
    for name, harmless in names.items():
        if name in one.settings and one.settings[name] not in harmless:
            return f"{name}={one.settings[name]}{_of(site, host, name)}"
    return ""


def _of(site: PathSite, host: str, name: str) -> str:
    """Return the place of a setting, such as ' of /etc/nccl.conf'; '' where it is not known."""
    place = site.settings.get(host, {}).get(name, "")
    return f" of {place}" if place else ""


# --- reading ----------------------------------------------------------------------------------------------------------


def together(found: Sequence[PathFault]) -> list[PathFault]:
    """Return each fault once, with all nodes that have it."""
    hosts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in found:
        hosts[one.words, one.cure] += one.hosts
    return [PathFault(tuple(names), words, cure) for (words, cure), names in hosts.items()]


def _carriers(value: Any) -> list[Carrier]:
    found = []
    for name, row in pairs(value):
        if isinstance(row, list) and len(row) == 3 and all(type(n) is int and n >= 0 for n in row[:2]):  # noqa: PLR2004
            found.append(carrier(name, row[0], row[1], str(row[2])))
    return found


def _device(port: str) -> str:
    return port.partition(":")[0]


def _named(ports: Iterable[str]) -> str:
    return and_more(tuple(ports), _MOST_NAMED)


# --- The way that NCCL's connections take on one node, as its ranks told it of NCCL's log (``nccl_log.py``) -----------

NET, _SOCKET = "NET/", "NET/Socket"
_RDMA_PLUGIN = "NET/NCCL RDMA Plugin"  # HPC-X's plugin, whose older name is IBext
_MOST_DIGITS = 4
_DEVICE_OF_WAY = re.compile(r"NET/[^/]+/([0-9]{1,6})(?![0-9])")


@dataclass(frozen=True)
class NcclPath:
    """What NCCL's log says on one node, of all its ranks together."""

    network: str = ""
    ports: tuple[str, ...] = ()  # mlx5_0:1, in the order of NCCL's numbers
    numbers: Mapping[int, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    ways: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    not_direct: tuple[str, ...] = ()
    gids: Mapping[int, tuple[int, str]] = field(default_factory=dict)  # index and GID by the number of the port
    no_device: bool = False
    named: str = "IB"  # the network whose devices ``numbers`` names; a plugin built on NCCL's own begins so too
    devices: int = 0  # that a plugin offers, 0 where it does not tell
    told: int = 0  # ranks of the node that told it
    ring: tuple[int, ...] = ()  # ranks in the order of the first ring, where this node's ranks told it

    def via(self, begin: str) -> tuple[str, ...]:
        """Return the ways between nodes that begin so."""
        return tuple(way for way in self.ways if way.startswith(begin))

    @property
    def is_socket(self) -> bool:
        """Whether connections between nodes go over sockets; with NVLink between nodes there may be none."""
        return bool(self.via(_SOCKET)) or (self.network == "Socket" and not self.ways)

    @property
    def rails(self) -> tuple[str, ...]:
        """The ways over a network of devices that have numbers: NCCL's own RDMA, or a plugin's."""
        return () if self.is_socket else self.via(NET)

    @property
    def used_numbers(self) -> tuple[int, ...]:
        """The numbers of the devices that carry connections."""
        return tuple(sorted({int(number) for way in self.rails if (number := _number(way))}))

    @property
    def used(self) -> tuple[str, ...]:
        """The RDMA ports that carry connections, where the log names them."""
        numbers = self.used_numbers if self.has_names else ()
        return unique(self.numbers[number] for number in numbers if number in self.numbers)

    @property
    def has_names(self) -> bool:
        """Whether the devices that carry connections are those that the log names."""
        begins = (f"{NET}{self.named}", _RDMA_PLUGIN)
        return bool(self.numbers) and any(way.startswith(begins) for way in self.rails)


def joined(events: Sequence[Mapping[str, Any]]) -> NcclPath:
    """Return what the ranks of one node told; a part of another form is passed over."""
    numbers: dict[int, str] = {}
    ways: dict[str, int] = defaultdict(int)
    settings: dict[str, str] = {}
    interfaces: list[str] = []
    closed: list[str] = []
    gids: dict[int, tuple[int, str]] = {}
    devices = 0
    ring: tuple[int, ...] = ()
    for event in events:
        for number, name in pairs(event.get("hcas")):
            if _is_number(number):
                numbers[int(number)] = str(name).partition("/")[0]
        for number, told in pairs(event.get("gids")):
            if _is_number(number) and isinstance(told, list) and [type(part) for part in told] == [int, str]:
                gids[int(number)] = (told[0], told[1])
        for way, count in pairs(event.get("ways")):
            ways[way] += count if type(count) is int else 0
        settings |= {name: str(value) for name, value in pairs(event.get("settings"))}
        listed = event.get("interfaces")
        interfaces += [str(name) for name in listed] if isinstance(listed, list) else []
        closed += [name for name, on in pairs(event.get("direct")) if on is False]
        devices = max(devices, _count(event.get("devices")))
        ring = ring or _order(event.get("ring"))
    return NcclPath(
        network=next((str(event["network"]) for event in events if event.get("network")), ""),
        named=next((str(event["named"]) for event in events if event.get("named")), "IB"),
        ports=unique(numbers[number] for number in sorted(numbers)),
        numbers=numbers,
        interfaces=unique(interfaces),
        ways=dict(ways),
        settings=settings,
        not_direct=unique(name for name in closed if not name.startswith("lo")),
        no_device=any(event.get("no_device") is True for event in events),
        gids=gids,
        devices=devices,
        told=len(events),
        ring=ring,
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _order(value: Any) -> tuple[int, ...]:
    """Return a list of ranks, () for anything else."""
    listed = value if isinstance(value, list) else []
    return tuple(listed) if all(type(rank) is int for rank in listed) else ()


def pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a dict, [] of anything else."""
    return list(value.items()) if isinstance(value, dict) else []


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < _MOST_DIGITS


def _number(way: str) -> str:
    """Return the number of the device in a way such as ``NET/IB/0(1)/GDRDMA``, '' without one."""
    match = _DEVICE_OF_WAY.match(way)
    return match.group(1) if match else ""


def unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
