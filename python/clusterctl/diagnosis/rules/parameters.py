"""Rules of settings of Open MPI, PRRTE, UCX and NCCL: which of them stop jobs, and are the files of ``fabric`` there?

NCCL_IB_GID_INDEX must name the RoCE v2 entry for IPv4 in the GID table of each port that NCCL uses. One index holds for
all ports of a node. The index of an entry depends on the order in which a node got its addresses. A setting that fits
one node may be wrong on another (NCCL User Guide, "Environment Variables", NCCL_IB_GID_INDEX).
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.diagnosis.skew import PROVISION, artifact, compare, provisioned
from clusterctl.model import fabric, nodeset
from clusterctl.model.fabric import INCLUSION_OF, plain
from clusterctl.model.findings import Finding, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.fabric import RdmaChoice
    from clusterctl.model.facts import NodeFacts, Parameter
    from clusterctl.model.network_facts import Gid, Interface

ENVIRONMENT = "environment"
_LAST_PORT = 65535
_LOWEST, _EPHEMERAL = (1024, 256), (0, 0)  # ranges of ports
_NUMBER = re.compile(r"[0-9]{1,9}")
_OF_SERIES = {"oob_tcp_if_exclude": "4.", "prte_if_exclude": "5."}  # the other series does not know the parameter
_BETWEEN_NODES = {"tcp", "ofi", "openib", "portals4", "uct", "ugni", "usnic"}  # byte transfer layers
_ON = {"1", "y", "yes", "t", "true", "on"}
_PAM = "/etc/security/pam_env.conf"
_RECORD, _NCCL = "/etc/clusterctl/fabric.json", "/etc/nccl.conf"
_LOOPBACK = "names loopback alone, over which no other node is reached"
# NCCL takes these from each node's own hardware, so they may differ.
_OF_ONE_NODE = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE")


def findings(view: View) -> Iterator[Finding]:
    """Return settings that stop jobs or slow them down, and files of ``fabric`` that are gone.

    Settings count before the first provision as well: the jobs after it take them.
    """
    nodes = view.nodes
    for host, node in nodes.items():
        for one in _taken(node):
            stop = _stop(one, node)
            if stop and not (stop == _LOOPBACK and len(nodes) == 1):
                yield Finding("parameters", "error", (host,), f"{_shown(one)} {stop}", _cure(one))
            elif slow := _slow(one, node):
                yield Finding("parameters", "warning", (host,), f"{_shown(one)} {slow}", _cure(one))
    yield from _different(nodes)
    yield from _contradictions(nodes)
    yield from _fabric_files(view.provisioned)


def notes(view: View) -> Iterator[str]:
    """List the other settings that clusterctl did not write."""
    having: dict[str, list[str]] = defaultdict(list)
    for host, node in view.nodes.items():
        for one in node.parameters:
            if not one.in_session:
                having[f"{_shown(one)}, which a session without a terminal does not take"].append(host)
            elif not _stop(one, node) and not _slow(one, node):
                having[_shown(one)].append(host)
    for words, hosts in having.items():
        yield f"A setting that clusterctl did not write, on {nodeset.folded(hosts)}: {words}."


def _taken(node: NodeFacts) -> list[Parameter]:
    """Return the settings that jobs over ssh take."""
    return [one for one in node.parameters if one.in_session]


def tcp_ports(nodes: Mapping[str, NodeFacts]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return by node the ranges in which jobs listen, each as its first port and their number.

    0 as the first port stands for the range of the node's kernel, which NCCL, gloo and PRRTE take ports from. Open MPI
    takes the lowest free port of a range of its own, unless RDMA carries its messages. Where a site limits that range,
    it counts alone. The defaults are those of Open MPI (btl_tcp_port_min_v4 and btl_tcp_port_range_v4).
    """
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for host, node in nodes.items():
        given = {one.name.removeprefix("OMPI_MCA_"): one.value for one in sorted(_taken(node), key=_rank, reverse=True)}
        first, count = given.get("btl_tcp_port_min_v4", "1024"), given.get("btl_tcp_port_range_v4", "64511")
        if (first, count) != ("1024", "64511") and _NUMBER.fullmatch(first) and _NUMBER.fullmatch(count):
            low = min(max(1024, int(first)), _LAST_PORT)
            found[host] = ((low, min(max(1, int(count)), _LAST_PORT + 1 - low)),)
        else:
            found[host] = (_EPHEMERAL,) if _has_rdma(node) else (_LOWEST, _EPHEMERAL)
    return found


