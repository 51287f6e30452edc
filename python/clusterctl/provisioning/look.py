"""Look at the hosts before a decision: gather their facts, and reduce them to what decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.model.drift import SLICES, NodeState
from clusterctl.remote import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.facts import Limit, NodeFacts
    from clusterctl.model.hosts import Inventory
    from clusterctl.model.probe import Probe

EVERY_SLICE = tuple(range(SLICES))
_TIMEOUT_S = 30.0
_READING_TIMEOUT_S = 1800.0  # tens of gigabytes from a slow disk
_LIMITS = {"nofile": "limit of open files", "memlock": "limit of locked memory"}


def look(
    cluster: Inventory,
    watch: Mapping[str, Sequence[dict[str, Any]]],
    *,
    content: Sequence[int] = (),
    busy: bool = False,
    sudo_password: str | None = None,
    also: Mapping[str, Any] | None = None,
) -> Probe:
    """Look at all hosts that a plain ssh can reach, also those outside the limit: the others refer to them.

    Args:
        cluster: the inventory's hosts.
        watch: by host, the entries of its snapshot.
        content: the slices of the artifacts' files whose content is compared.
        busy: also find ranks, and processes that use an artifact.
        sudo_password: typed by the user.
        also: what else is asked, as for ``facts.gather``; of the watched entries, in place of those of the snapshots.
    """
    hosts = [host.with_sudo_password(sudo_password) for host in cluster.hosts if host.by_ssh]
    patience_s = _READING_TIMEOUT_S if content else _TIMEOUT_S
    return facts.gather(hosts, **{"watch": watch, **(also or {})}, content=content, busy=busy, timeout_s=patience_s)


def state_of(node: NodeFacts) -> NodeState:
    """Return what of a node's facts decides."""
    return NodeState(
        platform=node.platform,
        host_keys=tuple(node.ssh.host_keys),
        user=node.user.name,
        watch=tuple(plain(entry) for entry in node.watch),
        gpus=_gpus(node),
        lost_address=_lost_address(node),
        addresses=frozenset(entry.address for link in node.interfaces for entry in link.addresses),
        traits=_traits(node),
        offers=_offers(node),
    )


def plain(value: Any) -> dict[str, Any]:
    """Return a record as a dict for JSON."""
    data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return dict(data)


def _traits(node: NodeFacts) -> dict[str, str]:
    found = {"host name": node.hostname}
    found.update({_LIMITS[name]: _limit(node.limits[name]) for name in _LIMITS if name in node.limits})
    found.update({f"limit '{name}'": value for name, value in node.limit_settings.items()})
    found.update({f"sshd's {name}": value for name, value in node.ssh.settings.items()})
    return found


def _limit(limit: Limit) -> str:
    soft, hard = ("unlimited" if value is None else str(value) for value in (limit.soft, limit.hard))
    return soft if soft == hard else f"{soft} of at most {hard}"


def _offers(node: NodeFacts) -> str:
    """Return what of a node decides about the builds of its cluster, as the role preflight describes its members."""
    found = {
        node.platform: True,
        "UCX": bool(node.tools.get("ucx")),
        "libcuda": node.cuda.libcuda,
        f"CUDA toolkit {node.cuda.toolkit_version}": bool(node.cuda.toolkit_version),
        f"driver {node.cuda.driver_version} for CUDA {node.cuda.major}": bool(node.cuda.driver_version),
        f"GPUs {_gpus(node)}": bool(_gpus(node)),
    }
    return ", ".join(words for words, there in found.items() if there)


def _lost_address(node: NodeFacts) -> str:
    if node.fabric is None:
        return ""
    links = [link for link in node.interfaces if link.name == node.fabric.interface]
    present = {entry.address for link in links for entry in link.addresses}
    return "" if node.fabric.address in present else node.fabric.address


def _gpus(node: NodeFacts) -> str:
    taken = [gpu for gpu in node.gpus if gpu.usable]
    instances = sum(len(gpu.instances) for gpu in taken)
    split = f" in {instances} MIG instances" if instances else ""
    return f"{len(taken)}{split} with driver {node.cuda.driver_version}" if taken else ""
