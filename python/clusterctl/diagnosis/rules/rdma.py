"""Rules of RDMA and links: ports beside those of other nodes, RoCE without loss, counters of errors, and the fabric.

Ports are compared between nodes with equal boards. A total of a counter tells nothing, since it may be years old.
Growth is that since the first look of this run, or since the last run where the node was not restarted.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.diagnosis.rules.engines import SHOWN, above, groups, growth, span, spread, stands_out, unlike, without
from clusterctl.diagnosis.rules.network import mtu_fix
from clusterctl.diagnosis.rules.table import BESIDE_PEERS, FABRIC_PORTS, LIMITS, LOSSES, RDMA_BOARDS, SATURATED, SUMS
from clusterctl.diagnosis.skew import compare
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, majority
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from clusterctl.diagnosis.rules.engines import Growing
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, HardwareLooks

_CABLE = "reseat or replace the cable, then look at the port of the switch"
_WAITING = frozenset({"INIT", "ARMED"})  # the link is up, and the subnet manager has not activated it


def ports(view: View) -> Iterator[Finding]:
    """Return what differs, nodes without a card, and ports of InfiniBand without a subnet manager or on one lane."""
    yield from without(view, "rdma_device", "rdma_ports", "rdma", "RDMA card")
    yield from unlike(view, "rdma", RDMA_BOARDS, least=1)
    for group in groups(view, least=1):
        seen = {host: look for host, look in group.items() if look.devices("rdma_device")}
        yield from _missing_devices(seen)
        yield from _firmware(seen)
        states = _by_port(seen, "state")
        for port, found in states.items():
            yield from _state(port, found, seen)
        yield from _rates(seen, states)
        yield from _settings(seen, states)


def _by_port(seen: Mapping[str, Hardware], name: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for host, look in seen.items():
        for port, value in look.values("rdma_port", name).items():
            found[port][host] = str(value)
    return found


def _missing_devices(seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Name devices that most nodes have; two machines with as many devices in other slots are alike."""
    places = {host: _places(look) for host, look in seen.items() if not look.odd_ones("rdma_device", "place")}
    found = majority({host: frozenset(own) for host, own in places.items()})
    if found.usual is None:
        counts = {host: f"{len(own)} devices" for host, own in places.items()}
        cure = "look with 'lspci' and in the kernel's log for a card that dropped out"
        yield from compare("rdma", "error", "the number of RDMA devices", counts, cure)
        return
    for own, hosts in found.others.items():
        lacking = sorted(found.usual - own)
        if len(own) < len(found.usual):
            usual = next(own for own in places.values() if frozenset(own) == found.usual)
            shown = and_more((f"{usual[place]} ({place})" for place in lacking), SHOWN)
            cause = f"{len(own)} RDMA devices, and {len(found.usual)} on most nodes; missing: {shown}"
            yield Finding(
                "rdma", "error", hosts, cause, "look with 'lspci' and in the kernel's log, then reseat the card"
            )


def _places(look: Hardware) -> dict[str, str]:
    """Return the names of devices by their PCI address."""
    return {place or device: device for device, place in look.texts("rdma_device", "place").items()}


