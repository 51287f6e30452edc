"""``network``: traffic between nodes goes over the cluster's network, as the interfaces' counters show."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.analysis.carriers import Carrier, FabricPath, carrier, of_fabric, without_doubles
from clusterctl.launch.mpirun_job import UCX_CURE
from clusterctl.model import fabric
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Measurement, Verdict
from clusterctl.model.units import value_words
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base, judging
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport

# Counters include headers and other traffic (ssh, a file server). So a carrier has carried the job when it counts
# nearly all of it; the rest is room for what a card counts late.
CARRIED = 0.9
_TOLD = 0.05  # a carrier with a smaller share is not named
_RX, _TX = "_rx_bytes", "_tx_bytes"
_MIB = 2**20
_RAIL = re.compile(r"rail(\d{1,3})_from_(\d{1,9})_(usual_)?bytes_per_s")
_CABLE = re.compile(r"cable(\d{1,9})_from_(\d{1,9})_(usual_)?bytes_per_s")
_SLOWER = 2.0  # times; a rail that is so much slower than another one between the same nodes is slow
_MOST_NAMED, _MOST_TRANSPORTS = 3, 6
CHOOSING = ("btl_tcp_if_include", "btl_tcp_if_exclude")  # parameters by which Open MPI chooses TCP's networks


@dataclass(frozen=True)
class Reading:
    """What one node's counters say of the exchange.

    Bytes that are counted twice (on a bond and on its members) belong to the uppermost, which is what was asked for;
    ``carriers`` are without what belongs to those above them. ``ucx`` has the transports that UCX's own log names.
    """

    host: str
    sent_bytes: float
    received_bytes: float
    pml: str
    ucx: tuple[str, ...]
    active: tuple[str, ...]
    carriers: tuple[Carrier, ...]

    def share(self, carriers: Iterable[Carrier]) -> float:
        """Return which part of the exchange these carriers show, of both directions the smaller part."""
        chosen = tuple(carriers)
        rx, tx = sum(carrier.rx_bytes for carrier in chosen), sum(carrier.tx_bytes for carrier in chosen)
        return min(rx / max(1.0, self.received_bytes), tx / max(1.0, self.sent_bytes))

    def larger_share(self, one: Carrier) -> float:
        """Return which part of the exchange a carrier shows, of both directions the larger; a cable may have one."""
        return max(one.rx_bytes / max(1.0, self.received_bytes), one.tx_bytes / max(1.0, self.sent_bytes))


@dataclass(frozen=True)
class NetworkCheck(base.Check):
    """Bytes between nodes go over the fabric's interface, or over RDMA with UCX; one node alone is skipped."""

    name: str = "network"
    title: str = "the nodes' fabric carries the job"
    deadline_s: float = 45.0
    file = "mpi_checks.py"

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, then what carried them."""
        judgement = judging.judge(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        if len(site.slots) == 1:
            return _skip(judgement, "one node alone has no network to check")
        rails, cables = _slow_rails(judgement), _slow_cables(judgement)
        if rails or cables:
            ends = [*(hosts for hosts, _rail in rails), *cables]
            told = "; ".join([*rails.values(), *cables.values()])
            return base.fail(judgement, told, sorted({host for hosts in ends for host in hosts}))
        readings = [reading(report) for report in judgement.ranks if "sent_bytes" in report.figures]
        unread = [node for node in site.slots if node not in {found.host for found in readings}]
        if unread and not readings and (slowest := _slowest_rail(judgement)):  # the exchange was left out
            pair, told = slowest
            return base.fail(judgement, told, pair)
        if unread:
            return base.fail(judgement, f"no counters came from {folded(unread)}", unread)
        return _judged(judgement, site, readings)


def path(node: NodeFacts) -> FabricPath | None:
    """Return the interfaces of a node's fabric: the recorded one, and those with an address in its networks."""
    if node.fabric is None or not node.fabric.interface:
        return None
    cidrs = node.fabric.cidrs
    more = [
        entry.name
        for entry in node.interfaces
        if any(fabric.inside(address.address, cidrs) for address in entry.addresses)
    ]
    names = tuple(one.interface for one in node.fabric.carriers)
    rails, cables = ((), names) if fabric.over_cables(node.fabric) else (names, ())
    beside = (one.cidr for one in node.fabric.carriers)
    interfaces = base.unique((node.fabric.interface, *more, *names))
    return FabricPath(interfaces, base.unique((*cidrs, *beside)), rails, cables)


