"""All that was seen of a cluster, and which nodes are to blame for what fails between nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clusterctl.diagnosis import skew
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from clusterctl.model.fabric import Candidates, PairResult
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hardware import HardwareLooks, PartChange
    from clusterctl.model.hosts import Host
    from clusterctl.model.probe import ProbeFailure
    from clusterctl.remote.login_probe import LoginReport

Pair = tuple[str, str]  # source and target

FEW_PAIRS = 3  # so many get a line each; more are one line
_SHOWN_PAIRS = 4


@dataclass(frozen=True)
class View:
    """What was seen. A host is in ``nodes`` or in ``failures``; ``logins`` has those that could be asked.

    ``candidates`` is None where no networks were looked at, and ``pinned`` says why a pinned one cannot be taken.
    ``nccl_align`` is the variable of that name for each host. ``closed_to_jobs`` has the hosts that refuse the account
    that jobs run as. ``firewalls`` has the rule of the target's firewall that stops a connection, where it can be read.
    ``hardware`` has the looks at each node's hardware, and ``part_changes`` what became of parts since the last run.
    """

    hosts: tuple[Host, ...]
    nodes: Mapping[str, NodeFacts]
    failures: Mapping[str, ProbeFailure] = field(default_factory=dict)
    logins: Mapping[str, LoginReport] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    candidates: Candidates | None = None
    pairs: tuple[PairResult, ...] = ()
    pinned: str = ""
    nccl_align: Mapping[str, str] = field(default_factory=dict)
    closed_to_jobs: Mapping[str, ProbeFailure] = field(default_factory=dict)
    firewalls: Mapping[Pair, str] = field(default_factory=dict)
    hardware: Mapping[str, HardwareLooks] = field(default_factory=dict)
    part_changes: tuple[PartChange, ...] = ()

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    @property
    def provisioned(self) -> dict[str, NodeFacts]:
        """The nodes on which something of the cluster was installed."""
        return {name: node for name, node in self.nodes.items() if skew.provisioned(node)}

    def addresses(self, name: str) -> set[str]:
        """Return every address that a node has or is reached at."""
        host, node = self.host(name), self.nodes.get(name)
        found = {entry.address for link in (node.interfaces if node else ()) for entry in link.addresses}
        return found | {host.address, host.cluster_address}


@dataclass(frozen=True)
class Blame:
    """A node that most failures point to: as the ``source`` of connections, or as their ``target``."""

    host: str
    role: Literal["source", "target"]
    others: tuple[str, ...]


def blame(
    failed: Iterable[Pair], hosts: int, tried: Collection[Pair] = ()
) -> tuple[tuple[Blame, ...], tuple[Pair, ...]]:
    """Find the nodes that explain failures between nodes.

    A node is to blame where the failures of one direction reach more than half of the others, and two at least; the one
    that explains most comes first, and what it explains is set aside.

    Args:
        failed: sources and targets.
        hosts: how many nodes there are.
        tried: sources and targets of all that was tried, where that may be a sample; empty: every pair.

    Returns:
        The nodes to blame, and the pairs that no single node explains.
    """
    left = dict.fromkeys(failed)
    possible = Counter(end for pair in tried for end in ((pair[1], "target"), (pair[0], "source")))
    found: list[Blame] = []
    while left:
        ends: dict[tuple[str, Literal["source", "target"]], list[Pair]] = defaultdict(list)
        for pair in left:  # a node at which everybody fails is likelier than everybody failing at once
            ends[pair[1], "target"].append(pair)
            ends[pair[0], "source"].append(pair)
        likely = {end: pairs for end, pairs in ends.items() if len(pairs) * 2 > (possible[end] if tried else hosts - 1)}
        (host, role), explained = max(
            likely.items(), key=lambda entry: (len(entry[1]), entry[0][1] == "target"), default=(("", "target"), [])
        )
        if len(explained) < 2:  # noqa: PLR2004 - one pair blames nobody
            break
        others = tuple(source if role == "target" else target for source, target in explained)
        found.append(Blame(host, role, others))
        for pair in explained:
            del left[pair]
    return tuple(found), tuple(left)


def is_everywhere(failed: int, tried: int, hosts: int) -> bool:
    """Whether so much fails between nodes that no node is to blame: more than three quarters of what was tried."""
    return hosts > 2 and failed * 4 > tried * 3  # noqa: PLR2004 - two are a pair


def shown(pairs: Iterable[Pair]) -> str:
    """Return pairs as a person reads them: the first few, and how many more there are."""
    return and_more((f"from {source} to {target}" for source, target in pairs), _SHOWN_PAIRS)


def ends(pairs: Iterable[Pair]) -> tuple[str, ...]:
    """Return every node that is in a pair, once."""
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))