def _firmware(seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Compare the firmware of all cards of one board."""
    versions: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for host, look in seen.items():
        firmware = look.texts("rdma_device", "fw_ver")
        for device, board in look.texts("rdma_device", "board_id").items():
            if device in firmware:
                versions[board][host, device] = firmware[device]
    cure = "flash the same firmware on all cards of this board ('mlxfwmanager -u', 'flint')"
    for board, cards in versions.items():
        found = spread(cards)
        by_version = {version: tuple(dict.fromkeys(own for own, _ in held)) for version, held in found.others.items()}
        if by_version and found.usual is None:
            shown = ", ".join(f"{version} on {nodeset.folded(hosts)}" for version, hosts in by_version.items())
            cause = f"the firmware of cards of board {board} differs, with no majority: {shown}"
            yield Finding("firmware", "warning", tuple(dict.fromkeys(own for own, _ in cards)), cause, cure)
            continue
        for version, hosts in by_version.items():
            for host in hosts:
                shown = and_more((device for own, device in found.others[version] if own == host), SHOWN)
                cause = f"the firmware of {shown} (board {board}) is {version}, and {found.usual} on most"
                yield Finding("firmware", "warning", (host,), cause, cure)


def _state(port: str, found: Mapping[str, str], seen: Mapping[str, Hardware]) -> Iterator[Finding]:
    active = [host for host, state in found.items() if state == "ACTIVE"]
    for host, state in found.items():
        physical = seen[host].text("rdma_port", "phys_state", port) or "unknown"
        layer = seen[host].text("rdma_port", "link_layer", port)
        if state in _WAITING and layer == "InfiniBand":
            manager = seen[host].number("rdma_port", "sm_lid", port)
            why = (
                "no subnet manager has found it (SM lid 0)"
                if manager == 0
                else "the subnet manager has not activated it"
            )
            cause = f"RDMA {port} is {state}, its link is {physical}, and {why}"
            yield Finding("rdma", "error", (host,), cause, "start opensm, or the subnet manager of a switch ('sminfo')")
        elif state != "ACTIVE" and active:
            cause = f"RDMA {port} is {state} ({physical}), and ACTIVE on {nodeset.folded(active)}"
            cure = "switch it on ('ibportstate', 'ip link set')" if physical == "Disabled" else _CABLE
            fix = _switched_on(seen[host], port) if physical == "Disabled" else ()
            yield Finding("rdma", "error", (host,), cause, cure, fix)


def _switched_on(look: Hardware, port: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that enables a port: that of its interface, or that of its InfiniBand (ibportstate(8))."""
    interface, (device, _, number) = look.text("rdma_port", "interface", port), port.partition("/")
    if look.text("rdma_port", "link_layer", port) == "InfiniBand":
        return (("ibportstate", "-C", device, "-P", number, "-D", "0", number, "enable"),)
    return (("ip", "link", "set", "dev", interface, "up"),) if interface else ()


def _rates(seen: Mapping[str, Hardware], states: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    told: set[tuple[str, str]] = set()
    for port, found in states.items():
        rates = {host: _rate(seen[host], port) for host, state in found.items() if state == "ACTIVE"}
        for finding in compare("rdma", "warning", f"the rate of RDMA {port}", rates, _CABLE):
            told.update((host, port) for host in finding.hosts)
            yield finding
        for host, rate in rates.items():
            ports = seen[host]
            fabric = ports.text("rdma_port", "link_layer", port) == "InfiniBand"
            if fabric and ports.number("rdma_port", "width", port) == 1 and (host, port) not in told:
                cause = f"RDMA {port} runs on one lane: {rate}; a port of InfiniBand has four"
                yield Finding("rdma", "warning", (host,), cause, _CABLE)


def _rate(look: Hardware, port: str) -> str:
    if any(port in look.odd_ones("rdma_port", name) for name in ("rate_gbps", "width", "generation")):
        return ""
    rate, width = look.number("rdma_port", "rate_gbps", port), look.number("rdma_port", "width", port)
    if rate is None:
        return ""
    lanes = f" ({width:g}X {look.text('rdma_port', 'generation', port)}".rstrip() + ")" if width else ""
    return f"{rate:g} Gb/s{lanes}"


def _settings(seen: Mapping[str, Hardware], states: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Compare what the subnet manager, or the administrator of RoCE, has set on active ports."""
    for port, hosts in states.items():
        active = [seen_on for seen_on, state in hosts.items() if state == "ACTIVE"]
        layers = {host: seen[host].text("rdma_port", "link_layer", port) for host in active}
        fabric = [host for host in active if layers[host] == "InfiniBand"]
        cure = "set the MTU of the partition in the subnet manager (partitions.conf), and look at the port's own limit"
        yield from compare("rdma", "error", f"the active MTU of RDMA {port}", _mtus(seen, port, fabric), cure)
        keys = {host: seen[host].text("rdma_port", "pkeys", port) for host in active}
        cure = "make the port a member of the same partitions in the subnet manager (partitions.conf)"
        yield from compare("rdma", "error", f"the P_Key table of RDMA {port}", keys, cure)
        roce = {host: seen[host].text("rdma_port", "interface", port) for host in active}
        sizes = {host: str(seen[host].values("interface", "mtu").get(name, "")) for host, name in roce.items() if name}
        cure = "set the same MTU on all nodes and on the switch"
        what = f"the MTU of the interface of RDMA {port}"
        told: set[str] = set()
        for finding in compare("rdma", "warning", what, sizes, cure, mtu_fix(roce.values())):
            told.update(finding.hosts)
            yield finding
        cure = "restart the interface so that its RDMA port takes the interface's MTU, and look at the port's own limit"
        mtus = _mtus(seen, port, [host for host in active if host not in fabric])
        for finding in compare("rdma", "warning", f"the active MTU of RDMA {port}", mtus, cure):
            if not told.issuperset(finding.hosts):
                yield finding


def _mtus(seen: Mapping[str, Hardware], port: str, hosts: Iterable[str]) -> dict[str, str]:
    return {host: str(seen[host].values("rdma_port", "active_mtu").get(port, "")) for host in hosts}


# --- settings that keep RoCE free of loss: PFC, ECN and the trust state of each interface -----------------------------

_PRIORITIES = "01234567"
# Names of readings: what they are, and the command that sets them.
_SETTINGS = {
    "pfc": ("the priorities with PFC", "'dcb pfc set dev {interface} prio-pfc …' or 'mlnx_qos -i {interface} --pfc …'"),
    "trust": ("the trust state", "'mlnx_qos -i {interface} --trust dscp'"),
    "ecn_roce_np": ("the priorities with ECN (notification point)", "/sys/class/net/{interface}/ecn/roce_np/enable"),
    "ecn_roce_rp": ("the priorities with ECN (reaction point)", "/sys/class/net/{interface}/ecn/roce_rp/enable"),
}


def lossless(view: View) -> Iterator[Finding]:
    """Return the ports whose settings differ from those of most nodes. Names of interfaces may differ."""
    for group in groups(view, least=1):
        for name in _SETTINGS:
            yield from _compared(group, name)


def _compared(group: Mapping[str, Hardware], name: str) -> Iterator[Finding]:
    what, command = _SETTINGS[name]
    values: dict[str, dict[str, str]] = defaultdict(dict)
    interfaces: dict[str, str] = {}
    names: dict[str, set[str]] = defaultdict(set)
    for host, look in group.items():
        settings = look.texts("lossless", name)
        for port, interface in look.texts("rdma_port", "interface").items():
            if interface in settings:
                values[port][host] = settings[interface]
                interfaces[port] = interface
                names[port].add(interface)
    tool = "mlnx_qos" if any(look.texts("lossless", "trust") for look in group.values()) else "dcb"
    for port, found in values.items():
        cure = f"set the same on all nodes and on the switch: {command.format(interface=interfaces[port])}"
        fix = partial(lossless_commands, name, interfaces[port], tool) if len(names[port]) == 1 else lambda _usual: ()
        yield from compare("roce", "warning", f"{what} of {interfaces[port]} (RDMA {port})", found, cure, fix)


def lossless_commands(name: str, interface: str, tool: str, usual: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that give an interface the usual setting, with the tool that has read it."""
    if name == "trust":
        return (("mlnx_qos", "-i", interface, "--trust", usual),)
    on = set() if usual == "off" else set(usual.split(","))
    if on - set(_PRIORITIES):
        return ()
    if name != "pfc":
        folder = f"/sys/class/net/{interface}/ecn/{name.removeprefix('ecn_')}/enable"
        values = [(str(int(priority in on)), f"{folder}/{priority}") for priority in _PRIORITIES]
        return tuple(("sh", "-c", 'echo "$0" > "$1"', value, path) for value, path in values)
    if tool == "mlnx_qos":
        return ((tool, "-i", interface, "--pfc", ",".join(str(int(one in on)) for one in _PRIORITIES)),)
    states = [f"{priority}:{'on' if priority in on else 'off'}" for priority in _PRIORITIES]
    return (("dcb", "pfc", "set", "dev", interface, "prio-pfc", *states),)


# --- counters of links that grow faster than their limits -------------------------------------------------------------


def flapping(looks: HardwareLooks) -> set[str]:
    """Return the interfaces and RDMA devices of which :func:`counters` tells that their link was lost."""
    unused = _unused(looks)
    lost = above(looks, LOSSES)
    return {one.device.partition("/")[0] for one in lost if (one.kind, one.device) not in unused}


def counters(view: View) -> Iterator[Finding]:
    """Return one finding for each counter of a node that grows too fast, with the devices and the figures."""
    for host, looks in view.hardware.items():
        unused = _unused(looks)
        explained: set[str] = set()  # interfaces whose sums are told by what they sum
        for limits in (LIMITS, SUMS):
            found: dict[str, list[Growing]] = {}
            for one in above(looks, limits):
                if (one.kind, one.device) not in unused and not (limits is SUMS and one.device in explained):
                    found.setdefault(one.name, []).append(one)
            explained.update(one.device for grown in found.values() for one in grown if one.kind == "interface")
            for name, grown in found.items():
                limit = grown[0].limit
                shown = and_more((f"{one.device} by {one.how}" for one in grown), SHOWN)
                cause = f"{limit.what} grew ({name}): {shown}{limit.beside}"
                yield Finding("links", limit.severity, (host,), cause, limit.cure, source=limit.source)


def _unused(looks: HardwareLooks) -> set[tuple[str, str]]:
    """Return the interfaces that are switched off."""
    wanted = looks.now.flags("interface", "wanted_up")
    return {("interface", device) for device, up in wanted.items() if not up}


def counters_notes(view: View) -> Iterator[str]:
    """Return which counters tell nothing since they are at their highest value."""
    hosts: dict[str, list[str]] = {}
    for host, looks in view.hardware.items():
        for one in looks.now.counters:
            if one.kind == "rdma_port" and one.value == SATURATED.get(one.name):
                hosts.setdefault(f"{one.name} of {one.device}", []).append(host)
    for what, names in hosts.items():
        words = "is at its highest value and stays there, so its growth is unknown; 'perfquery -R' resets it"
        yield f"On {nodeset.folded(names)}, {what} {words}."


# --- lost packets and congestion, in relation to the traffic ----------------------------------------------------------

# Such counters grow on healthy nodes under load. One node counts only where it stands out among nodes that carry
# traffic on the same device, or where PFC is off on a port of RoCE that loses packets.
_TRAFFIC = 10_000  # packets between two looks; fewer say nothing of a share
_COUNT = 100
_LEAST_LOSS, _LEAST_CONGESTION = 1e-5, 1e-3  # shares of packets below which nobody feels it
_PEERS = 2
_LOSS_CURE = "set PFC for the priority of RoCE on the card and on the switch's ports, and look for a bad cable"
_LOAD_CURE = "look at what else uses this link, and at the PFC and ECN settings of its port of the switch"


class _Share(NamedTuple):
    grown: int
    share: float
    seconds: float


def congestion(view: View) -> Iterator[Finding]:
    """Return the ports that lose packets without PFC, and those that stand out."""
    for group in groups(view, least=1):
        yield from _of_group({host: view.hardware[host] for host in group})


def _of_group(group: Mapping[str, HardwareLooks]) -> Iterator[Finding]:
    shares = _shares(group)
    lossy: set[tuple[str, str]] = set()
    for (kind, device, name), hosts in shares.items():
        for host, one in hosts.items():
            interface = _without_pfc(group[host], device)
            if interface and BESIDE_PEERS[kind, name][1] and _is_much(one, _LEAST_LOSS) and (host, device) not in lossy:
                lossy.add((host, device))
                cause = f"{device} loses packets: {_share_words(name, one)}, and PFC is off on {interface}"
                yield Finding("roce", "warning", (host,), cause, _LOSS_CURE)
    yield from _odd(shares, lossy)


def _odd(shares: Mapping[tuple[str, str, str], Mapping[str, _Share]], lossy: set[tuple[str, str]]) -> Iterator[Finding]:
    told: set[tuple[str, str, bool]] = {(host, device, True) for host, device in lossy}
    for (kind, device, name), hosts in shares.items():
        is_loss = BESIDE_PEERS[kind, name][1]
        for host, one in hosts.items():
            is_much = _is_much(one, _LEAST_LOSS if is_loss else _LEAST_CONGESTION)
            if not is_much or len(hosts) <= _PEERS or (host, device, is_loss) in told:
                continue
            usual = stands_out(host, {peer: other.share for peer, other in hosts.items()})
            if usual is not None:
                told.add((host, device, is_loss))
                what = "loses packets" if is_loss else "is congested"
                cause = f"{device} {what}: {_share_words(name, one)}, and {usual:.2g} is the median of the other nodes"
                yield Finding("congestion", "warning", (host,), cause, _LOSS_CURE if is_loss else _LOAD_CURE)


def _is_much(one: _Share, least: float) -> bool:
    return one.grown >= _COUNT and one.share >= least


def _share_words(name: str, one: _Share) -> str:
    return f"{name} grew by {one.grown} in {span(one.seconds)}, {one.share:.2g} of its packets"


def _shares(group: Mapping[str, HardwareLooks]) -> dict[tuple[str, str, str], dict[str, _Share]]:
    """Return the growth of each counter in relation to the packets, by host, of those that carry traffic."""
    found: dict[tuple[str, str, str], dict[str, _Share]] = defaultdict(dict)
    for host, looks in group.items():
        grown = growth(looks.first, looks.now)
        for (kind, device, name), one in grown.items():
            packets = BESIDE_PEERS.get((kind, name))
            traffic = grown.get((kind, device, packets[0])) if packets else None
            if traffic and traffic.grown >= _TRAFFIC:
                found[kind, device, name][host] = _Share(one.grown, one.grown / traffic.grown, one.seconds)
    return found


def _without_pfc(looks: HardwareLooks, device: str) -> str:
    """Return the interface of a port of RoCE on which PFC is known to be off, '' if there is none."""
    interface = looks.now.text("rdma_port", "interface", device)
    return interface if looks.now.text("lossless", "pfc", interface) == "off" else ""


# --- the InfiniBand fabric: links that are slow, silent or gone, and ports of switches --------------------------------

_END = re.compile(r"(.+) port \d+ to (.+) port \d+")
_FABRIC_CURE = "reseat or replace the cable between them, then try another port of the switch"


def fabric(view: View) -> Iterator[Finding]:
    """Return one finding for each such link.

    It names the host at the link's end. The host that read the fabric is named beside it, unless the end shows the same
    of itself: a reader could make up what it says of others.
    """
    for reader, looks in view.hardware.items():
        yield from _slow(view.hardware, reader, looks.now)
        yield from _port_errors(view.hardware, reader, looks)
        yield from _lost(view.hardware, reader, looks.now)


def _slow(hosts: Mapping[str, HardwareLooks], reader: str, look: Hardware) -> Iterator[Finding]:
    """Name links that could run faster by what both ends can do, where most links of that kind do."""
    lanes, speeds = look.numbers("fabric_link", "lanes"), look.numbers("fabric_link", "lane_gbps")
    kinds, hints = look.texts("fabric_link", "ends"), look.texts("fabric_link", "could_be")
    rates = {link: (lanes[link], speeds[link]) for link in lanes if link in speeds and link in kinds}
    for kind in dict.fromkeys(kinds[link] for link in rates):
        alike = {link: rate for link, rate in rates.items() if kinds[link] == kind}
        usual, number = Counter(alike.values()).most_common(1)[0]
        for link, rate in alike.items():
            if hints.get(link) and rate[0] * rate[1] < usual[0] * usual[1] and number * 2 > len(alike):
                cause = f"the link of {link} runs at {_lanes(rate)}, and most such links at {_lanes(usual)}"
                named, whose = _accused(hosts, (reader,), link, partial(_runs_at, rate=rate))
                yield Finding("fabric", "warning", named, cause + whose, _FABRIC_CURE)


def _lanes(rate: tuple[float, float]) -> str:
    return f"{rate[0]:g}X {rate[1]:g} Gb/s"


def _lost(hosts: Mapping[str, HardwareLooks], reader: str, look: Hardware) -> Iterator[Finding]:
    """Name links that an earlier look saw and this one does not, and ports whose other end gives no answer."""
    links, kinds = look.numbers("fabric_link", "lanes"), look.texts("fabric_link", "ends")
    if not links:
        return
    witness, before = _before(hosts)
    there = {end for link in links for end in _ends(link)}
    told: set[str] = set()
    for port in (port for port, ends in kinds.items() if ends == "silent"):
        link = next((one for one in before if port in _ends(one)), port)
        if link not in told:
            told.add(link)
            cause = f"the link of {link} is up, and what is at its other end gives no answer: it loses packets"
            named, whose = _accused(hosts, (reader,), link)
            yield Finding("fabric", "error", named, cause + whose, _FABRIC_CURE)
    for link in before:
        if link not in told and there.isdisjoint(_ends(link)):
            cause = f"the link of {link} is gone; an earlier look saw it"
            named, whose = _accused(hosts, dict.fromkeys((reader, witness)), link, _has_a_port_without_link)
            yield Finding("fabric", "error", named, cause + whose, _FABRIC_CURE)


def _before(hosts: Mapping[str, HardwareLooks]) -> tuple[str, tuple[str, ...]]:
    """Return the host that read the fabric last in an earlier run, and its links; one host reads it in each run."""
    looks = [(host, looks.past[-1]) for host, looks in hosts.items() if looks.past]
    seen = [(look.time, host, tuple(look.numbers("fabric_link", "lanes"))) for host, look in looks]
    return max((one for one in seen if one[2]), default=(0.0, "", ()))[1:]


def _ends(link: str) -> tuple[str, ...]:
    near, _, far = link.partition(" to ")
    return (near, far) if far else (near,)


def _port_errors(hosts: Mapping[str, HardwareLooks], reader: str, looks: HardwareLooks) -> Iterator[Finding]:
    for one in above(looks, FABRIC_PORTS):
        if not _own(hosts, one.device):
            cause = f"{one.limit.what} grew ({one.name}): {one.device} by {one.how}{one.limit.beside}"
            named, whose = _accused(hosts, (reader,), one.device)
            yield replace(one.finding("fabric", reader, cause + whose), hosts=named)


def _own(hosts: Collection[str], device: str) -> bool:
    """Whether the port is a host's own, whose counters are read on the host."""
    found = _END.fullmatch(device)
    return found is not None and _named(hosts, found.group(1)) != ""


def _accused(
    hosts: Mapping[str, HardwareLooks],
    readers: Iterable[str],
    device: str,
    shows_it: Callable[[Hardware], bool] = lambda _own_look: False,
) -> tuple[tuple[str, ...], str]:
    """Return the hosts to name for a link or port, and a clause that says who read it, '' where it needs none."""
    found = _END.fullmatch(device)
    end = next((host for host in (_named(hosts, end) for end in (found.groups() if found else ())) if host), "")
    others = [reader for reader in readers if reader not in {"", end}]
    if end and (not others or shows_it(hosts[end].now)):
        return (end,), ""
    return tuple(filter(None, (end, *others))), f" (as {and_more(others, SHOWN)} read it)" if end else ""


def _runs_at(own: Hardware, rate: tuple[float, float]) -> bool:
    widths, rates = own.numbers("rdma_port", "width"), own.numbers("rdma_port", "rate_gbps")
    return any(widths.get(port) == rate[0] and math.isclose(found, math.prod(rate)) for port, found in rates.items())


def _has_a_port_without_link(own: Hardware) -> bool:
    return any(state != "ACTIVE" for state in own.texts("rdma_port", "state").values())


def _named(hosts: Collection[str], description: str) -> str:
    """Return the host of a node description such as 'node1 mlx5_0' or 'node1 HCA-1', '' if it is none of them."""
    word = description.partition(" ")[0].lower()
    return next((host for host in hosts if word in {host.lower(), host.lower().partition(".")[0]}), "")