def _of_messages(way: FabricPath) -> FabricPath:
    """Return the part of a node's fabric that carries MPI's messages."""
    return replace(way, interfaces=way.cables) if way.cables else way


def reading(report: RankReport) -> Reading:
    """Return what a node's first rank read from the counters, with every byte counted once."""
    figures = report.figures
    names = [name.removesuffix(_RX) for name in figures if name.endswith(_RX)]
    counted = [carrier(name, figures[name + _RX], figures[name + _TX], report.facts.get(name, "")) for name in names]
    return Reading(
        host=report.host,
        sent_bytes=figures["sent_bytes"],
        received_bytes=figures.get("received_bytes", 0.0),
        pml=report.facts.get("pml", ""),
        ucx=tuple(report.facts.get("ucx", "").split()),
        active=tuple(report.facts.get("rdma", "").split()),
        carriers=without_doubles(counted),
    )


def _judged(judgement: base.Judgement, site: base.Site, readings: Sequence[Reading]) -> base.Judgement:
    """Judge what carried right answers, by the counters of each node."""
    faults = {found: fault for found in readings if (fault := _fault(site, found)) is not None}
    if faults:
        return _failed(judgement, _at_fault(site, faults))
    carriers = {found: _carriers(site, found) for found in readings}
    if not all(carriers.values()):
        silent = folded([found.host for found, names in carriers.items() if not names])
        return _skip(judgement, f"no interface and no RDMA port of {silent} counted what was sent")
    if site.unused_rdma:
        return _over_tcp(judgement, site, readings, carriers)
    least = min(found.share(c for c in found.carriers if c.name in names) for found, names in carriers.items())
    return base.passed(
        judgement,
        f"{judgement.reason}: {_went(readings, carriers)}{_meant(site)}{_by_ucx(readings)}",
        Measurement(name="carried", value=round(least, 3), unit="1"),
    )


def _told(judgement: base.Judgement, pattern: re.Pattern[str]) -> Iterator[tuple[str, tuple[str, str], bool, float]]:
    """Yield each rate: its rail or its cable's speed, sender and receiver, whether it is a median, bytes per second."""
    hosts = {report.rank: report.host for report in judgement.ranks}
    for report in judgement.ranks:
        for name, rate in report.figures.items():
            if (found := pattern.fullmatch(name)) and int(found[2]) in hosts:
                yield found[1], (hosts[int(found[2])], report.host), bool(found[3]), rate


def _rates(judgement: base.Judgement) -> tuple[dict[str, dict[tuple[str, str], float]], dict[tuple[str, str], float]]:
    """Return how fast each rail is by sender and receiver, in bytes per second, and the best median of their rails."""
    rates: dict[str, dict[tuple[str, str], float]] = {}
    fastest: dict[tuple[str, str], float] = {}
    for rail, pair, is_median, rate in _told(judgement, _RAIL):
        if is_median:
            fastest[pair] = max(rate, fastest.get(pair, 0.0))
        else:
            rates.setdefault(rail, {})[pair] = rate
    return rates, fastest


def _cable_rates(judgement: base.Judgement, *, usual: bool) -> dict[str, dict[tuple[str, str], float]]:
    """Return by speed how fast each cable is, by sender and receiver, in bytes per second; its best or its median."""
    rates: dict[str, dict[tuple[str, str], float]] = {}
    for speed, pair, is_median, rate in _told(judgement, _CABLE):
        if is_median is usual:
            rates.setdefault(speed, {})[pair] = rate
    return rates


