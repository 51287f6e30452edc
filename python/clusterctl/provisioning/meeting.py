"""Hosts that are as they should be and only have to meet another node: which they are, and what holds there; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.provisioning import plan, software
from clusterctl.provisioning.members import watch_after

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.model.events import HostResult
    from clusterctl.model.snapshot import HostSnapshot, Snapshot


def only_meeting(
    as_left: Collection[str], snapshots: Mapping[str, HostSnapshot], cached_trees: Collection[str]
) -> frozenset[str]:
    """Return the hosts that play only the roles by which nodes meet each other.

    A host that plays no role of the software cannot give its own to others. So the cache has to have it.

    Args:
        as_left: the hosts that are as their last run left them, and as the inputs ask for.
        snapshots: how the last runs left the hosts.
        cached_trees: the names of the folders of the artifacts in the cache.
    """
    trees = software.trees_of(entry for name in as_left for entry in snapshots[name].watch)
    return frozenset(as_left) if trees <= frozenset(cached_trees) else frozenset()


def watch_of(
    results: Iterable[HostResult], met: Iterable[str], snapshots: Mapping[str, HostSnapshot]
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return per host what should hold from now on; of the roles that the hosts of ``met`` did not play, as before."""
    said = plan.watch_of(results)
    return {**said, **{name: watch_after(snapshots[name].watch, said.get(name, ())) for name in met}}


def variables(selected: Sequence[str], met: Collection[str], before: Snapshot) -> dict[str, Any]:
    """Return the variables of a play in which the hosts of ``met`` only meet the others.

    Those of them with a snapshot have files that hold its members.
    """
    whole = [name for name in selected if name not in met]
    return {
        "provision_whole": ",".join(whole) or "!all",
        "provision_settled": ",".join(name for name in selected if name in met) or "!all",
        "preflight_settled": [name for name in selected if name in met and name in before.hosts],
        "preflight_known_members": before.members,
    }
