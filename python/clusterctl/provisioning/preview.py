"""Preview of a provisioning run: which hosts get a build, an installation or files, and why; no I/O."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from module_utils import builder_turns as _turns  # mypy finds it by mypy_path

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import InventorySources
else:
    _turns = content.module_util("builder_turns")

# What every host gets; NCCL and Horovod depend on variables of roles, which Ansible alone works out.
ALWAYS = {"openmpi": "Open MPI", "python_env": "the cluster's Python", "mpi4py": "mpi4py"}
OPTIONAL = {"ucx": "UCX", "cpython": "the managed Python", "nccl": "NCCL", "horovod": "Horovod"}
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Preview:
    """What is about to be done, for a user who may still say no."""

    inventory: InventorySources
    platforms: Mapping[str, tuple[str, ...]]  # by platform, its hosts
    # by the hosts that may build, the software that neither the first one nor the cache has
    builds: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    # by software, the hosts that lack it or have it damaged
    installs: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # by host, why it is provisioned


@dataclass(frozen=True)
class SwitchPreview:
    """What a rollback is about to switch: by host, each link with the folder to which it is to lead."""

    inventory: InventorySources
    run_id: str
    left: datetime
    changes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class MembersPreview:
    """What a run is about to change about who belongs to the cluster, as lines."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class CollectPreview(MembersPreview):
    """What old artifacts are about to be removed, as lines."""


@dataclass(frozen=True)
class UninstallPreview:
    """What an uninstall is about to remove and to put back: by host, a phrase for each thing."""

    inventory: InventorySources
    changes: Mapping[str, tuple[str, ...]]
    told: tuple[str, ...] = ()


def preview(
    inventory: InventorySources,
    selected: Sequence[str],
    facts: Mapping[str, NodeFacts],
    reasons: Mapping[str, str],
    cached: Collection[tuple[str, str]],
) -> Preview:
    """Return what a run on the selected hosts is about to do.

    ``reasons`` has by host why it is provisioned; the others are as they should be. ``cached`` has name and platform of
    each artifact in the controller's cache.
    """
    platforms: dict[str, list[str]] = defaultdict(list)
    installs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    builds: dict[tuple[str, ...], tuple[str, ...]] = {}
    for host in selected:
        node = facts.get(host)
        platforms[node.platform if node else _UNKNOWN].append(host)
        if node is not None and host in reasons and (lacking := _lacking(node)):
            installs[lacking].append(host)
    for platform, hosts in platforms.items():
        builder = facts.get(hosts[0])
        wanted = {name for lacking, its in installs.items() if set(its) & set(hosts) for name in lacking}
        here = set() if builder is None else set(_lacking(builder))
        built = [name for name in {**ALWAYS, **OPTIONAL} if name in wanted & here and (name, platform) not in cached]
        if built:
            places = sorted({_turns.turn(name, len(hosts)) for name in built})
            builds[tuple(hosts[place] for place in places)] = tuple(built)
    return Preview(
        inventory,
        {platform: tuple(hosts) for platform, hosts in platforms.items()},
        builds,
        {lacking: tuple(hosts) for lacking, hosts in installs.items()},
        reasons,
    )


def _lacking(node: NodeFacts) -> tuple[str, ...]:
    """Return the software that a node lacks, and what is installed there and damaged."""
    damaged = {artifact.name for artifact in node.artifacts if not artifact.ok}
    return tuple(
        name for name in {**ALWAYS, **OPTIONAL} if name in damaged or (name in ALWAYS and not node.artifact(name).ok)
    )
