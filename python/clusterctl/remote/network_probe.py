"""Probe candidate networks by real connections between the nodes, with one connection per node.

The program that listens and connects is ``plugins/module_utils/fabric_probe.py``. It works in two phases: first every
node listens on several ports and tells them, then every node gets its targets. The sources share the ports of a
target. So the number of connections grows with the pairs, and not with the pairs times the ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from clusterctl.model import fabric
from clusterctl.model.fabric import PairResult
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import one_trip, python, reach
from clusterctl.support import memory_room

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.fabric import Candidates, PairKind
    from clusterctl.model.hosts import Host


_LOGIN_S = 30.0  # from the first login until the last node listens
_GRACE_S = 10.0  # for the answer to come back, and for a login to end
_EPHEMERAL = ((0, 0),)
_PORTS = 1 << 16
_MOST_PORTS = 16  # of one node
_MOST_CALLED = 256  # names in one trial
_CALLS_AGAIN = 64  # of one node, where connections to it are tried again
_WITNESSES = 3  # other nodes that try the ports of a node again


@dataclass(frozen=True)
class TrialLimits:
    """Of a trial."""

    connect_s: float = 5  # time limit of one connection; all are tried at once, and those that were late once more
    login_s: float = _LOGIN_S  # time limit of one login, with the start of the program
    control_dir: Path | None = None  # folder of shared connections, see :func:`clusterctl.remote.reach.arguments`
    seed: int = 0  # of the ports, and of the sample of pairs, which is taken for more than 32 nodes
    # by host, the ranges in which jobs listen, each as its first port and their number; (0, 0) stands for that of the
    # node's kernel. Several ports of the last range are tried, and one of each range before it.
    ports: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


def probe(
    hosts: Sequence[Host],
    candidates: Candidates,
    limits: TrialLimits = TrialLimits(),
    only: Collection[tuple[str, str]] | None = None,
    before: Sequence[PairResult] = (),
) -> tuple[PairResult, ...]:
    """Connect the nodes with each other in every candidate network.

    The nodes are reachable by plain ssh; those without an address in the candidates take no part. ``only`` has pairs,
    source and target, to try instead of all or a sample. Ports that failed in ``before``, an earlier trial with the
    same seed, are tried first.

    Returns:
        A result for every pair and network, also for those that came through. A node that gives no answer has the
        result ``error`` in all its pairs; it raises nothing.

    Raises:
        ConfigError: this process may not open so many files, or memory is too short.
    """
    names = [host.name for host in hosts]
    taking_part = {name for network in candidates.probed for name in network.addresses}
    if only is not None:
        taking_part &= {name for pair in only for name in pair}
    asked = [host for host in hosts if host.name in taking_part]
    if len(asked) < 2 or not candidates.probed:  # noqa: PLR2004 - a pair has two ends
        return ()
    memory_room.allow_open_files(len(asked))  # all probes run at the same time
    memory_room.allow_for(len(asked))
    if only is None:
        plan = fabric.pairs([name for name in names if name in taking_part], limits.seed)
    else:
        plan = tuple(pair for pair in dict.fromkeys(only) if taking_part.issuperset(pair))
    return asyncio.run(_probe(asked, candidates, plan, limits, before))


def confirmed(
    hosts: Sequence[Host], candidates: Candidates, limits: TrialLimits, first: Sequence[PairResult]
) -> tuple[PairResult, ...]:
    """Try again what failed, and return all results; what comes through now was slow.

    Some other nodes try the same targets again, on as many ports. Then it is known whether a port is closed to all.
    ``limits`` has the seed of the first trial; the rest is as in :func:`probe`.
    """
    failed = [one for one in first if one.kind != "ok"]
    if not failed:
        return tuple(first)
    only = {(one.source, one.target): None for one in failed}
    seen = Counter(target for _, target in only)
    for one in first:
        if one.kind == "ok" and 0 < seen[one.target] <= _WITNESSES:
            only[one.source, one.target] = None
            seen[one.target] += 1
    again = {(one.network, one.source, one.target): one for one in probe(hosts, candidates, limits, tuple(only), first)}
    closed = _closed(failed)
    results = []
    for one in first:
        later = again.pop((one.network, one.source, one.target), one)
        if one.kind == "ok" and later.kind != "ok" and not closed[one.network, one.target].intersection(later.closed):
            later = one  # it has failed once
        results.append(later)
    # Of a sample, the way back of a pair may be missing in the first results.
    return (*results, *(one for one in again.values() if one.kind != "ok"))


def called(
    hosts: Sequence[Host], candidates: Candidates, limits: TrialLimits, names: Sequence[tuple[str, str, str]]
) -> tuple[PairResult, ...]:
    """Have nodes connect to the addresses that names lead them to, and tell who answers there.

    Each node listens on its address in the first candidate that it shares. ``names`` says who looks up the name, whose
    name it is, and the address.

    Returns:
        A result for each, in the network ``fabric.NAMES``.
    """
    names = names[:_MOST_CALLED]
    ends = {name for source, target, _ in names for name in (source, target)}
    asked = [host for host in hosts if host.name in ends]
    if not asked or not candidates.probed:
        return ()
    memory_room.allow_open_files(len(asked))
    memory_room.allow_for(len(asked))
    return asyncio.run(_probe(asked, candidates, (), limits, (), names))


def _closed(results: Iterable[PairResult]) -> dict[tuple[str, str], set[int]]:
    """Return by network and target the ports on which connections failed."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for one in results:
        found[one.network, one.target].update(one.closed)
    return found


