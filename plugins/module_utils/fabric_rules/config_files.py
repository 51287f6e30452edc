# SPDX-License-Identifier: Apache-2.0
"""Write the text of the configuration files that tell Open MPI, PRRTE and NCCL the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Optional, Sequence

from .. import config_line, ip_address
from .model import FabricError

if TYPE_CHECKING:
    from .model import Network, Rejection


# PRRTE's daemons start ranks in 16 threads of their own. A rank that ends before its thread has noted its process id is
# reaped by another thread, which does not know it, and mpirun waits forever: 11 of 252 runs of hostname with PRRTE
# 3.0.8 of Open MPI 5.0.7. Without such threads, the one that reaps starts the ranks.
_NO_THREADS = "odls_base_max_threads = 0\n"


def openmpi_include(network: Network, host: str) -> str:
    """Return the value of *_if_include on a node: its own subnets in CIDR form.

    Subnets of other nodes would cause a warning. Open MPI does not read IPv6 in CIDR form, so an IPv6 network is given
    by the name of the interface.
    """
    address = ip_address.parsed(network.addresses[host])
    if address.version == 6:  # noqa: PLR2004
        return network.interfaces[host]
    return ",".join(cidr for cidr in network.cidrs if address in ip_address.network(cidr))


def prrte_include(network: Network) -> str:
    """Return the value of prte_if_include: the names of the interfaces of all nodes.

    PRRTE passes its own value to the daemons of the other nodes, and skips a name that a node does not have. The CIDR
    form does not work: PRRTE 3.0 (Open MPI 5.0.7) fails to match it behind an interface without an IPv4 address.
    """
    return ",".join(dict.fromkeys(network.interfaces.values()))


def _is_ipv6(network: Network) -> bool:
    return ip_address.network(network.cidrs[0]).version == 6  # noqa: PLR2004


def files(network: Optional[Network], host: str, settings: Mapping[str, str]) -> Dict[str, str]:
    """Return the text of the files on a node, under the keys ``openmpi``, ``prrte`` and ``nccl``.

    Args:
        network: the decision; None empties the files.
        host: the node.
        settings: more variables of NCCL.

    Raises:
        FabricError: the name of an interface or the value of a setting does not fit into a line.
    """
    if network is None:
        return {"openmpi": "", "prrte": "", "nccl": _nccl(settings, host)}
    for name, interface in network.interfaces.items():
        if not ip_address.is_interface(interface):
            raise FabricError(
                f"The interface {config_line.shown(interface)} of {name} has a name that the files of Open MPI and "
                "NCCL cannot hold; give it another one there, or name a network without it in fabric_cidr.",
                [name],
            )
    include = openmpi_include(network, host)
    nccl = {"NCCL_SOCKET_IFNAME": f"={network.interfaces[host]}", **settings}
    links = ""
    if _is_ipv6(network):  # the interface may have addresses of IPv4 too, which are outside of the network
        # oob_tcp_disable_ipv4_family is no twin of it: with it, PMIx finds no address to listen on (Open MPI 5.0.7).
        links = "btl_tcp_disable_family = 4\n"
        nccl.setdefault("NCCL_SOCKET_FAMILY", "AF_INET6")
    return {
        "openmpi": f"btl_tcp_if_include = {include}\n{links}oob_tcp_if_include = {include}\n",
        "prrte": f"prte_if_include = {prrte_include(network)}\n{_NO_THREADS}",
        "nccl": _nccl(nccl, host),
    }


def _nccl(settings: Mapping[str, str], host: str) -> str:
    """Return the lines of nccl.conf."""
    lines = []
    for name in sorted(settings):
        try:
            lines.append(f"{name}={config_line.checked(str(settings[name]), f'{name} of {host} in nccl.conf')}\n")
        except config_line.LineError as error:
            raise FabricError(f"{error}.", [host]) from None
    return "".join(lines)


def record(
    network: Network,
    host: str,
    rejected: Sequence[Rejection] = (),
    proven: Iterable[str] = (),
    *,
    opened: bool = False,
) -> Dict[str, Any]:
    """Return the content of /etc/clusterctl/fabric.json on a node.

    Args:
        network: the decision.
        host: the node.
        rejected: rejections that follow from facts; the words of a probe may differ the next time.
        proven: the nodes with which connections of this node came through.
        opened: whether the role opens the network in the node's firewall.
    """
    return {
        "schema_version": 1,
        "cidrs": list(network.cidrs),
        "interface": network.interfaces[host],
        "address": network.addresses[host],
        "rejected": {one.network: one.reason for one in rejected},
        "proven": sorted(set(proven) - {host}),
        **({"opened": True} if opened else {}),
    }
