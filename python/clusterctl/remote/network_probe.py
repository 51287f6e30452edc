"""Probe candidate networks by real connections between the nodes, with one connection per node.

The program that listens and connects is ``plugins/module_utils/fabric_probe.py``. It works in two phases: first every
node listens and tells its ports, then every node gets its targets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import defaultdict
from dataclasses import dataclass
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
_EPHEMERAL = (0, 1)
_PORTS = 1 << 16


def probe(
    hosts: Sequence[Host],
    candidates: Candidates,
    *,
    timeout_s: float = 5,
    login_s: float = _LOGIN_S,
    control_dir: Path | None = None,
    seed: int = 0,
    only: Collection[tuple[str, str]] | None = None,
    ports: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[PairResult, ...]:
    """Connect the nodes with each other in every candidate network.

    Args:
        hosts: the nodes, reachable by plain ssh; those without an address in the candidates take no part.
        candidates: the networks to probe.
        timeout_s: time limit of one connection; all are tried at once, and those that timed out once more.
        login_s: time limit of one login, with the start of the program.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.reach.arguments`.
        seed: of the sample of pairs, which is taken for more than 32 nodes.
        only: try these pairs, source and target, instead of all or a sample.
        ports: by host, the first port on which jobs listen and their number; other hosts take an ephemeral port.

    Returns:
        A result for every pair and network, also for those that came through. A node that gives no answer has the
        result ``error`` in all its pairs; it raises nothing.

    Raises:
        ConfigError: this process may not open so many files, or memory is too short.
    """
    names = [host.name for host in hosts]
    taking_part = {name for network in candidates.networks for name in network.addresses}
    if only is not None:
        taking_part &= {name for pair in only for name in pair}
    asked = [host for host in hosts if host.name in taking_part]
    if len(asked) < 2 or not candidates.networks:  # noqa: PLR2004 - a pair has two ends
        return ()
    memory_room.allow_open_files(len(asked))  # all probes run at the same time
    memory_room.allow_for(len(asked))
    if only is None:
        plan = fabric.pairs([name for name in names if name in taking_part], seed)
    else:
        plan = tuple(pair for pair in dict.fromkeys(only) if taking_part.issuperset(pair))
    return asyncio.run(_probe(asked, candidates, plan, _Limits(timeout_s, login_s, ports or {}), control_dir))


@dataclass(frozen=True)
class _Limits:
    connect_s: float
    login_s: float
    ports: Mapping[str, tuple[int, int]]


async def _probe(
    hosts: Sequence[Host],
    candidates: Candidates,
    plan: Sequence[tuple[str, str]],
    limits: _Limits,
    control_dir: Path | None,
) -> tuple[PairResult, ...]:
    token = secrets.token_hex(16)
    peers = {host.name: _Peer(host, control_dir, limits) for host in hosts}
    at_once = reach.at_once(hosts)
    turn = asyncio.Semaphore(at_once)

    async def opened(peer: _Peer) -> None:
        addresses = {one.key: one.addresses[peer.name] for one in candidates.networks if peer.name in one.addresses}
        lifetime_s = limits.login_s * (1 + len(peers) / at_once) + 2 * limits.connect_s + _GRACE_S
        async with turn:
            request = {"name": peer.name, "token": token, "addresses": addresses, "lifetime_s": lifetime_s}
            await peer.open({**request, "ports": limits.ports.get(peer.name, _EPHEMERAL)})

    try:
        await asyncio.gather(*(opened(peer) for peer in peers.values()))
        targets = _targets(candidates, plan, peers)
        await asyncio.gather(*(peer.call(targets[name]) for name, peer in peers.items()))
    finally:
        await asyncio.gather(*(peer.close() for peer in peers.values()))
    return _results(candidates, plan, peers)


class _Peer:
    """The probe on one node; ``problem`` says why the node gives no answer."""

    def __init__(self, host: Host, control_dir: Path | None, limits: _Limits) -> None:
        self.name = host.name
        self.ports: dict[str, int] = {}
        self.problems: dict[str, str] = {}  # by network, why it does not listen
        self.results: dict[tuple[str, str], tuple[PairKind, str]] = {}  # by network and target
        self.problem = ""
        self._host, self._control_dir, self._limits = host, control_dir, limits
        self._talk: python.Conversation | None = None

    async def open(self, request: Mapping[str, Any]) -> None:
        program = python.program("fabric_probe")
        argv = reach.command(self._host, program.argv(self._host.python), control_dir=self._control_dir)
        try:
            self._talk = await python.Conversation.start(argv)
        except python.NoClientError:
            self.problem = f"there is no {reach.client(self._host)} on this machine"
            return
        answer = await self._ask(program.data + json.dumps(request).encode() + b"\n", 1, self._limits.login_s)
        with self._reading():
            self.ports = {network: _port(port) for network, port in answer.get("ports", {}).items()}
            self.problems = {network: str(why) for network, why in answer.get("problems", {}).items()}

    async def call(self, targets: Sequence[Mapping[str, Any]]) -> None:
        if self.problem:
            return
        timeout_s = self._limits.connect_s
        order = json.dumps({"targets": list(targets), "timeout_s": timeout_s}).encode() + b"\n"
        answer = await self._ask(order, 2, 2 * timeout_s + _GRACE_S)
        with self._reading():
            self.results = {
                (str(network), str(target)): (_kind(kind), str(why))
                for network, target, kind, why in answer.get("results", ())
            }

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
    candidates: Candidates, plan: Sequence[tuple[str, str]], peers: Mapping[str, _Peer]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for network in candidates.networks:
        for source, target in plan:
            port = peers[target].ports.get(network.key)
            if port is not None and source in network.addresses:
                found[source].append(
                    {
                        "network": network.key,
                        "source": network.addresses[source],
                        "name": target,
                        "address": network.addresses[target],
                        "port": port,
                    }
                )
    return found


def _results(
    candidates: Candidates, plan: Sequence[tuple[str, str]], peers: Mapping[str, _Peer]
) -> tuple[PairResult, ...]:
    return tuple(
        _result(network.key, peers[source], peers[target])
        for network in candidates.networks
        for source, target in plan
        if source in network.addresses and target in network.addresses
    )


def _result(network: str, source: _Peer, target: _Peer) -> PairResult:
    kind, problem = source.results.get((network, target.name), ("error", ""))
    if kind == "error" and not problem:
        culprit = target if target.problem or network in target.problems else source
        problem = f"{culprit.name}: {culprit.problem or culprit.problems.get(network) or 'it gave no result'}"
    return PairResult(network, source.name, target.name, problem, kind)


# Ask nodes which rule of their firewall drops connections of other nodes: where nft can be read, and nothing else.

MODULE = "firewall_rules.__main__"
# What a firewall does to a connection; firewalld's answer that it is prohibited reads "No route to host".
_BLOCKED = frozenset({"refused", "timeout", "error"})
_MOST = 64  # packets of one node; more of them say the same
_LONGEST = 200


def wanted(found: Candidates, pairs: Iterable[PairResult]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return by target the sources whose connections failed, each with the packet to look for."""
    networks = {network.key: network for network in found.networks}
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

    Args:
        hosts: the hosts that answer.
        found: the networks that were tried.
        pairs: what was tried in them.
        timeout_s: seconds for one node.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.reach.arguments`.
    """
    asked = wanted(found, pairs)
    requests = {
        host: json.dumps({"packets": [packet for _, packet in asked[host.name]]}).encode()
        for host in hosts
        if host.name in asked
    }
    if not requests:
        return {}
    answers, _ = one_trip.ask(requests, MODULE, _read, timeout_s=timeout_s, control_dir=control_dir)
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