async def _probe(
    hosts: Sequence[Host],
    candidates: Candidates,
    plan: Sequence[tuple[str, str]],
    limits: TrialLimits,
    before: Sequence[PairResult],
    names: Sequence[tuple[str, str, str]] = (),
) -> tuple[PairResult, ...]:
    token = secrets.token_hex(16)
    peers = {host.name: _Peer(host, limits) for host in hosts}
    at_once = reach.at_once(hosts)
    turn = asyncio.Semaphore(at_once)

    async def opened(peer: _Peer) -> None:
        addresses = {one.key: one.addresses[peer.name] for one in candidates.probed if peer.name in one.addresses}
        lifetime_s = limits.login_s * (1 + len(peers) / at_once) + 2 * limits.connect_s + _GRACE_S
        async with turn:
            request = {"name": peer.name, "token": token, "addresses": addresses, "lifetime_s": lifetime_s}
            await peer.open({**request, "ports": limits.ports.get(peer.name, _EPHEMERAL), "seed": limits.seed})

    try:
        await asyncio.gather(*(opened(peer) for peer in peers.values()))
        targets = _named(candidates, names, peers) if names else _targets(candidates, plan, peers, before)
        await asyncio.gather(*(peer.call(targets[name]) for name, peer in peers.items()))
    finally:
        await asyncio.gather(*(peer.close() for peer in peers.values()))
    if names:
        return tuple(_result(fabric.NAMES, peers[source], peers[target]) for source, target, _ in names)
    return _results(candidates, plan, peers)


class _Peer:
    """The probe on one node; ``problem`` says why the node gives no answer."""

    def __init__(self, host: Host, limits: TrialLimits) -> None:
        self.name = host.name
        self.ports: dict[str, list[int]] = {}
        self.problems: dict[str, str] = {}  # by network, why it does not listen
        self.results: dict[tuple[str, str], list[tuple[PairKind, str, int]]] = defaultdict(list)  # the last: the port
        self.problem = ""
        self._host, self._limits = host, limits
        self._talk: python.Conversation | None = None

    async def open(self, request: Mapping[str, Any]) -> None:
        program = python.program("fabric_probe")
        argv = reach.command(self._host, program.argv(self._host.python), control_dir=self._limits.control_dir)
        try:
            self._talk = await python.Conversation.start(argv)
        except python.NoClientError:
            self.problem = f"there is no {reach.client(self._host)} on this machine"
            return
        answer = await self._ask(program.data + json.dumps(request).encode() + b"\n", 1, self._limits.login_s)
        with self._reading():
            ports = answer.get("ports", {}).items()
            self.ports = {network: [_port(port) for port in its[:_MOST_PORTS]] for network, its in ports}
            self.problems = {network: str(why) for network, why in answer.get("problems", {}).items()}

    async def call(self, targets: Sequence[Mapping[str, Any]]) -> None:
        if self.problem:
            return
        timeout_s = self._limits.connect_s
        order = json.dumps({"targets": list(targets), "timeout_s": timeout_s}).encode() + b"\n"
        answer = await self._ask(order, 2, 2 * timeout_s + _GRACE_S)
        with self._reading():
            for network, target, kind, why, port in answer.get("results", ()):
                self.results[str(network), str(target)].append((_kind(kind), str(why), _port(int(port))))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Take an answer of another form as a problem of its node."""
        try:
            yield
        except (ValueError, TypeError, AttributeError):
            self.problem = "its answer is not readable"

    async def _ask(self, request: bytes, phase: int, within_s: float) -> dict[str, Any]:
        """Send a request and return the answer; {} and ``problem`` if there is none."""
        try:
            return await asyncio.wait_for(self._exchange(request, phase), within_s)
        except asyncio.TimeoutError:
            self.problem = f"no answer over {reach.client(self._host)} within {within_s:g} s"
        except python.EndedError as ended:
            self.problem = f"{reach.client(self._host)} ended: {str(ended) or 'nothing on stderr'}"
        except ValueError as error:
            self.problem = f"its answer is not readable ({error})"
        return {}

    async def _exchange(self, request: bytes, phase: int) -> dict[str, Any]:
        if self._talk is None:
            raise python.EndedError
        await self._talk.send(request)
        return await self._talk.answer(f'{{"fabric":{phase},'.encode())

    async def close(self) -> None:
        """End the node's program by the end of its stdin, and ssh itself if it does not follow."""
        if self._talk is not None:
            await self._talk.close(_GRACE_S)