def _cable_of(judgement: base.Judgement, source: str, target: str) -> str:
    """Return the interface of the receiver and the network of a cable."""
    ranks = [one.rank for one in judgement.ranks if one.host == source]
    facts = [one.facts for one in judgement.ranks if one.host == target]
    return next((its[name] for its in facts for rank in ranks if (name := f"cable_from_{rank}") in its), "")


def _slow_cables(judgement: base.Judgement) -> dict[tuple[str, str], str]:
    """Return what is said of each slow cable, by its ends: far slower than the median of others of its speed."""
    usual = _cable_rates(judgement, usual=True)
    told = {}
    for speed, its in _cable_rates(judgement, usual=False).items():
        for pair, rate in sorted(its.items(), key=lambda one: one[1]):
            others = [one for ends, one in usual.get(speed, {}).items() if {*ends} != {*pair}]
            ends = (min(pair), max(pair))
            if ends in told or not others or rate * _SLOWER >= (common := statistics.median_low(others)):
                continue
            told[ends] = (
                f"{folded(ends)}: the cable {_cable_of(judgement, *pair)} is slow: {value_words(rate, 'B/s')} from"
                f" {pair[0]} to {pair[1]}, and other cables have {value_words(common, 'B/s')}; look at it and at the"
                " interface at both ends"
            )
    return told


def _rail_of(judgement: base.Judgement, rail: str, host: str) -> str:
    """Return the interface and the network of a node's rail."""
    return next((one.facts.get(f"rail{rail}", "") for one in judgement.ranks if one.host == host), "")


def _slowest_rail(judgement: base.Judgement) -> tuple[tuple[str, str], str] | None:
    """Return the ends of the slowest rail or cable and what is said of it; None where none was tried."""
    tried = [
        (rate, pair, f"the rail {_rail_of(judgement, rail, pair[0])}")
        for rail, own in _rates(judgement)[0].items()
        for pair, rate in own.items()
    ]
    tried += [
        (rate, pair, f"the cable {_cable_of(judgement, *pair)}")
        for own in _cable_rates(judgement, usual=False).values()
        for pair, rate in own.items()
    ]
    if not tried:
        return None
    rate, pair, which = min(tried)
    told = f"{which} from {pair[0]} to {pair[1]} is too slow for the exchange: {value_words(rate, 'B/s')}"
    return pair, f"{told}; look at the cable and the interface at both ends, and at the switch between them"


def _slow_rails(judgement: base.Judgement) -> dict[tuple[tuple[str, ...], str], str]:
    """Return what is said of each slow rail, by the nodes on which it is slow and its number.

    Rails are equal, so the best median between the same two nodes tells what is usual. A slow rail never comes near it.
    The slow rail of one node is slow between it and all others, one way or both.
    """
    rates, fastest = _rates(judgement)
    told = {}
    for rail, own in rates.items():
        slow = [pair for pair, rate in own.items() if rate * _SLOWER < fastest.get(pair, 0.0)]
        accused = fabric.at_fault([fabric.PairResult(rail, *pair) for pair in slow])
        named = tuple(
            host for host in accused if any(all(pair in slow for pair in own if pair[end] == host) for end in (0, 1))
        )
        if named:
            ends = [pair for pair in slow if {*pair} & {*named}]
            now, usual = (value_words(statistics.median(of[pair] for pair in ends), "B/s") for of in (own, fastest))
            which = _rail_of(judgement, rail, named[0])
            look = f"look at its cable, its speed ('ethtool {which.partition(' ')[0]}') and its port of the switch"
            told[named, rail] = (
                f"{folded(named)}: the rail {which} is slow: {now}, and another rail between the same nodes has {usual}"
                f"; {look}"
            )
    return told


