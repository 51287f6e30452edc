# SPDX-License-Identifier: Apache-2.0
"""Types of the choice of a network, their words and their form in the results of tasks, and what nodes answer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Dict, Iterable, Iterator, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..plain_text import one_line

# --- model -----------------------------------------------------------------------------------------------------------

Facts = Mapping[str, Any]
PairKind = Literal[
    "ok", "refused", "rejected", "no_route", "timeout", "cut", "cut_back", "wrong_source", "wrong_node", "error"
]

KIND_WORDS = {
    "refused": "connection refused",
    "rejected": "rejected",
    "no_route": "the source has no route",
    "timeout": "timed out",
    "cut": "large packets are lost",
    "cut_back": "large packets are lost on their way back",
    "wrong_source": "arrived from another address",
    "wrong_node": "another node answered",
    "error": "failed",
}


class FabricError(Exception):
    """The user's pin does not fit the nodes; the message names the cause and the cure.

    ``hosts`` lack what was pinned. It is empty if the pin itself is malformed.
    """

    def __init__(self, message: str, hosts: Iterable[str] = ()) -> None:
        """Keep the hosts beside the message."""
        super().__init__(message)
        self.hosts = tuple(hosts)


class Network(NamedTuple):
    """A network that every node has an address in.

    ``interfaces`` and ``addresses`` are by host. ``speed_mbps`` is their slowest speed and ``mtu`` their smallest MTU,
    None if it is unknown. Several CIDRs are subnets joined by routing.
    """

    cidrs: Tuple[str, ...]
    interfaces: Dict[str, str]
    addresses: Dict[str, str]
    speed_mbps: Optional[int] = None
    mtu: Optional[int] = None

    @property
    def key(self) -> str:
        """The name of the network in results of the probe."""
        return ",".join(self.cidrs)


class Rejection(NamedTuple):
    """A network or interface ("docker0 172.17.0.0/16") that is not taken, its hosts, and why.

    ``on_link``: it has link-local addresses.
    """

    network: str
    hosts: Tuple[str, ...]
    reason: str
    on_link: bool = False


class Candidates(NamedTuple):
    """Networks to probe, the best one first, and those that were rejected before; ``pinned``: the user chose.

    ``cables`` are probed as well and never chosen alone: networks that join some of the nodes, and together each pair.
    """

    networks: Tuple[Network, ...]
    rejected: Tuple[Rejection, ...]
    pinned: bool = False
    cables: Tuple[Network, ...] = ()

    @property
    def probed(self) -> Tuple[Network, ...]:
        """All networks to probe."""
        return (*self.networks, *self.cables)


class PairResult(NamedTuple):
    """The result of the connections from one host to another, in the network of that key.

    ``closed`` are the ports on which they failed, and ``open`` those on which they came through.
    """

    network: str
    source: str
    target: str
    problem: str = ""
    kind: PairKind = "ok"
    closed: Tuple[int, ...] = ()
    open: Tuple[int, ...] = ()


class Decision(NamedTuple):
    """The network to use, or None and why; ``failures`` are the connections that did not come through.

    ``carriers`` carry the messages of jobs: the network itself with its rails, or cables. Without a network, there are
    none.
    """

    network: Optional[Network]
    rejected: Tuple[Rejection, ...]
    failures: Tuple[PairResult, ...]
    pinned: bool
    reason: str
    carriers: Tuple[Network, ...] = ()


class RdmaChoice(NamedTuple):
    """What a port of an RDMA device offers.

    ``gid_index`` is the entry that is RoCE v2 and maps an IPv4 address. It is None on InfiniBand, on a port that is
    down, and without such an entry. ``reason`` says which.
    """

    device: str
    port: int
    link_layer: str
    state: str
    rate_gbps: Optional[float]
    gid_index: Optional[int]
    gid: str
    reason: str
    usable: bool = False


# --- host words ------------------------------------------------------------------------------------------------------

MOST_NAMED = 3  # hosts or connections in one sentence


def has_or_have(hosts: Iterable[str]) -> str:
    """Return the verb that follows these hosts."""
    return "has" if len(list(hosts)) == 1 else "have"


def other_hosts(hosts: Iterable[str], host: str) -> str:
    """Return all hosts but one, folded."""
    return fold(one for one in hosts if one != host)


def fold(names: Iterable[str]) -> str:
    """Return host names in short: node[1-3,7], rack2-a."""
    groups: Dict[str, List[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        stem = name.rstrip("0123456789")
        groups[stem].append(name[len(stem) :])
    words = []
    for stem, tails in groups.items():
        if len(tails) == 1:
            words.append(stem + tails[0])
            continue
        words += [stem] * ("" in tails)
        ranges: List[List[str]] = []
        for tail in sorted((tail for tail in tails if tail), key=lambda tail: (int(tail), len(tail))):
            if ranges and _follows(ranges[-1][-1], tail):
                ranges[-1] = [ranges[-1][0], tail]
            else:
                ranges.append([tail])
        words.append(f"{stem}[{','.join('-'.join(one) for one in ranges)}]")
    return ",".join(words)


def _follows(before: str, tail: str) -> bool:
    padded = "0" in {before[0], tail[0]}
    return int(tail) == int(before) + 1 and (len(tail) == len(before) or not padded)


# --- words -----------------------------------------------------------------------------------------------------------


def title(network: Network) -> str:
    """Return the name of a network in a report: eth0 10.0.0.0/24."""
    names = dict.fromkeys(network.interfaces.values())
    return f"{'/'.join(names)} {', '.join(network.cidrs)}"


def pace(network: Network) -> str:
    """Return speed and MTU of a network."""
    speed = f"{network.speed_mbps} Mb/s" if network.speed_mbps else "speed unknown"
    return f"{speed}, MTU {network.mtu}" if network.mtu else speed


def failure_words(failures: Sequence[PairResult]) -> str:
    """Say which connections of a network failed; a node that is in all of them is named."""
    kinds = {one.kind for one in failures}
    ends = [{one.source, one.target} for one in failures]
    common = set.intersection(*ends)
    words = "; ".join(
        f"{one.source} to {one.target}: {one.problem or KIND_WORDS.get(one.kind, one.kind)}"
        for one in failures[:MOST_NAMED]
    )
    more = f" and {len(failures) - MOST_NAMED} more" if len(failures) > MOST_NAMED else ""
    if len(common) == 1 and len(failures) > 1:
        what = KIND_WORDS.get(next(iter(kinds)), "failed") if len(kinds) == 1 else "failed"
        return f"every failing connection has {common.pop()} at one end ({what}: {words}{more})"
    return f"{words}{more}"


# --- plain data ------------------------------------------------------------------------------------------------------


def plain(found: Candidates) -> Dict[str, Any]:
    """Return candidates as JSON-ready data."""
    return {
        "networks": [{**network._asdict(), "cidrs": list(network.cidrs)} for network in found.networks],
        "rejected": [{**one._asdict(), "hosts": list(one.hosts)} for one in found.rejected],
        "pinned": found.pinned,
        "cables": [{**network._asdict(), "cidrs": list(network.cidrs)} for network in found.cables],
    }


def from_plain(data: Mapping[str, Any]) -> Candidates:
    """Return the candidates from the data of :func:`plain`."""
    networks, cables = (
        tuple(Network(**{**one, "cidrs": tuple(one["cidrs"])}) for one in data[kind]) for kind in ("networks", "cables")
    )
    return Candidates(
        networks,
        tuple(Rejection(**{**one, "hosts": tuple(one["hosts"])}) for one in data["rejected"]),
        bool(data["pinned"]),
        cables,
    )


# --- answers ---------------------------------------------------------------------------------------------------------

_MOST_RESULTS = 1 << 16
_LARGEST_PORT = 65535
_LONGEST_WORDS = 500


def listener_ports(answer: Any) -> Dict[str, int]:
    """Return the port of a listener by network."""
    found = _mapping(answer, "ports")
    return {str(key): port for key, port in found.items() if type(port) is int and 0 < port <= _LARGEST_PORT}


def tells_cables(answer: Any) -> bool:
    """Tell whether Open MPI of a node that listens knows which of its interfaces leads to which node."""
    return isinstance(answer, Mapping) and answer.get("tells_cables") is True


def listener_problems(answer: Any) -> Dict[str, str]:
    """Return by network why a node does not listen, in words of one line."""
    return {str(key): one_line(str(words), _LONGEST_WORDS) for key, words in _mapping(answer, "problems").items()}


def connection_results(answer: Any) -> Iterator[Tuple[str, str, PairKind, str]]:
    """Return network, target, kind and problem of each connection that a node tells of."""
    found = answer.get("results") if isinstance(answer, Mapping) else None
    for entry in found[:_MOST_RESULTS] if isinstance(found, list) else ():
        if not isinstance(entry, (list, tuple)) or not all(isinstance(word, str) for word in entry):
            continue
        if len(entry) == 5 and (entry[2] == "ok" or entry[2] in KIND_WORDS):  # noqa: PLR2004 - with its port
            network, target, kind, problem, _port = entry
            yield network, target, kind, one_line(problem, _LONGEST_WORDS)


def _mapping(answer: Any, key: str) -> Mapping[Any, Any]:
    found = answer.get(key) if isinstance(answer, Mapping) else None
    return found if isinstance(found, Mapping) else {}
