"""Choose the network that carries the cluster's jobs, and describe RDMA ports: facts in, decision out; no I/O.

The rules and their types are the collection's ``plugins/module_utils/fabric_rules``, which the role ``fabric`` uses as
well. This module loads them and feeds them with typed facts. :mod:`clusterctl.remote.network_probe` probes candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from module_utils import fabric_rules as _rules  # mypy finds it by mypy_path
    from module_utils import ip_address as _ip_rules  # mypy finds it by mypy_path

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.network_facts import Fabric
else:
    _rules = content.module_util("fabric_rules")
    _ip_rules = content.module_util("ip_address")


PairKind = _rules.PairKind
Network = _rules.Network
Rejection = _rules.Rejection
Candidates = _rules.Candidates
PairResult = _rules.PairResult
Decision = _rules.Decision
RdmaChoice = _rules.RdmaChoice

# In the place of a network: connections to the addresses that names lead to; and how these end where nobody answers.
NAMES = "names"
NOT_THERE: frozenset[PairKind] = frozenset({"refused", "rejected", "no_route", "timeout", "wrong_node"})

pairs = _rules.pairs
decide = _rules.decide
matrix = _rules.matrix
at_fault = _rules.at_fault
idle_cards = _rules.idle_cards
TWINS_CURE = _rules.TWINS_CURE

_READ = {"interfaces", "routes", "rdma"}


def candidates(
    nodes: Mapping[str, NodeFacts], *, cidrs: Sequence[str] = (), interfaces: Sequence[str] = ()
) -> Candidates:
    """Return the networks in which every node has a distinct address that is up, best first.

    ``cidrs`` are networks to take (the variable ``fabric_cidr``). Of ``interfaces``, each node takes the first that it
    has (``fabric_interfaces``).

    Raises:
        ConfigError: a pin is malformed, or a node lacks it; the message names the node.
    """
    plain = {host: node.model_dump(include=_READ) for host, node in nodes.items()}
    try:
        return _rules.candidates(plain, list(cidrs), list(interfaces))
    except _rules.FabricError as error:
        raise ConfigError(str(error)) from None


def over_cables(record: Fabric) -> bool:
    """Whether cables carry a node's messages, and not the cluster's network."""
    return _rules.over_cables(record.model_dump())


def with_written(found: Candidates, nodes: Mapping[str, NodeFacts]) -> Candidates:
    """Return the candidates with the rails and cables that the nodes have on record, to be probed as well."""
    records = {host: node.fabric.model_dump() if node.fabric else None for host, node in nodes.items()}
    there = {one.key for one in found.networks}
    further = tuple(one for one in _rules.written(records) if one.key not in there)
    return found._replace(cables=further or found.cables)


def rdma(node: NodeFacts) -> tuple[RdmaChoice, ...]:
    """Return what each port of each RDMA device of a node offers."""
    return rdma_of(node.model_dump(include=_READ))


def rdma_of(record: Mapping[str, Any]) -> tuple[RdmaChoice, ...]:
    """Return the same from a node's record as the probe wrote it."""
    return _rules.rdma(record)


# --- Parameters by which Open MPI chooses TCP networks; it refuses an inclusion and its exclusion together ------------

# Of MPI's messages, and of the runtime of 4.1 and 5.0.
INCLUSION_OF: Mapping[str, str] = {
    "btl_tcp_if_exclude": "btl_tcp_if_include",
    "oob_tcp_if_exclude": "oob_tcp_if_include",
    "prte_if_exclude": "prte_if_include",
}
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")


def plain(name: str) -> str:
    """Return the name of a parameter without the prefix that it has as a variable."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


# --- IP addresses and networks that nodes and users gave, by the rules that the roles use as well ---------------------
#
# The rules are the collection's ``plugins/module_utils/ip_address``.

IpAddress = _ip_rules.IpAddress
IpNetwork = _ip_rules.IpNetwork
parsed = _ip_rules.parsed
network = _ip_rules.network
network_or_none = _ip_rules.network_or_none
is_ipv6_of_link = _ip_rules.is_ipv6_of_link


def own_twins(node: NodeFacts) -> dict[str, list[str]]:
    """Return the addresses that several cards of one node have, with their names."""
    found: dict[str, list[str]] = _rules.own_twins(node.model_dump(include=_READ))
    return found


def inside(address: str, cidrs: Iterable[str]) -> bool:
    """Tell whether an address, with or without a scope, is in one of the networks; what is neither is in none."""
    try:
        found = parsed(address, may_have_scope=True)
    except ValueError:
        return False
    return any(found in one for cidr in cidrs if (one := network_or_none(cidr)) is not None)