@dataclass(frozen=True)
class _Fault:
    """What is wrong on a node; the same fault on several nodes is reported once, with the figures of one."""

    what: str
    figures: str
    by: str = ""


def _fault(site: base.Site, found: Reading) -> _Fault | None:
    """Find what is wrong with the carriers of a node's bytes."""
    known = site.fabric.get(found.host)
    if known is not None:
        fabric = _of_messages(known)
        right = of_fabric(fabric, found.carriers)
        others = [carrier for carrier in found.carriers if carrier not in right]
        meant = f"{_names(fabric.interfaces)} ({', '.join(fabric.cidrs)})"
        if found.share(right) < CARRIED:
            what = f"not all of what was sent went over the fabric, {meant}"
            return _Fault(what, _counted(found, (_names(fabric.interfaces), right), _most(found, others)))
        idle = [name for name in fabric.rails if found.share(_of_rail(fabric, name, found.carriers)) < _TOLD]
        if idle:
            what = f"{_names(idle)} carried nothing, though jobs share their messages between {_names(fabric.rails)}"
            return _Fault(what, _counted(found, (_names(idle), ()), _most(found, right)))
        beside = [carrier for carrier in others if found.share([carrier]) >= CARRIED]
        if beside:
            what = f"what went over the fabric, {meant}, went through another network as well"
            return _Fault(what, _counted(found, (_names(fabric.interfaces), right), beside))
    ports = [carrier for carrier in found.carriers if carrier.is_rdma]
    if found.pml == "ucx" and found.active and found.share(ports) < CARRIED:
        others = [carrier for carrier in found.carriers if not carrier.is_rdma]
        what = f"UCX was chosen, and not all of what was sent went over RDMA, {_names(found.active)}"
        return _Fault(what, _counted(found, (_names(found.active), ports), _most(found, others)))
    return None


def _of_rail(way: FabricPath, name: str, carriers: Sequence[Carrier]) -> tuple[Carrier, ...]:
    return of_fabric(replace(way, interfaces=(name,)), carriers)


def _at_fault(site: base.Site, faults: dict[Reading, _Fault]) -> dict[Reading, _Fault]:
    """Return the faults of nodes whose own settings chose another network; of all nodes where no node has one.

    Ranks on the other nodes only follow: they reach such a node by the addresses that it announces.
    """
    by = {found: _chosen_by(site, found) for found in faults if found.pml != "ucx"}
    guilty = {found: replace(faults[found], by=words) for found, words in by.items() if words}
    return guilty or faults


def _chosen_by(site: base.Site, found: Reading) -> str:
    """Return the settings of a node by which Open MPI takes another network than the fabric, '' without one."""
    fabric = site.fabric.get(found.host)
    given = site.mpi_networks.get(found.host, {})
    if fabric is None:
        return ""
    right = {*fabric.interfaces, *fabric.cidrs}
    told = []
    for name, (value, place) in given.items():
        words = {word.strip() for word in value.split(",")} - {""}
        wrong = bool(words & right) if name.endswith("exclude") else not words <= right
        if words and wrong:
            told.append(f"{name}={value} of {place}")
    return " and ".join(told)


def _names(names: Iterable[str]) -> str:
    return " and ".join(names)


def _most(found: Reading, carriers: Iterable[Carrier]) -> list[Carrier]:
    """Return the carriers with a share worth naming, largest first."""
    told = [carrier for carrier in carriers if found.share([carrier]) > _TOLD]
    return sorted(told, key=lambda carrier: -found.share([carrier]))[:_MOST_NAMED]


def _counted(found: Reading, right: tuple[str, Sequence[Carrier]], others: Sequence[Carrier]) -> str:
    """Return 'of 64 MiB out and 64 MiB in eth0 counted 0.0 and 0.0, eth1 64.2 and 64.2'."""
    rows = [right, *((carrier.name, [carrier]) for carrier in others)]
    words = [
        f"{name} {sum(c.tx_bytes for c in group) / _MIB:.1f} and {sum(c.rx_bytes for c in group) / _MIB:.1f}"
        for name, group in rows
    ]
    whole = f"of {found.sent_bytes / _MIB:.0f} MiB out and {found.received_bytes / _MIB:.0f} MiB in"
    return f"{whole} were counted by {', by '.join(words)}"


