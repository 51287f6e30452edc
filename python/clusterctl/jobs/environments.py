"""The environments of projects: what is known of each here, and which nodes have it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.jobs import first_look
from clusterctl.jobs import team as team_of_job
from clusterctl.remote import supervised_job, supervisor_files
from clusterctl.state import environments, paths
from clusterctl.support.errors import UnreachableError

if TYPE_CHECKING:
    from clusterctl.model.hosts import AnyInventory, InventoryOptions
    from clusterctl.state.environments import Environment
    from clusterctl.support.errors import ClusterctlError

_PROGRAMS = (supervisor_files.SUPERVISOR, *supervisor_files.IMPORTED)
_MARKER = ".clusterctl.json"  # written last, so a folder with it is whole


@dataclass(frozen=True)
class ListedEnvironment:
    """An environment of a project.

    ``python`` has the release of each platform. ``hosts`` are the nodes that have it; ``gone_from`` those that had it
    and answer without it. ``packages`` and ``size``, the bytes of the pack that a node gets, are those of the first
    platform. They are None where the cache has no pack of it any more.
    """

    digest: str
    known: Environment
    python: str
    hosts: tuple[str, ...]
    gone_from: tuple[str, ...]
    packages: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class ListedEnvironments:
    """The environments of a cluster, the one that was used last first; ``problems`` are nodes that were not asked."""

    environments: tuple[ListedEnvironment, ...]
    problems: tuple[ClusterctlError, ...] = ()


def listed(inventory: AnyInventory, options: InventoryOptions) -> ListedEnvironments:
    """Return the environments that jobs of this controller have used, and which of the selected nodes have them.

    Raises:
        ConfigError: the inventory is not valid, or a node is not reached by plain ssh.
    """
    with first_look.begun(inventory, options) as look:
        known = environments.read(paths.cluster_id(look.cluster.sources))
        if not known:
            return ListedEnvironments(())
        there = team_of_job.asked(look, _PROGRAMS)
        trees = sorted({tree for one in known.values() for tree in one.trees.values()})
        looks = supervised_job.look(list(there.logins.values()), [f"{tree}/{_MARKER}" for tree in trees], {})
    silent = tuple(UnreachableError(f"{one.host}: {one.problem}.") for one in looks if one.problem)
    found = {one.host: one.found for one in looks if not one.problem}
    rows = []
    for digest, one in sorted(known.items(), key=lambda item: item[1].used, reverse=True):
        asked = {host: tree for host, tree in one.trees.items() if host in found}
        has = [host for host, tree in asked.items() if found[host].get(f"{tree}/{_MARKER}")]
        names = list(dict.fromkeys(tree.rpartition("/")[2] for tree in one.trees.values()))
        packages, size = _pack(names[0]) if names else (None, None)
        gone = tuple(host for host in asked if host not in has)
        python = ", ".join(dict.fromkeys(map(_python, names)))
        rows.append(ListedEnvironment(digest, one, python, tuple(has), gone, packages, size))
    return ListedEnvironments(tuple(rows), (*there.problems, *silent))


def _python(name: str) -> str:
    """Return the release of Python in the name of an artifact, such as ``python_env-3.11-c80b667193a1f65c``."""
    words = name.split("-")
    return words[1] if len(words) > 2 else ""  # noqa: PLR2004 - name, release, key


def _pack(name: str) -> tuple[int | None, int | None]:
    """Return the packages and the bytes of a pack in the cache, by the record beside it."""
    try:
        text = (paths.cache_dir().value / "artifacts" / f"{name}.json").read_bytes()
        record = json.loads(text)
        return len(record["inputs"]["wheels"]), int(record["size"])
    except (OSError, ValueError, LookupError, TypeError):
        return None, None
