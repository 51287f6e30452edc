"""The verb gc: old versions of artifacts leave the nodes and the controller's cache.

The story: take the lock, let every node list its artifacts with their users, decide by the sets that runs left. Show
what goes and ask. Then each node removes what it was told, unless something has begun to use it.
"""

from __future__ import annotations

import posixpath
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import run_record
from clusterctl.model.events import AskingObserver
from clusterctl.provisioning import old_artifacts, refusals
from clusterctl.provisioning.host_run import HostRun, now, recorded
from clusterctl.provisioning.old_artifacts import Tree
from clusterctl.provisioning.preview import CollectPreview
from clusterctl.provisioning.request import HostRequest
from clusterctl.provisioning.task_results import TaskResults
from clusterctl.state import locks, paths, runs, snapshots
from clusterctl.state import software as kept
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.provisioning.old_artifacts import CacheFile

PLAYBOOK = "collect_artifacts"
_FRESH_S = 3600.0  # a pack so young may be about to be installed by another run


@dataclass(frozen=True)
class Retention:
    """What stays: how many different sets of links, and what is younger than an age."""

    keep: int = old_artifacts.LEAST_KEPT
    older_than_s: float | None = None

    def before(self) -> float | None:
        """Return the time before which something must be made to go; None sets no age."""
        return None if self.older_than_s is None else time.time() - self.older_than_s


@dataclass(frozen=True, kw_only=True)
class CollectRequest(HostRequest):
    """What the user asked for."""

    limits: Retention = field(default_factory=Retention)


def collect(request: CollectRequest, observer: AskingObserver[CollectPreview]) -> run_record.RunRecord:
    """Remove the old artifacts of a cluster's nodes, and the old files of the cache.

    Raises:
        ConfigError: the inventory is wrong, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    cluster = ansible_inventory.load(request.inventory, request.options)
    refusals.check_files(cluster, request.options)
    with locks.HostLock(cluster.selected_hosts, " ".join(request.argv)):
        run = runs.start("gc", cluster.sources, request.argv, runs.versions())
        with recorded(run), _Collect(request, observer, cluster, run) as it:
            return it.go()


def kept_by(cluster: str, keep: int) -> set[str]:
    """Return the folders that a cluster of this controller still needs; an unreadable hold is an error.

    Raises:
        ConfigError: the hold of the cluster cannot be read, so nothing tells what it needs.
    """
    return old_artifacts.kept_folders(kept.sets(cluster), kept.hold(cluster), snapshots.read(cluster), keep)


def kept_by_all(keep: int) -> set[str]:
    """Return the folders that any cluster of this controller still needs."""
    folder = paths.clusters_dir()
    clusters = sorted(place.name for place in folder.iterdir()) if folder.is_dir() else []
    return {tree for cluster in clusters for tree in kept_by(cluster, keep)}


def old_cache_files(limits: Retention, on_nodes: Sequence[str] = ()) -> list[CacheFile]:
    """Return the files of the cache that go; ``on_nodes`` are folders that stay on nodes."""
    names = {posixpath.basename(tree) for tree in (*kept_by_all(limits.keep), *on_nodes)}
    fresh = time.time() - _FRESH_S
    return old_artifacts.old_cache_files(
        old_artifacts.found(), names, old_artifacts.words(names), limits.before(), fresh
    )


class _Collect(HostRun[CollectRequest, AskingObserver[CollectPreview]]):
    """One collection, from the lock to the record."""

    def go(self) -> run_record.RunRecord:
        self.observer.phase("listing the artifacts of the nodes")
        end = self.play(PLAYBOOK, limit=self.cluster.limit, check=True)
        if end.status != "successful" or end.rc != 0:
            record = self.judge(end)
            return self.run.update(message=f"{record.message} Nothing was changed.".strip())
        present = self._trees()
        limits = self.request.limits
        old = old_artifacts.old_trees(present, kept_by_all(limits.keep), limits.before())
        going = {tree.path for trees in old.values() for tree in trees}
        staying = [tree.path for trees in present.values() for tree in trees if tree.path not in going]
        files = old_cache_files(limits, staying)
        lines = old_artifacts.lines(old, files)
        if not lines:
            words = "Nothing to do: every artifact is in use, or of a set that is kept."
            return self.finish("nothing to do", ExitCode.OK, hosts=self._expected({}), message=words)
        if self.request.check:
            self.messages = tuple(lines)
            return self.finish("done", ExitCode.OK, hosts=self._expected(old))
        if not self.observer.confirm(CollectPreview(tuple(lines))):
            return self.finish("interrupted", ExitCode.INTERRUPTED, message="Not confirmed; nothing was changed.")
        return self._remove(old, files)

    def _trees(self) -> dict[str, tuple[Tree, ...]]:
        """Return the artifacts of each host.

        Raises:
            ConfigError: a host's answer has another form.
        """
        found: dict[str, tuple[Tree, ...]] = {}
        for result in self.task_results.results:
            try:
                found[result.host] = tuple(Tree.of(data) for data in result.data.get("trees") or ())
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{result.host} listed its artifacts in a form that is unknown; run again.") from None
        return found

    def _expected(self, old: Mapping[str, Sequence[Tree]]) -> list[run_record.HostSummary]:
        return [
            run_record.HostSummary(
                host=name,
                outcome="changed" if name in old else "ok",
                changes=tuple(f"would remove {tree.path}" for tree in old.get(name, ())),
            )
            for name in self.cluster.selected
        ]

    def _remove(self, old: Mapping[str, Sequence[Tree]], files: Sequence[CacheFile]) -> run_record.RunRecord:
        if old and (stop := self.claim(None)):
            return stop
        gone, left = old_artifacts.remove(files)
        if not old:
            self.messages = (*old_artifacts.lines({}, gone), *_staying(left))
            return self.finish("done", ExitCode.OK, hosts=self._expected({}))
        kept.note_collected(self.run.record.cluster_id, {tree.path for trees in old.values() for tree in trees}, now())
        names = {host: [tree.path for tree in trees] for host, trees in old.items()}
        self.task_results = TaskResults()
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables={"gc_trees": names})
        done = {phrase for result in self.task_results.results for phrase in result.changes}
        removed = {host: tuple(tree for tree in trees if f"removed {tree.path}" in done) for host, trees in old.items()}
        self.messages = (
            *old_artifacts.lines({host: trees for host, trees in removed.items() if trees}, gone),
            *_staying(left),
        )
        return self.judge(end)


def _staying(files: Sequence[CacheFile]) -> list[str]:
    return [f"{file.name} stays in the cache, because another run uses it." for file in files]