def _failed(judgement: base.Judgement, faults: dict[Reading, _Fault]) -> base.Judgement:
    """Name every node once; nodes with the same fault share the figures of the first. All figures are evidence."""
    alike: dict[tuple[str, str], list[Reading]] = {}
    for found, fault in faults.items():
        alike.setdefault((fault.what, fault.by), []).append(found)
    words = []
    for (what, by), group in alike.items():
        whose = f" on {group[0].host}" if len(group) > 1 else ""
        why = f", by {by}; take that setting away" if by else ""
        words.append(f"{folded([found.host for found in group])}: {what}: {faults[group[0]].figures}{whose}{why}")
    failed = base.fail(judgement, "; ".join(words), [found.host for found in faults])
    return replace(failed, evidence=tuple(f"{found.host}: {fault.figures}" for found, fault in faults.items()))


def _carriers(site: base.Site, found: Reading) -> tuple[str, ...]:
    """Return the names of the carriers of a node's bytes, on the fabric where the node has one."""
    fabric = site.fabric.get(found.host)
    chosen = found.carriers if fabric is None else of_fabric(_of_messages(fabric), found.carriers)
    alone = [carrier.name for carrier in chosen if found.share([carrier]) >= CARRIED]
    if alone or found.share(chosen) < CARRIED:
        return tuple(alone)
    return tuple(sorted(carrier.name for carrier in chosen if found.larger_share(carrier) > _TOLD))


def _went(readings: Sequence[Reading], carriers: dict[Reading, tuple[str, ...]]) -> str:
    """Return '64 MiB from each node went over eth0', or the nodes of every interface where their names differ."""
    by_names: dict[str, list[str]] = {}
    for found, names in carriers.items():
        by_names.setdefault(_names(names), []).append(found.host)
    words = ", ".join(f"{names} on {folded(hosts)}" for names, hosts in by_names.items())
    if len(by_names) == 1:
        words = next(iter(by_names))
    return f"{max(found.sent_bytes for found in readings) / _MIB:.0f} MiB from each node went over {words}"


def _over_tcp(
    judgement: base.Judgement, site: base.Site, readings: Sequence[Reading], carriers: dict[Reading, tuple[str, ...]]
) -> base.Judgement:
    """Return that RDMA was left unused, with what the counters of each node say."""
    failed = base.fail(judgement, f"{site.unused_rdma}: {_went(readings, carriers)}; {UCX_CURE}", site.slots)
    told = {found: [one for one in found.carriers if one.is_rdma] for found in readings}
    return replace(
        failed,
        evidence=tuple(
            f"{found.host}: {_counted(found, (_names(one.name for one in ports), ports), _most(found, found.carriers))}"
            for found, ports in told.items()
            if ports
        ),
    )


def _by_ucx(readings: Sequence[Reading]) -> str:
    """Return ', by UCX over tcp/eth0' with the transports that its log names, '' where another layer took messages."""
    if any(found.pml != "ucx" for found in readings):
        return ""
    over = base.unique(transport for found in readings for transport in found.ucx)
    return f", by UCX over {and_more(over, _MOST_TRANSPORTS)}" if over else ", by UCX"


def _meant(site: base.Site) -> str:
    """Return ', the fabric' if every node has a fabric record."""
    return ", the fabric" if all(node in site.fabric for node in site.slots) else ""


def _skip(judgement: base.Judgement, reason: str) -> base.Judgement:
    return base.Judgement(Verdict.SKIP, reason, (), judgement.ranks, judgement.measurements)


CHECKS = (Registration(name="network", order=30, first_suite="smoke", make=lambda _options: NetworkCheck()),)