def _port(given: Any) -> int:
    if type(given) is not int or not 0 < given < _PORTS:
        raise ValueError(f"{given!r} is not a port")
    return given


def _kind(given: Any) -> PairKind:
    if given not in get_args(fabric.PairKind):
        raise ValueError(f"{given!r} is not a kind of result")
    kind: PairKind = given
    return kind


def _targets(
    candidates: Candidates,
    plan: Sequence[tuple[str, str]],
    peers: Mapping[str, _Peer],
    before: Sequence[PairResult],
) -> dict[str, list[dict[str, Any]]]:
    """Share out the ports of each target among its callers; each calls one at least, and together they call all."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    failed = {(one.network, one.source, one.target): one.closed for one in before}
    closed = _closed(before)
    for network in candidates.probed:
        callers: dict[str, list[str]] = defaultdict(list)
        for source, target in plan:
            if peers[target].ports.get(network.key) and source in network.addresses:
                callers[target].append(source)
        for target, sources in callers.items():
            ports = peers[target].ports[network.key]
            each = max(1, min(len(ports), _CALLS_AGAIN // len(sources))) if before else -(-len(ports) // len(sources))
            for number, source in enumerate(sources):
                turn = number * each % len(ports)
                first = (*failed.get((network.key, source, target), ()), *sorted(closed[network.key, target]))
                order = [port for port in first if port in ports] + ports[turn:] + ports[:turn]
                found[source] += [
                    {
                        "network": network.key,
                        "source": network.addresses[source],
                        "name": target,
                        "address": network.addresses[target],
                        "port": port,
                    }
                    for port in list(dict.fromkeys(order))[:each]
                ]
    return found


def _named(
    candidates: Candidates, names: Sequence[tuple[str, str, str]], peers: Mapping[str, _Peer]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for source, target, address in names:
        for network in candidates.probed:
            ports = peers[target].ports.get(network.key)
            if ports and source in network.addresses:
                call = {
                    "network": fabric.NAMES,
                    "source": network.addresses[source],
                    "name": target,
                    "address": address,
                }
                found[source].append({**call, "port": ports[0]})
                break
    return found


def _results(
    candidates: Candidates, plan: Sequence[tuple[str, str]], peers: Mapping[str, _Peer]
) -> tuple[PairResult, ...]:
    back = _turned_round(peers)
    found = {
        (network.key, source, target): _result(network.key, peers[source], peers[target])
        for network in candidates.probed
        for source, target in plan
        if source in network.addresses and target in network.addresses
    }
    asked = set(found)
    for (key, source, target), problem in back.items():
        was_asked = (key, target, source) in asked  # else a node tells of what it was not to try
        if was_asked and found.get((key, source, target), _NOT_TRIED).kind in {"ok", "error"}:
            found[key, source, target] = PairResult(key, source, target, problem, "cut")
    return tuple(found.values())


_NOT_TRIED = PairResult("", "", "")


def _turned_round(peers: Mapping[str, _Peer]) -> dict[tuple[str, str, str], str]:
    """Take what was lost on its way back as what it is: large packets from the target to the source."""
    back = {}
    for source in peers.values():
        for (network, target), tries in source.results.items():
            for number, (kind, _problem, port) in enumerate(tries):
                if kind == "cut_back" and target in peers:
                    tries[number] = ("ok", "", port)
                    back[network, target, source.name] = "large packets are lost"
    return back


def _result(network: str, source: _Peer, target: _Peer) -> PairResult:
    """Return the result of a pair: the most frequent failure, with the ports on which there was any."""
    tries = source.results.get((network, target.name)) or [("error", "", 0)]
    failures = Counter((kind, problem) for kind, problem, _ in tries if kind != "ok")
    kind: PairKind
    kind, problem = failures.most_common(1)[0][0] if failures else ("ok", "")
    if kind == "error" and not problem:
        culprit = target if target.problem or network in target.problems else source
        problem = f"{culprit.name}: {culprit.problem or culprit.problems.get(network) or 'it gave no result'}"
    closed = tuple(sorted(port for kind, _, port in tries if kind != "ok" and port))
    opened = tuple(sorted(port for kind, _, port in tries if kind == "ok"))
    return PairResult(network, source.name, target.name, problem, kind, closed, opened)


# Ask nodes which rule of their firewall drops connections of other nodes: where nft can be read, and nothing else.

MODULE = "firewall_rules"
# What a firewall does to a connection.
_BLOCKED = frozenset({"refused", "rejected", "timeout"})
_MOST = 64  # packets of one node; more of them say the same
_LONGEST = 200


def wanted(found: Candidates, pairs: Iterable[PairResult]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return by target the sources whose connections failed, each with the packet to look for."""
    networks = {network.key: network for network in found.probed}
    asked: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for pair in pairs:
        network = networks.get(pair.network)
        if pair.kind not in _BLOCKED or network is None:
            continue
        its = asked.setdefault(pair.target, [])
        if len(its) < _MOST and pair.source not in {source for source, _ in its}:
            packet = {
                "interface": network.interfaces[pair.target],
                "source": network.addresses[pair.source],
                "target": network.addresses[pair.target],
                **({"port": pair.closed[0]} if pair.closed else {}),
            }
            its.append((pair.source, packet))
    return asked


