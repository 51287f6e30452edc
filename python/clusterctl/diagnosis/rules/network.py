"""Rules of networks: is there one in which any port of a node reaches any other, and what are its interfaces worth?

Interfaces are held against those of other nodes: speed, duplex, a lost carrier, and members of bonds that are down. One
that is off, or without a carrier on every node, is meant to be so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules.engines import groups, unlike
from clusterctl.diagnosis.rules.evidence import FEW_PAIRS, blame, ends, is_everywhere, shown
from clusterctl.diagnosis.rules.table import BONDS
from clusterctl.diagnosis.skew import PROVISION, artifact, compare, provisioned
from clusterctl.launch.mpirun_job import active_devices, over_tcp
from clusterctl.model import fabric, nodeset
from clusterctl.model.findings import Finding, Severity
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from clusterctl.diagnosis.rules.evidence import Pair, View
    from clusterctl.model.fabric import Network, PairKind, PairResult
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hardware import Hardware
    from clusterctl.model.network_facts import Interface

_SOFTWARE = frozenset({"bridge", "tun", "virtual"})  # kinds of interfaces that programs make on their own
_SHOWN_RULES = 2
_SHOWN_PORTS = 4
MORE_NEIGHBOURS = (
    "set net.ipv4.neigh.default.gc_thresh2 and gc_thresh3, and those of ipv6, to some times the number of machines on "
    "the network, for example 4096 and 8192, in a file of /etc/sysctl.d"
)
_NEARLY = 0.8  # of a full table: gateways and other machines are in it too
_BY_PORT = frozenset({"refused", "rejected", "timeout"})
_SAYS_WHY = frozenset({"error", "rejected", "no_route"})
_WORDS: Mapping[PairKind, str] = {
    "refused": "are refused",
    "rejected": "are rejected",
    "no_route": "are stopped by the source's own kernel",
    "timeout": "time out",
    "cut": "carry small packets and lose large ones",
    "wrong_source": "arrive with another source address",
    "wrong_node": "are answered by another node",
    "error": "could not be tried",
}
_OPEN = (
    "let the firewall pass TCP to all ports between nodes: MPI and NCCL listen on ephemeral ones; "
    "fabric_open_firewall: true does it in ufw and firewalld"
)
NO_WAY_OUT = (
    "look there at 'ip route get' with the target's address, and at rules of SELinux and AppArmor; where no port is "
    "free, at net.ipv4.ip_local_port_range and 'ss -s'"
)
_CURES: Mapping[PairKind, str] = {
    "refused": _OPEN,
    "rejected": f"{_OPEN}; without a firewall, see that the address answers ('ip neigh' at the source)",
    "no_route": NO_WAY_OUT,
    "timeout": _OPEN,
    "cut": (
        "set the same MTU on both interfaces and on all switches and tunnels between them, and let ICMP pass that asks "
        "for fragments; 'ping -M do -s SIZE' finds the largest size that passes, to which headers of 28 bytes are added"
    ),
    "wrong_source": "look for address translation or a route over another interface between them",
    "wrong_node": "look for an address that two machines have",
    "error": "see that the nodes answer, and run doctor again",
}


_AGAIN = "'clusterctl provision' proves the network anew"


def findings(view: View) -> Iterator[Finding]:
    yield from _duplicates(view)
    yield from _cards(view.nodes)
    yield from _missing(view.nodes)
    yield from _recorded(view.nodes)
    yield from _carriers(view.nodes)
    network, problem = _judged(view)
    if problem and all(is_software for _address, _name, is_software in _shared(view)):  # else it follows from that
        yield problem
    if network is not None:
        yield from _connections(view, network)
        yield from _links(view, network)
        yield from _neighbours(view, network)
    yield from _rdma(view)


def between(view: View) -> Iterator[Finding]:
    """Return which connections between nodes fail in the network that jobs go over."""
    network, _ = _judged(view)
    if network is not None:
        yield from _connections(view, network)
        for one in view.candidates.cables if view.candidates else ():
            yield from _connections(view, one)


def of_jobs(view: View) -> str:
    """Return the key of the network that jobs go over, '' where there is none."""
    network, _ = _judged(view)
    return network.key if network is not None else ""


def _judged(view: View) -> tuple[Network | None, Finding | None]:
    """Return the network that jobs go over: the one that was written down, else the one that would be."""
    everybody = tuple(view.nodes)
    if view.pinned:
        return None, Finding("network", "error", everybody, view.pinned, "correct fabric_cidr or fabric_interfaces")
    found = view.candidates
    if found is None or len(view.nodes) < 2:  # noqa: PLR2004 - a network joins two
        return None, None
    written = {node.fabric.cidrs for node in view.nodes.values() if node.fabric is not None}
    if len(written) == 1:
        cidrs = next(iter(written))
        network = next((one for one in found.networks if set(one.cidrs) == set(cidrs)), None)
        if network is None:
            cause = f"jobs are told to use {', '.join(cidrs)}, and not every node has an address of its own there"
            return None, Finding("network", "error", everybody, f"{cause} ({_why(view)})", PROVISION)
        return network, None
    if not found.networks:
        cause = f"no network is common to them ({_why(view)})"
        return None, Finding("network", "error", everybody, cause, "give every node an address in one network")
    return fabric.decide(found, view.pairs).network or found.networks[0], None


def _why(view: View) -> str:
    rejected = view.candidates.rejected if view.candidates else ()
    telling = [f"{one.network} on {nodeset.folded(one.hosts)}: {one.reason}" for one in rejected]
    return "; ".join(telling[:3]) or "there is none that is up"


@dataclass(frozen=True)
class _Failures:
    """Connections that failed in one way.

    ``passing`` has the ports that pass, by target, where some ports alone are closed.
    """

    network: Network
    kind: PairKind
    failed: Mapping[Pair, PairResult]
    tried: Sequence[Pair]
    passing: Mapping[str, Collection[int]]

    @property
    def check(self) -> str:
        return "network" if self.kind == "error" else "ports"

    @property
    def severity(self) -> Severity:
        return "warning" if self.kind == "error" else "error"

    def finding(self, view: View, hosts: tuple[str, ...], where: str, pairs: Iterable[Pair]) -> Finding:
        """Return the finding about these pairs; ``where`` says between whom, with a space before it."""
        its = [self.failed[pair] for pair in pairs]
        cause = f"connections{where} in {self.network.key} {_WORDS[self.kind]}{self._why(its)}{self._ports(its)}"
        cause += _rule(view, [(one.source, one.target) for one in its])
        return Finding(self.check, self.severity, hosts, cause, _CURES[self.kind])

    def _why(self, its: Sequence[PairResult]) -> str:
        told = list(dict.fromkeys(one.problem for one in its if one.problem)) if self.kind in _SAYS_WHY else []
        return f" ({and_more(told, 1)})" if told else ""

    def _ports(self, its: Sequence[PairResult]) -> str:
        if not self.passing:
            return ""
        closed = {port for one in its for port in one.closed}
        passing = {port for target in {one.target for one in its} for port in self.passing.get(target, ())} - closed
        return f" on {_ports(sorted(closed))}, and come through on {_ports(sorted(passing))}"


def _ports(numbers: Sequence[int]) -> str:
    if len(numbers) > _SHOWN_PORTS:
        return f"{len(numbers)} ports from {numbers[0]} to {numbers[-1]}"
    return f"port{'s' if len(numbers) > 1 else ''} {and_more(map(str, numbers), _SHOWN_PORTS)}"


def _failures(view: View, network: Network) -> Iterator[_Failures]:
    its = [one for one in view.pairs if one.network == network.key]
    stopped = {(one.target, one.source) for one in its if one.kind == "no_route"}  # no answer leaves its source either
    its = [one for one in its if one.kind != "timeout" or (one.source, one.target) not in stopped]
    passing: dict[str, set[int]] = defaultdict(set)
    for one in its:
        passing[one.target].update(one.open)

    def is_partial(one: PairResult) -> bool:
        """Whether its target has ports that pass, and those that fail here pass for nobody."""
        passed = passing[one.target]
        return one.kind in _BY_PORT and bool(passed and one.closed) and passed.isdisjoint(one.closed)

    found: dict[tuple[PairKind, bool], dict[Pair, PairResult]] = defaultdict(dict)
    for one in its:
        if one.kind != "ok":
            found[one.kind, is_partial(one)][one.source, one.target] = one
    for (kind, partial), failed in found.items():
        closed: dict[str, set[int]] = defaultdict(set)
        for one in failed.values():
            closed[one.target].update(one.closed)
        tried = [  # of some ports, only who tried one of them can tell
            (one.source, one.target)
            for one in its
            if not partial or closed[one.target].intersection((*one.closed, *one.open))
        ]
        open_ports = {target: passing[target] for target in closed} if partial else {}
        yield _Failures(network, kind, failed, tried, open_ports)


def _connections(view: View, network: Network) -> Iterator[Finding]:
    for failures in _failures(view, network):
        failed, tried = failures.failed, failures.tried
        targets = {target for _, target in failed}
        if len(targets) * 2 > len(view.nodes) and is_everywhere(len(failed), len(tried), len(view.nodes)):
            yield failures.finding(view, ends(failed), " between them", failed)
            continue
        blamed, rest = blame(failed, len(view.nodes), tried)
        for one in blamed:
            others = nodeset.folded(one.others)
            where = f" from {others} to it" if one.role == "target" else f" from it to {others}"
            its = [(other, one.host) if one.role == "target" else (one.host, other) for other in one.others]
            yield failures.finding(view, (one.host,), where, its)
        yield from _alone(view, failures, rest)


def _rule(view: View, pairs: Iterable[Pair]) -> str:
    """Return the rules of the targets' firewalls that stop these connections, as a clause; '' where none is known."""
    by_rule: dict[str, dict[str, None]] = defaultdict(dict)
    for pair in pairs:
        if pair in view.firewalls:
            by_rule[view.firewalls[pair]][pair[1]] = None
    told = [f"on {nodeset.folded(targets)} {rule}" for rule, targets in by_rule.items()]
    return f"; {and_more(told, _SHOWN_RULES, '; ')}" if told else ""


