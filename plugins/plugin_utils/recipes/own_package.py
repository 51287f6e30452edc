# SPDX-License-Identifier: GPL-3.0-or-later
"""The mpi4py and Horovod of an environment that the user made: taken where they were built for this cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import tree_name
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import existing_env, existing_openmpi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Plan

_LIBRARIES = {"openmpi": "MPI", "nccl": "NCCL"}
_NOTHING = dict.fromkeys(("folder", "library", "nccl", "framework"), "")


@dataclass(frozen=True)
class Own:
    """What the environment of a host's user has of software.

    Attributes:
        path: its folder, where it was built for this cluster, so that no other is built; else ''.
        version: of the one in that folder.
        note: for the user where it was built for something else; else ''.
    """

    path: str = ""
    version: str = ""
    note: str = ""


@dataclass(frozen=True)
class Made:
    """What differs between software that is compiled, and a package of the user that is there."""

    version: str
    inputs: Mapping[str, Any]
    build: Mapping[str, Any]
    install: Mapping[str, Any]


def find(host: Host, software: str, compiled: str, misfit: Callable[[Mapping[str, str]], str], cure: str) -> Own:
    """Return what a host's environment has of software; an empty one without it.

    Args:
        host: the host.
        software: its name in messages; in lower case, that of its package.
        compiled: its name in ``mpi`` of :mod:`node_look.existing_python`.
        misfit: says of this entry why it cannot be taken, as what follows its version; '' where it can.
        cure: what makes it one that can be taken.
    """
    found, package = existing_env.of(host), software.lower()
    if found is None or package not in found.packages:
        return Own()
    its, version = found.mpi.get(compiled, _NOTHING), found.packages[package]
    why = misfit(its)
    if not why:
        return Own(f"{its['folder']}/{package}", version)
    return Own(
        note=f"{software} {version} of {found.path} {why}; jobs get the cluster's own {software} (to use yours, {cure})"
    )


def elsewhere(cluster: Cluster, plans: Mapping[str, Plan], host: Host, name: str, library: str) -> str:
    """Say that a library is not that of the cluster's Open MPI or NCCL; '' where it is.

    Args:
        cluster: the hosts.
        plans: what was decided before.
        host: the host.
        name: ``openmpi`` or ``nccl``.
        library: its path, its name or '', as ``mpi`` of the environment has it.
    """
    comes = cluster.comes(plans, name, host, name)
    # CMake follows the link, and names the folder that it leads to
    tree = tree_name(name, str(comes.get("version")), str(comes.get("key")))
    places = {f"{cluster.prefix}/{folder}/lib" for folder in (name, tree)}
    if name == "openmpi":
        places.update(existing_openmpi.libraries(host))
    if str(PurePosixPath(library).parent) in places:
        return ""
    if "/" in library:
        return f"was built against {library}"
    return f"takes {library} of the system" if library else f"names no library of {_LIBRARIES[name]}"


def leads_to(own: Own, package: str, prefix: str) -> Made:
    """Return how an artifact leads to a package of the user that can be taken."""
    links_to = [] if existing_python.among_software(own.path, prefix) else [own.path]
    steps = [
        {"name": "folder", "argv": ["install", "-d", "-m", "0755", "@TREE@/site-packages"]},
        {"name": "link", "argv": ["ln", "-s", own.path, f"@TREE@/site-packages/{package}"]},
    ]
    return Made(
        own.version,
        {"recipe": "existing 1", "version": own.version, "taken_from": own.path},
        build={"links_to": links_to, "files": [], "steps": steps},
        install={"links_to": links_to},
    )