def words(answer: Any) -> str:
    """Return one answer of a node in words; '' where it names no rule, or is of another form."""
    if not isinstance(answer, dict):
        return ""
    manager, place, rule = (str(answer.get(key) or "")[:_LONGEST] for key in ("manager", "place", "rule"))
    if not (manager and place and rule):
        return ""
    return f"{manager} {'stops' if answer.get('is_certain') is True else 'may stop'} them there: {place}, {rule}"


def gather(
    hosts: Sequence[Host],
    found: Candidates,
    pairs: Iterable[PairResult],
    *,
    timeout_s: float,
    control_dir: Path | None = None,
) -> dict[tuple[str, str], str]:
    """Return, by source and target, the rule that stops a connection that failed; a node that cannot say is left out.

    The hosts answer, and ``found`` are the networks that were tried.
    """
    asked = wanted(found, pairs)
    requests = {
        host: json.dumps({"packets": [packet for _, packet in asked[host.name]]}).encode()
        for host in hosts
        if host.name in asked
    }
    if not requests:
        return {}
    answers, _ = asyncio.run(one_trip.ask(requests, MODULE, _read, timeout_s=timeout_s, control_dir=control_dir))
    return _by_pair(asked, answers)


def _by_pair(
    asked: Mapping[str, Sequence[tuple[str, dict[str, Any]]]], answers: Mapping[str, Sequence[Any]]
) -> dict[tuple[str, str], str]:
    return {
        (source, target): said
        for target, its in answers.items()
        for (source, _), answer in zip(asked[target], its, strict=False)
        if (said := words(answer))
    }


def _read(host: Host, ending: python.Ending) -> list[Any] | ProbeFailure:
    answer = python.last_answer(ending.output, ("blocked",))
    if answer is not None and isinstance(answer["blocked"], list):
        found: list[Any] = answer["blocked"]
        return found
    return ProbeFailure(host.name, "error", "no answer about the firewall")
