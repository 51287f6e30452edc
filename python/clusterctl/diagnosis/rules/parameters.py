"""Do settings of Open MPI, PRRTE, UCX and NCCL stop jobs, and are the files of the role ``fabric`` still there?"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import PROVISION, artifact, compare, provisioned
from clusterctl.model import ip_address, nodeset
from clusterctl.model.findings import Finding
from clusterctl.model.network_parameters import INCLUSION_OF, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts, Parameter

ORDER = 35
ENVIRONMENT = "environment"
_LAST_PORT = 65535
_NUMBER = re.compile(r"[0-9]{1,9}")
_OF_SERIES = {"oob_tcp_if_exclude": "4.", "prte_if_exclude": "5."}  # the other series does not know the parameter
_BETWEEN_NODES = {"tcp", "ofi", "openib", "portals4", "uct", "ugni", "usnic"}  # byte transfer layers
_ON = {"1", "y", "yes", "t", "true", "on"}
_PAM = "/etc/security/pam_env.conf"
_RECORD, _NCCL = "/etc/clusterctl/fabric.json", "/etc/nccl.conf"
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
            if stop:
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


def tcp_ports(nodes: Mapping[str, NodeFacts]) -> dict[str, tuple[int, int]]:
    """Return, for each node that limits Open MPI's TCP ports, the first one and their number.

    The defaults are those of Open MPI (btl_tcp_port_min_v4 and btl_tcp_port_range_v4).
    """
    found = {}
    for host, node in nodes.items():
        given = {one.name.removeprefix("OMPI_MCA_"): one.value for one in sorted(_taken(node), key=_rank, reverse=True)}
        first, count = given.get("btl_tcp_port_min_v4", "1024"), given.get("btl_tcp_port_range_v4", "64511")
        if (first, count) != ("1024", "64511") and _NUMBER.fullmatch(first) and _NUMBER.fullmatch(count):
            low = min(max(1024, int(first)), _LAST_PORT)
            found[host] = low, min(max(1, int(count)), _LAST_PORT + 1 - low)
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
    if names == {"ucx"} and provisioned(node) and not node.tools.get("ucx"):
        return "asks for UCX, which this node does not have"
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
    if excludes or not names or any(_is_here(name, node) for name in names):
        return ""
    return "names networks that this node does not have"


def _is_here(word: str, node: NodeFacts) -> bool:
    if "/" not in word:
        return any(link.name == word for link in node.interfaces)
    return any(ip_address.inside(entry.address, [word]) for link in node.interfaces for entry in link.addresses)


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
    names = [link.name for link in node.interfaces]
    if value.startswith("="):
        known = any(word.partition(":")[0] in names for word in words)
    else:
        known = any(name.startswith(word.partition(":")[0]) for name in names for word in words)
    return "" if known or not words else "names interfaces that this node does not have"


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


def _rank(one: Parameter) -> int:
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