def _alone(view: View, failures: _Failures, rest: Sequence[Pair]) -> Iterator[Finding]:
    """Tell of two nodes that get on with others: one line where it is both ways, and one where there are many."""
    if len({frozenset(pair) for pair in rest}) > FEW_PAIRS:
        yield failures.finding(view, ends(rest), f" {shown(rest)}", rest)
        return
    told: set[Pair] = set()
    for source, target in rest:
        if (source, target) in told:
            continue
        told |= {(source, target), (target, source)}
        both = (target, source) in rest
        where = f" between {source} and {target}" if both else f" from {source} to {target}"
        its = [(source, target), (target, source)] if both else [(source, target)]
        # What stops at the source's own kernel is not the target's fault.
        hosts = (source,) if failures.kind == "no_route" and not both else (source, target)
        yield failures.finding(view, hosts, where, its)


def _recorded(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    written = {host: ", ".join(node.fabric.cidrs) for host, node in nodes.items() if node.fabric is not None}
    yield from compare("network", "error", "the network that jobs are told to use", written)


def _carriers(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name rails and cables on record that are down or have lost their address; jobs would wait there."""
    carrying = {host: node.fabric.carriers for host, node in nodes.items() if node.fabric is not None}
    for host, carriers in carrying.items():
        for one in carriers:
            link = _link(nodes[host], one.interface)
            if link is None:
                what = "is gone"
            elif not (link.up and link.carrier):
                what = "is down"
            elif one.address not in {entry.address for entry in link.addresses}:
                what = f"has no longer the address {one.address}"
            else:
                continue
            there = [name for name, its in carrying.items() if one.cidr in {each.cidr for each in its}]
            others = nodeset.folded(name for name in there if name != host)
            known = nodes[host].fabric
            kind = "cable" if known is not None and fabric.over_cables(known) else "rail"
            cause = f"{one.interface} {what}, the {kind} in {one.cidr} that carries messages to {others}"
            yield Finding("network", "error", (host,), cause, f"bring it up again; without it, {_AGAIN}")


def _duplicates(view: View) -> Iterator[Finding]:
    """Name addresses that several nodes have: jobs that try them reach the wrong machine, often themselves."""
    for (address, name, is_software), hosts in _shared(view).items():
        if not is_software:
            cause = f"all have the address {address} ({name})"
            yield Finding("network", "error", hosts, cause, "give each machine an address of its own")
            continue
        loose = tuple(host for host in hosts if view.nodes[host].fabric is None)
        if loose:  # jobs may try it
            severity: Severity = "error" if any(provisioned(view.nodes[host]) for host in loose) else "warning"
            cause = f"{name} has the address {address} on each of them, and Open MPI and NCCL would try it"
            cure = "run 'clusterctl provision', whose role fabric tells them the network that joins the nodes"
            yield Finding("network", severity, loose, cause, cure)


def _cards(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name cards of one node with the same address, and RDMA cards without a driver."""
    for host, node in nodes.items():
        for address, names in fabric.own_twins(node).items():
            cause = f"{' and '.join(names)} have the same address {address}"
            yield Finding("network", "error", (host,), cause, fabric.TWINS_CURE)
        if cards := node.driverless_cards:
            cause, cure = fabric.idle_cards(" and ".join(cards), len(cards))
            yield Finding("rdma", "warning", (host,), cause, cure)


def notes(view: View) -> Iterator[str]:
    """Tell of docker0 and the like where jobs are told another network, and of link-local networks left out."""
    written = {cidr for node in view.nodes.values() if node.fabric is not None for cidr in node.fabric.cidrs}
    for one in view.candidates.rejected if view.candidates else ():
        if one.on_link and written.isdisjoint(one.network.split()):
            yield f"{one.network} on {nodeset.folded(one.hosts)} is link-local, and carries no jobs: {one.reason}."
    for (address, name, is_software), hosts in _shared(view).items():
        networks = {cidr for host in hosts for cidr in getattr(view.nodes[host].fabric, "cidrs", ())}
        if is_software and networks and all(view.nodes[host].fabric for host in hosts):
            same = f"{name} has the address {address} on each of {nodeset.folded(hosts)}"
            yield f"{same}; Open MPI and NCCL are told to use {', '.join(sorted(networks))}, other programs are not."


def _shared(view: View) -> dict[tuple[str, str, bool], tuple[str, ...]]:
    """Return who has the same address: by address, interface, and whether that is one that software makes."""
    having: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for host, node in view.nodes.items():
        for link in node.interfaces:
            for entry in link.addresses:
                if link.up and link.kind != "loopback" and entry.family == 4 and entry.scope == "global":  # noqa: PLR2004
                    having[entry.address, link.name, link.kind in _SOFTWARE].append(host)
    return {key: tuple(hosts) for key, hosts in having.items() if len(hosts) > 1 and not _one_machine(view, hosts)}


def _missing(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name who has no address in a network in which most nodes have one, and fewer networks than any of those.

    A node in as many networks may stand in another rack, and is reached by routing.
    """
    having: dict[str, dict[str, str]] = defaultdict(dict)
    for host, node in nodes.items():
        for link in node.interfaces:
            for entry in link.addresses:
                if link.up and link.kind not in {"loopback", *_SOFTWARE} and entry.family == 4:  # noqa: PLR2004
                    network = fabric.network_or_none(f"{entry.address}/{entry.prefix}")
                    if network is not None:
                        having[str(network)][host] = link.name
    counts = Counter(host for links in having.values() for host in links)
    for cidr, links in having.items():
        least = min(counts[host] for host in links)
        without = tuple(host for host in nodes if host not in links and counts[host] < least)
        if without and len(links) > 2 and len(links) * 2 > len(nodes):  # noqa: PLR2004 - two do not make a habit
            names = "/".join(sorted(set(links.values())))
            cause = f"it has no address in {cidr} ({names}), in which {nodeset.folded(links)} have one"
            yield Finding("network", "warning", without, cause, "bring that interface up there, if jobs are to use it")


def _one_machine(view: View, hosts: Sequence[str]) -> bool:
    return len({(view.nodes[host].hostname, view.nodes[host].ssh.host_keys) for host in hosts}) == 1


def _links(view: View, network: Network) -> Iterator[Finding]:
    links = {host: _link(view.nodes[host], name) for host, name in network.interfaces.items() if host in view.nodes}
    speeds = {host: f"{link.speed_mbps} Mb/s" if link and link.speed_mbps else "" for host, link in links.items()}
    mtus = {host: str(link.mtu) if link and link.mtu else "" for host, link in links.items()}
    what = f"of the interface in {network.key}"
    yield from compare("network", "warning", f"the speed {what}", speeds, "look at the cable and at the switch's port")
    fix = mtu_fix(network.interfaces.values())
    cure = "set the same MTU on all nodes and on the switch"
    yield from compare("network", "warning", f"the MTU {what}", mtus, cure, fix)


def _neighbours(view: View, network: Network) -> Iterator[Finding]:
    """Hold the kernel's table of neighbours against the nodes in a subnet; one that is full loses connections."""
    for cidr in network.cidrs:
        subnet = fabric.network(cidr)
        its = [host for host, address in network.addresses.items() if fabric.parsed(address) in subnet]
        limits: dict[int, list[str]] = defaultdict(list)
        for host in its:
            looks = view.hardware.get(host)
            limit = looks.now.number("node", f"IPv{subnet.version} neighbours") if looks else None
            if limit is not None and len(its) > limit * _NEARLY:
                limits[int(limit)].append(host)
        for limit, hosts in limits.items():
            cause = f"the kernel keeps {limit} neighbours (gc_thresh3), and {len(its)} nodes are in {cidr}"
            severity: Severity = "error" if len(its) > limit else "warning"
            effect = "connections time out at random" if severity == "error" else "a few more make connections time out"
            yield Finding("network", severity, tuple(hosts), f"{cause}: {effect}", MORE_NEIGHBOURS)


def _link(node: NodeFacts, name: str) -> Interface | None:
    return next((link for link in node.interfaces if link.name == name), None)


def _rdma(view: View) -> Iterator[Finding]:
    for host, node in view.nodes.items():
        for choice in fabric.rdma(node):
            if choice.state == "ACTIVE" and choice.link_layer == "Ethernet" and choice.gid_index is None:
                cause = f"{choice.device} port {choice.port} has no RoCE v2 GID for IPv4, so RDMA over it is not routed"
                cure = "give its interface an IPv4 address, and switch on RoCE v2"
                yield Finding("rdma", "error", (host,), cause, cure)
    yield from _without_ucx(view.nodes)
    looked = {host for host, looks in view.hardware.items() if looks.now.devices("rdma_port")}
    yield from _rdma_ports({host: node for host, node in view.nodes.items() if host not in looked})


def _without_ucx(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Find an Open MPI without UCX where every node has an RDMA port that is up, so that MPI goes over TCP."""
    if len(nodes) < 2 or not all(map(active_devices, nodes.values())):  # noqa: PLR2004 - one node has no way to others
        return
    for host, node in nodes.items():
        installed = artifact(node, "openmpi")
        if installed is not None and installed.ok and not installed.has_ucx:
            cause = f"{over_tcp(node)}: Open MPI was built without UCX"
            yield Finding(
                "rdma", "warning", (host,), cause, "set openmpi_ucx to auto and run 'clusterctl provision' again"
            )


def _rdma_ports(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare RDMA ports of one name between nodes; a port that is down on every node is unused.

    The rules of ``rdma`` judge nodes whose hardware was looked at.
    """
    states: dict[str, dict[str, str]] = defaultdict(dict)
    rates: dict[str, dict[str, str]] = defaultdict(dict)
    for host, node in nodes.items():
        for device in node.rdma:
            for port in device.ports:
                name = f"{device.name} port {port.number}"
                states[name][host] = port.state or "in no known state"
                if port.state == "ACTIVE" and port.rate_gbps:
                    rates[name][host] = f"{port.rate_gbps:g} Gb/s ({port.link_layer})"
    for name, found in states.items():
        active = [host for host, state in found.items() if state == "ACTIVE"]
        for state in sorted(set(found.values()) - {"ACTIVE"}) if active else ():
            down = tuple(host for host, other in found.items() if other == state)
            cause = f"RDMA {name} is {state}, and ACTIVE on {nodeset.folded(active)}"
            cure = "look at the cable and at the switch, and on InfiniBand at the subnet manager"
            yield Finding("rdma", "error", down, cause, cure)
    for name, found in rates.items():
        yield from compare(
            "rdma", "warning", f"the rate of RDMA {name}", found, "look at the cable and at the switch's port"
        )


def mtu_fix(interfaces: Iterable[str]) -> Callable[[str], tuple[tuple[str, ...], ...]]:
    """Return what makes the command that sets the usual MTU, where the interface has the same name on all nodes."""
    names = set(interfaces) - {""}

    def commands(usual: str) -> tuple[tuple[str, ...], ...]:
        is_one = len(names) == 1 and usual.isdecimal()
        return tuple(("ip", "link", "set", "dev", name, "mtu", usual) for name in names) if is_one else ()

    return commands


# --- interfaces -------------------------------------------------------------------------------------------------------

_PORT = "look at the cable, and at the speed that the switch's port allows"


def interfaces(view: View) -> Iterator[Finding]:
    """Return what differs between interfaces of one name and one driver, and what is wrong with bonds."""
    network, _ = _judged(view)
    judged = frozenset(network.interfaces.items() if network is not None else ())  # their speeds are compared above
    for seen in groups(view, least=1):
        for (device, _driver), hosts in _alike(seen).items():
            yield from _interface(device, {host: seen[host] for host in hosts}, judged)
        for host, look in seen.items():
            yield from _members(host, look)
    yield from unlike(view, "bonds", BONDS, least=1)


def _interface(device: str, looks: Mapping[str, Hardware], judged: frozenset[tuple[str, str]]) -> Iterator[Finding]:
    up = {host: look for host, look in looks.items() if look.text("interface", "operstate", device) == "up"}
    yield from _carrier(device, looks, list(up))
    speeds = {
        host: f"{speed} Mb/s"
        for host, look in up.items()
        if (speed := look.number("interface", "speed", device)) and (host, device) not in judged
    }
    yield from compare("interfaces", "warning", f"the speed of {device}", speeds, _PORT)
    for host, look in up.items():
        if look.text("interface", "duplex", device) == "half":
            cause = f"{device} runs in half duplex"
            yield Finding("interfaces", "warning", (host,), cause, "set both ends to negotiate by themselves")


def _alike(seen: Mapping[str, Hardware]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, look in seen.items():
        for device, driver in look.texts("interface", "driver").items():
            found[device, driver].append(host)
    return found


def _carrier(device: str, looks: Mapping[str, Hardware], up: list[str]) -> Iterator[Finding]:
    for host, look in looks.items():
        wanted = look.flag("interface", "wanted_up", device)
        lost = look.text("interface", "operstate", device) == "down"
        others = [other for other in up if other != host]
        if wanted and lost and len(others) > 1 and len(others) * 2 > len(looks):
            cause = f"{device} is switched on and has no carrier, and it is up on {nodeset.folded(others)}"
            yield Finding("interfaces", "warning", (host,), cause, "look at the cable and at the switch's port")


def _members(host: str, look: Hardware) -> Iterator[Finding]:
    bonds, grouped = look.texts("bond_member", "bond"), look.flags("bond_member", "in_group")
    for member, state in look.texts("bond_member", "mii_status").items():
        bond = bonds.get(member, "a bond")
        if state != "up":
            cause = f"{member} of {bond} is {state}, so the bond has lost a link"
            yield Finding("bonds", "warning", (host,), cause, "look at the cable and at the switch's port")
        elif grouped.get(member) is False:
            cause = f"{member} of {bond} is up and outside its LACP group, so it carries nothing"
            yield Finding("bonds", "warning", (host,), cause, "put both ports of the switch into one LACP group")