def _shown(one: Parameter) -> str:
    return f"{one.name} = {one.value} ({_place(one.source)})"


def _cure(one: Parameter) -> str:
    if one.source == ENVIRONMENT:
        return f"find what sets {one.name} in /etc/environment or a start-up file of the shell, and remove it"
    return f"remove that line from {one.source}"


def _stop(one: Parameter, node: NodeFacts) -> str:
    """Say why jobs fail with a setting, '' if they do not."""
    rule = _STOPPERS.get(plain(one.name))
    return rule(one.value, node) if rule else ""


def _slow(one: Parameter, node: NodeFacts) -> str:
    """Say why jobs are slow with a setting, '' if they are not."""
    if one.value.lower() not in _ON:
        return ""
    if one.name == "NCCL_IB_DISABLE" and _has_rdma(node):
        return "has NCCL leave the RDMA ports of this node unused"
    if one.name in {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"} and len(node.gpus) > 1:
        return "has NCCL take a slower way between the GPUs of a node"
    return ""


def _has_rdma(node: NodeFacts) -> bool:
    return any(port.state == "ACTIVE" for device in node.rdma for port in device.ports)


def _listed(value: str) -> tuple[bool, set[str]]:
    """Return whether a list of components excludes them, and their names."""
    return value.startswith("^"), {word.strip().lstrip("^") for word in value.split(",")} - {""}


def _btl(value: str, node: NodeFacts) -> str:
    """Judge the byte transfer layers; with RDMA, UCX or libfabric may carry messages in their place."""
    excludes, names = _listed(value)
    if _has_rdma(node) or not names:
        return ""
    if excludes:
        gone = "tcp" if "tcp" in names else "self" if "self" in names else ""
    else:
        gone = "tcp" if not names & _BETWEEN_NODES else "self" if "self" not in names else ""
    if gone == "tcp":
        return "leaves out tcp, so that ranks on two nodes cannot reach each other"
    return "leaves out self, so that a rank cannot reach itself" if gone else ""


def _pml(value: str, node: NodeFacts) -> str:
    excludes, names = _listed(value)
    if excludes:
        return "leaves out ob1, so that messages have no way over TCP" if "ob1" in names and not _has_rdma(node) else ""
    installed = artifact(node, "openmpi")
    if names == {"ucx"} and provisioned(node) and installed is not None and not installed.has_ucx:
        return "asks for UCX, and the Open MPI of this node was built without it"
    if names == {"cm"} and not _has_rdma(node):
        return "asks for a network with RDMA, which this node does not have"
    return ""


def _out_of_band(value: str, _node: NodeFacts) -> str:
    excludes, names = _listed(value)
    return "leaves the launcher without TCP between nodes" if excludes == ("tcp" in names) else ""


def _launcher(value: str, _node: NodeFacts) -> str:
    excludes, names = _listed(value)
    if names == {"isolated"} or (excludes and names & {"ssh", "rsh"}):
        return "forbids mpirun to start ranks on other nodes"
    return ""


def _included(value: str, node: NodeFacts) -> str:
    """Judge a list of interfaces or subnets; Open MPI skips what a node does not have."""
    excludes, names = _listed(value)
    if excludes or not names:
        return ""
    return _reach([link for link in node.interfaces if any(_is_named(word, link) for word in names)], "networks")


def _reach(named: Sequence[Interface], what: str) -> str:
    """Say why no other node is reached over the interfaces that a setting names, '' if one may be."""
    if not named:
        return f"names {what} that this node does not have"
    if all(link.kind == "loopback" for link in named):
        return _LOOPBACK
    return "" if any(link.up for link in named) else f"names {what} that are down"


def _is_named(word: str, link: Interface) -> bool:
    if "/" not in word:
        return link.name == word
    return any(fabric.inside(entry.address, [word]) for entry in link.addresses)


def _excluded(_value: str, node: NodeFacts, name: str) -> str:
    installed = artifact(node, "openmpi")
    if installed is not None and not installed.version.startswith(_OF_SERIES.get(name, "")):
        return ""
    included = INCLUSION_OF[name]
    if any(included in file.own for file in node.parameter_files):
        return f"contradicts {included} of the role fabric, and Open MPI refuses the two together"
    return ""


def _nccl_interfaces(value: str, node: NodeFacts) -> str:
    """Judge NCCL_SOCKET_IFNAME: prefixes of names; ``=`` asks for whole names and ``^`` excludes."""
    if value.startswith("^"):
        return ""
    words = [word for word in value.removeprefix("=").split(",") if word]
    names = {word.partition(":")[0] for word in words}
    exact = value.startswith("=")
    named = [
        link for link in node.interfaces if link.name in names or (not exact and link.name.startswith(tuple(names)))
    ]
    return _reach(named, "interfaces") if words else ""


def _nccl_net(value: str, node: NodeFacts) -> str:
    if value.lower() == "ib" and not _has_rdma(node):
        return "asks for RDMA, and this node has no active port"
    return ""


def _prefix(value: str, node: NodeFacts) -> str:
    installed = artifact(node, "openmpi")
    if installed is None or value.rstrip("/") in {node.layout.openmpi, installed.target}:
        return ""
    return f"has the Open MPI in {node.layout.openmpi} look for its own files elsewhere"


_STOPPERS: Mapping[str, Callable[[str, NodeFacts], str]] = {
    "btl": _btl,
    "pml": _pml,
    "oob": _out_of_band,
    "plm": _launcher,
    "btl_tcp_if_include": _included,
    "oob_tcp_if_include": _included,
    "prte_if_include": _included,
    **{name: partial(_excluded, name=name) for name in INCLUSION_OF},
    "NCCL_SOCKET_IFNAME": _nccl_interfaces,
    "NCCL_NET": _nccl_net,
    "OPAL_PREFIX": _prefix,
    "PRTE_PREFIX": _prefix,
    "PMIX_PREFIX": _prefix,
}


def _different(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare settings of NCCL, which must agree in its algorithms and buffers on all nodes."""
    names = dict.fromkeys(one.name for node in nodes.values() for one in _taken(node) if one.name.startswith("NCCL_"))
    for name in names:
        if name in _OF_ONE_NODE or name in _STOPPERS:
            continue
        values = {
            host: next((one.value for one in sorted(_taken(node), key=_rank) if one.name == name), "not set")
            for host, node in nodes.items()
        }
        yield from compare("parameters", "warning", name, values, f"set {name} alike on all nodes, or nowhere")


def _contradictions(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name settings that two sources of a node set to different values; one that overrides clusterctl's is a note."""
    for host, node in nodes.items():
        sources: dict[str, dict[str, Parameter]] = defaultdict(dict)
        for one in node.parameters:
            sources[plain(one.name)].setdefault(one.source, one)
        for name, places in sources.items():
            if len({one.value for one in places.values()}) > 1:
                told = " and ".join(f"{one.value} in {_place(source)}" for source, one in sorted(places.items()))
                winner = min((one for one in places.values() if one.in_session), key=_rank, default=None)
                counts = f"; jobs over ssh take that of {_place(winner.source)}" if winner else ""
                cure = (
                    f"keep {name} in one place; the environment counts before files, and files of a home before others"
                )
                yield Finding("parameters", "warning", (host,), f"{name} is {told}{counts}", cure)


def _rank(one: Parameter | _Set) -> int:
    """Return the place of a setting among those that count; lower ones count first."""
    if one.source.endswith("-override.conf"):
        return 0
    if not one.source.endswith(".conf") or one.source == _PAM:
        return 1  # a variable of the session, whichever file sets it
    return 3 if one.source.startswith(("/etc/", "/usr/")) else 2


def _place(source: str) -> str:
    return "the environment" if source == ENVIRONMENT else source


def _fabric_files(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Name files that the role ``fabric`` wrote and that are gone, or have lost its block."""
    known = {host: node for host, node in nodes.items() if node.parameter_files}
    if not any(_is_configured(node) for node in known.values()):
        return
    for host, node in known.items():
        for file in node.parameter_files:
            if file.own or (file.path == _RECORD and file.exists):
                continue
            lost = "has lost clusterctl's block" if file.exists else "is missing"
            whom = "clusterctl" if file.path == _RECORD else "NCCL" if file.path == _NCCL else "Open MPI"
            cause = f"{file.path} {lost}, which tells {whom} the cluster's network"
            yield Finding("parameters", "error", (host,), cause, f"{PROVISION} (role fabric)")


def _is_configured(node: NodeFacts) -> bool:
    """Whether the role ``fabric`` has chosen a network; without one it writes settings of NCCL at most."""
    return any(file.exists if file.path == _RECORD else file.own for file in node.parameter_files if file.path != _NCCL)


# --- the index of RoCE's entry in the GID table -----------------------------------------------------------------------

_INDEX, _CARDS = "NCCL_IB_GID_INDEX", "NCCL_IB_HCA"
_LEAST = 3
_BITS, _IPV6 = 32, 6
_LARGEST = 3  # digits of an index; tables have at most 256 entries


class _Set(NamedTuple):
    """The value of a setting that counts, and the place that sets it."""

    value: str
    source: str


class _NamedEntry(NamedTuple):
    """What a node's index names in the GID table of a port; None: no entry."""

    choice: RdmaChoice
    number: int
    source: str
    entry: Gid | None


def gid_index(view: View) -> Iterator[Finding]:
    """Return the ports on which the index names another entry than the one that RoCE needs."""
    for host, node in view.nodes.items():
        for named in _named(node):
            wrong = _wrong(named)
            if wrong:
                place = f"{named.choice.device} port {named.choice.port}"
                cause = f"{_INDEX} = {named.number} ({named.source}) names {wrong} of {place}"
                yield Finding("gid index", "error", (host,), cause, _index_cure(named))
    yield from _networks(view)


def gid_index_notes(view: View) -> Iterator[str]:
    """Return the ports whose entry stands at different places on nodes that leave the index to NCCL."""
    places: dict[str, dict[int, list[str]]] = {}
    for host, node in view.nodes.items():
        if not _setting(node, _INDEX).value:
            for choice in _ports(node):
                if choice.gid_index is not None:
                    port = f"{choice.device} port {choice.port}"
                    places.setdefault(port, {}).setdefault(choice.gid_index, []).append(host)
    for port, indices in places.items():
        if len(indices) > 1:
            shown = ", ".join(f"{index} on {nodeset.folded(hosts)}" for index, hosts in sorted(indices.items()))
            yield (
                f"The RoCE v2 entry for IPv4 of {port} has different indices: {shown}. No {_INDEX} fits all nodes; "
                "leave it unset, since NCCL 2.21 and later find the entry by themselves."
            )


def _named(node: NodeFacts) -> Iterator[_NamedEntry]:
    found = _setting(node, _INDEX)
    if not (found.value.isascii() and found.value.isdecimal() and len(found.value) <= _LARGEST):
        return  # not set, or -1: NCCL chooses
    index = int(found.value)
    tables = {(device.name, port.number): port.gids for device in node.rdma for port in device.ports}
    for choice in _ports(node):
        table = tables.get((choice.device, choice.port), ())
        if table and all(entry.type for entry in table):  # an old kernel does not tell the version of an entry
            entry = next((entry for entry in table if entry.index == index), None)
            yield _NamedEntry(choice, index, found.source, entry)


def _wrong(named: _NamedEntry) -> str:
    """Say what the index names in place of the right entry, '' if nothing is wrong."""
    entry = named.entry
    if entry is None:
        return "no entry of the GID table"
    if entry.type != "RoCE v2":
        return f"an entry of type {entry.type}, which is not routed,"
    address = _address(entry)
    if address is None:
        return ""  # not in a form that is known
    if address.version == _IPV6 and (named.choice.gid_index is not None or address.is_link_local):
        return f"the address {address}, which is not an IPv4 address,"
    return ""


def _index_cure(named: _NamedEntry) -> str:
    if named.choice.gid_index is None:
        return f"{named.choice.reason}; until then unset {_INDEX}"
    right = f"{named.choice.gid_index} is {named.choice.reason}"
    return f"set {_INDEX}={named.choice.gid_index} there, or unset it (NCCL 2.21 or later): {right}"


def _networks(view: View) -> Iterator[Finding]:
    """Name the nodes on which the same index leads to another network than on most nodes."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for host, node in view.nodes.items():
        for named in _named(node):
            network = _network(node, named.entry) if named.entry is not None and not _wrong(named) else ""
            if network:
                found.setdefault((f"{named.choice.device} port {named.choice.port}", named.number), {})[host] = network
    for (port, index), networks in found.items():
        spread = majority(networks)
        usual = sum(network == spread.usual for network in networks.values())
        if len(networks) < _LEAST or usual * 2 <= len(networks):
            continue  # with a network for each node or rack, none is usual
        for network, hosts in spread.others.items():
            cause = f"{_INDEX} = {index} leads {port} to {network}, and to {spread.usual} on most nodes"
            cure = "compare the GID tables ('show_gids'); name the entry of the same network on all nodes"
            yield Finding("gid index", "error", hosts, cause, cure)


def _network(node: NodeFacts, entry: Gid) -> str:
    address = _address(entry)
    for link in node.interfaces:
        for own in link.addresses:
            if address is not None and address.version != _IPV6 and own.address == str(address):
                return str(fabric.network(f"{address}/{max(0, min(own.prefix, _BITS))}", strict=False))
    return ""


def _address(entry: Gid) -> fabric.IpAddress | None:
    """Return the address of a GID, an IPv4 address that it maps as such; None for a form that is not known."""
    try:
        return fabric.parsed(entry.gid)
    except ValueError:
        return None


def _setting(node: NodeFacts, name: str) -> _Set:
    """Return the setting that counts: the environment, then a file of the home, then /etc/nccl.conf."""
    found = [_Set(one.value, one.source) for one in node.parameters if one.name == name and one.in_session]
    found += [
        _Set(file.own[name], file.path) for file in node.parameter_files if file.path == _NCCL and name in file.own
    ]
    return min(found, key=_rank, default=_Set("", ""))


def _ports(node: NodeFacts) -> list[RdmaChoice]:
    """Return the active ports of RoCE that NCCL takes; NCCL_IB_HCA names prefixes, '=' whole names, '^' excludes."""
    words = _setting(node, _CARDS).value
    excludes = words.startswith("^")
    words = words.removeprefix("^")
    exact = words.startswith("=")
    names = [word.strip() for word in words.removeprefix("=").split(",") if word.strip()]
    active = [choice for choice in fabric.rdma(node) if choice.state == "ACTIVE" and choice.link_layer == "Ethernet"]
    return [choice for choice in active if not names or _is_meant(choice, names, exact=exact) is not excludes]


def _is_meant(choice: RdmaChoice, names: list[str], *, exact: bool) -> bool:
    for name in names:
        device, _, port = name.partition(":")
        same = choice.device == device if exact else choice.device.startswith(device)
        if same and port in ("", str(choice.port)):
            return True
    return False
