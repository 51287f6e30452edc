"""The verb gc: old versions of artifacts leave the nodes and the controller's cache.

The story: take the lock, let every node list its artifacts with their users, decide by the sets that runs left. Show
what goes and ask. Then each node removes what it was told, unless something has begun to use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import posixpath
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clusterctl.inventory import ansible_inventory
from clusterctl.model import nodeset, run_record
from clusterctl.model.run_record import AskingObserver
from clusterctl.provisioning import playbook
from clusterctl.provisioning.host_run import HostRun, now, started
from clusterctl.provisioning.look import HostRequest
from clusterctl.provisioning.preview import CollectPreview
from clusterctl.provisioning.task_results import TaskResults
from clusterctl.state import environments, paths, snapshots
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from clusterctl.model.run_record import HostResult
    from clusterctl.model.snapshot import Hold, Snapshot, SoftwareSet


# --- Which old artifacts go from nodes and from the cache: by count and age, never one in use -------------------------

LEAST_KEPT = 2  # the set in force and the one before it, to which a rollback goes back
_AGE = re.compile(r"\s*(\d+)\s*(h|d|w)\s*")
_FOLDER = re.compile(r"/[^\n]{0,3000}/[A-Za-z0-9_]+-[^/]{1,200}-[0-9a-f]{16}")
_MOST_BYTES, _MOST_TREES = 1 << 60, 1000  # of one artifact, and of one host
_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class Tree:
    """An installed artifact of a node."""

    path: str
    size: int  # bytes
    installed: float  # seconds since 1970
    in_use: bool  # a link leads there, or a process uses it

    @staticmethod
    def of(data: Mapping[str, Any]) -> Tree:
        """Return the artifact that a node's module tells of.

        Raises:
            KeyError, TypeError, ValueError: the answer has another form.
        """
        in_use = bool(data["linked"]) or bool(data["used_by"])
        if not _FOLDER.fullmatch(data["path"]) or not 0 <= int(data["size"]) < _MOST_BYTES:
            raise ValueError("it is not an artifact")
        try:
            return Tree(str(data["path"]), int(data["size"]), float(data["installed"]), in_use)
        except OverflowError as error:
            raise ValueError(str(error)) from error


def trees_of(told: Sequence[Mapping[str, Any]]) -> tuple[Tree, ...]:
    """Return the artifacts that a node's module tells of."""
    if len(told) > _MOST_TREES:
        raise ValueError("there are too many")
    return tuple(Tree.of(data) for data in told)


def age(text: str) -> float:
    """Return the seconds of ``12h``, ``30d`` or ``4w``.

    Raises:
        ValueError: it is not an age.
    """
    found = _AGE.fullmatch(text)
    if not found:
        raise ValueError(f"'{text}' is not an age such as 12h, 30d or 4w")
    return int(found[1]) * _SECONDS[found[2]]


def distinct(sets: Iterable[SoftwareSet]) -> list[SoftwareSet]:
    """Return the sets of links without those whose links a newer one has; newest first."""
    found: list[SoftwareSet] = []
    for software in sets:
        if all(software.hosts != other.hosts for other in found):
            found.append(software)
    return found


def kept_folders(sets: Sequence[SoftwareSet], hold: Hold | None, snapshot: Snapshot, keep: int) -> set[str]:
    """Return the folders that a cluster still needs: of its newest sets, its hold and its snapshot.

    The sets are the newest first. Never fewer than the one in force and the one before it stay.
    """
    wanted = distinct(sets)[: max(keep, LEAST_KEPT)] + ([hold.software] if hold else [])
    found = {tree for software in wanted for host in software.hosts.values() for tree in host.links.values()}
    watch = (entry for host in snapshot.hosts.values() for entry in host.watch)
    return found | {str(entry["path"]) for entry in watch if entry.get("kind") == "artifact"}


def old_trees(
    trees: Mapping[str, Sequence[Tree]], kept: Container[str], before: float | None
) -> dict[str, tuple[Tree, ...]]:
    """Return by host the artifacts that go; hosts without one are left out.

    What was installed later than ``before`` stays as well; None sets no age.
    """
    found = {
        host: tuple(
            tree
            for tree in of_host
            if not tree.in_use and tree.path not in kept and (before is None or tree.installed < before)
        )
        for host, of_host in trees.items()
    }
    return {host: of_host for host, of_host in found.items() if of_host}


def removed_trees(old: Mapping[str, Sequence[Tree]], results: Iterable[HostResult]) -> dict[str, tuple[Tree, ...]]:
    """Return by host the artifacts that went; each host speaks of its own."""
    done = {(result.host, phrase) for result in results for phrase in result.changes}
    return {
        host: tuple(tree for tree in trees if (host, f"removed {tree.path}") in done) for host, trees in old.items()
    }


def chosen_cache_files(
    files: Iterable[CacheFile], kept_names: Container[str], kept_words: str, before: float | None, fresh: float
) -> list[CacheFile]:
    """Return the files of the cache that go.

    Sources and wheels are not of one set, so they go by their age alone, unless a kept pack or a lock names them.
    ``kept_names`` are folders that a cluster or a node still needs. ``kept_words`` are the records of the kept packs
    and the locks of wheels, as one text. What was written later than ``before`` stays; None sets no age. What was
    written later than ``fresh`` stays in any case, because a run may be about to install it.
    """
    limit = fresh if before is None else min(before, fresh)
    found = []
    for file in files:
        if file.written >= limit:
            continue
        if file.kind == "pack":
            goes = file.name not in kept_names
        else:
            goes = before is not None and file.mark not in kept_words
        if goes:
            found.append(file)
    return found


def size_words(count: int) -> str:
    """Return bytes as one reads them: ``52 MiB``."""
    for factor, name in _SIZES:
        if count >= factor:
            return f"{count / factor:.3g} {name}"
    return f"{count} B"


def artifact_lines(trees: Mapping[str, Sequence[Tree]], files: Sequence[CacheFile]) -> list[str]:
    """Return what goes, as lines: hosts with the same artifacts together, then the cache, with bytes."""
    alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for host, of_host in trees.items():
        alike.setdefault(tuple((posixpath.basename(tree.path), tree.size) for tree in of_host), []).append(host)
    found = []
    for named, hosts in alike.items():
        each = ", ".join(f"{name} ({size_words(size)})" for name, size in named)
        total = size_words(sum(size for _, size in named))
        on_each = f"{total} on each" if len(hosts) > 1 else total
        found.append(f"{nodeset.folded(hosts)}: {on_each}: {each}")
    if files:
        each = ", ".join(f"{file.name} ({size_words(file.size)})" for file in files)
        found.append(f"cache: {size_words(sum(file.size for file in files))}: {each}")
    return found


# --- Type of the files in the controller's cache that can be made or fetched again ------------------------------------


@dataclass(frozen=True)
class CacheFile:
    """Files that belong together: a pack of an artifact with its record, a source archive or a wheel.

    ``mark`` is how records and locks name it, and ``name`` how a person does: of a pack, the artifact's folder.
    """

    kind: Literal["pack", "source", "wheel"]
    name: str
    mark: str
    paths: tuple[Path, ...]
    size: int  # bytes
    written: float  # seconds since 1970


# --- Packs, sources and wheels in the controller's cache: what there is, and its removal ------------------------------

_PACK = re.compile(r"(?P<base>.+-[0-9a-f]{16})\.(?:json|signed|tar\.zst|tar\.gz|tar\.gz\.json)")
_DIGEST = re.compile(r"[0-9a-f]{16}")


def found() -> list[CacheFile]:
    """Return the files of the cache, sorted by kind and name; images of the sandbox are left out."""
    return [*_packs(), *_loose("sources", "source"), *_loose("wheels", "wheel")]


def _packs() -> list[CacheFile]:
    groups: dict[str, list[Path]] = {}
    for path in sorted(_files("artifacts")):
        if match := _PACK.fullmatch(path.name):
            groups.setdefault(match["base"], []).append(path)
    return [_made("pack", base, base, parts) for base, parts in groups.items()]


def _loose(folder: str, kind: Literal["source", "wheel"]) -> list[CacheFile]:
    made = []
    for path in sorted(_files(folder)):
        digests = _DIGEST.findall(path.name) if kind == "source" else []
        made.append(_made(kind, path.name, digests[-1] if digests else path.name, [path]))
    return made


def _made(kind: Literal["pack", "source", "wheel"], name: str, mark: str, parts: list[Path]) -> CacheFile:
    states = [path.stat() for path in parts]
    size, written = sum(state.st_size for state in states), max(state.st_mtime for state in states)
    return CacheFile(kind, name, mark, tuple(parts), size, written)


def _files(folder: str) -> list[Path]:
    place = paths.cache_dir().value / folder
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]


def words(names: Container[str]) -> str:
    """Return the records of these packs, and all locks of wheels, as one text in which a name can be looked for."""
    records = [path for path in _files("artifacts") if path.suffix == ".json" and path.stem in names]
    text = []
    for path in [*records, *_files("locks")]:
        with contextlib.suppress(OSError):
            text.append(path.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(text)


def remove(files: Iterable[CacheFile]) -> tuple[list[CacheFile], list[CacheFile]]:
    """Remove files of the cache; a pack that another run builds or converts now stays.

    Returns:
        What was removed, and what stays.
    """
    gone, left = [], []
    for file in files:
        with contextlib.ExitStack() as held:
            if file.kind == "pack" and not _locks_taken(file.name, held):
                left.append(file)
                continue
            # the record first, because a pack without one was never finished
            for path in sorted(file.paths, key=lambda part: part.suffix != ".json"):
                path.unlink(missing_ok=True)
            gone.append(file)
    return gone, left


def _locks_taken(name: str, held: contextlib.ExitStack) -> bool:
    """Take the two locks of a pack, which the collection takes to build and to convert it."""
    folder = paths.cache_dir().value / "artifacts"
    for lock in (f".{name}.lock", f".{name}.tar.zst.lock"):
        stream = held.enter_context((folder / lock).open("w"))
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


PLAYBOOK = "collect_artifacts"
_FRESH_S = 3600.0  # a pack so young may be about to be installed by another run


@dataclass(frozen=True)
class Retention:
    """What stays: how many different sets of links, and what is younger than an age."""

    keep: int = LEAST_KEPT
    older_than_s: float | None = None

    def before(self) -> float | None:
        """Return the time before which something must be made to go; None sets no age."""
        return None if self.older_than_s is None else time.time() - self.older_than_s


@dataclass(frozen=True, kw_only=True)
class CollectRequest(HostRequest):
    """What the user asked for; ``only`` are folders of projects' environments, beside which nothing goes."""

    limits: Retention = field(default_factory=Retention)
    only: frozenset[str] | None = None


def collect(request: CollectRequest, observer: AskingObserver[CollectPreview]) -> run_record.RunRecord:
    """Remove the old artifacts of a cluster's nodes, and the old files of the cache.

    Raises:
        ConfigError: the inventory is wrong, or another run holds a host; nothing was changed.
    """
    observer.phase("reading the inventory")
    cluster = ansible_inventory.load(request.inventory, request.options)
    playbook.check_files(cluster, request.options)
    chosen = cluster.selected_hosts
    with started("gc", cluster, request, chosen) as run, _Collect(request, observer, cluster, run) as it:
        return it.go()


def kept_by(cluster: str, keep: int) -> set[str]:
    """Return the folders that a cluster of this controller still needs; an unreadable hold is an error.

    Raises:
        ConfigError: the hold of the cluster cannot be read, so nothing tells what it needs.
    """
    return kept_in_sets(cluster, keep) | set(environments.trees_in_use(environments.read(cluster), now()))


def kept_in_sets(cluster: str, keep: int) -> set[str]:
    """Return the folders that a cluster needs for its own software, without its projects' environments."""
    return kept_folders(snapshots.sets(cluster), snapshots.hold(cluster), snapshots.read(cluster), keep)


def kept_by_all(keep: int) -> set[str]:
    """Return the folders that any cluster of this controller still needs."""
    folder = paths.clusters_dir()
    clusters = sorted(place.name for place in folder.iterdir()) if folder.is_dir() else []
    return {tree for cluster in clusters for tree in kept_by(cluster, keep)}


def old_cache_files(limits: Retention, on_nodes: Sequence[str] = ()) -> list[CacheFile]:
    """Return the files of the cache that go; ``on_nodes`` are folders that stay on nodes."""
    names = {posixpath.basename(tree) for tree in (*kept_by_all(limits.keep), *on_nodes)}
    fresh = time.time() - _FRESH_S
    return chosen_cache_files(found(), names, words(names), limits.before(), fresh)


class _Collect(HostRun[CollectRequest, AskingObserver[CollectPreview]]):
    """One collection, from the lock to the record."""

    def go(self) -> run_record.RunRecord:
        self.observer.phase("listing the artifacts of the nodes")
        end = self.play(PLAYBOOK, limit=self.cluster.limit, check=True)
        if end.status != "successful" or end.rc != 0:
            record = self.judge(end)
            return self.run.update(message=f"{record.message} Nothing was changed.".strip())
        present = self._trees()
        limits, only = self.request.limits, self.request.only
        files: list[CacheFile] = []
        if only is not None:
            self._forget_gone(present, only)
            chosen = {host: [tree for tree in trees if tree.path in only] for host, trees in present.items()}
            old = old_trees(chosen, kept_in_sets(self.run.record.cluster_id, limits.keep), None)
        else:
            old = old_trees(present, kept_by_all(limits.keep), limits.before())
            going = {tree.path for trees in old.values() for tree in trees}
            staying = [tree.path for trees in present.values() for tree in trees if tree.path not in going]
            files = old_cache_files(limits, staying)
        lines = artifact_lines(old, files)
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
        found: dict[str, tuple[Tree, ...]] = {}
        for result in self.task_results.results:
            try:
                found[result.host] = trees_of(result.data.get("trees") or ())
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{result.host} listed its artifacts in a form that is unknown; run again.") from None
        return found

    def _forget_gone(self, present: Mapping[str, Sequence[Tree]], only: Collection[str]) -> None:
        """Forget the chosen environments on hosts that answer without them."""
        if not self.request.check:
            gone = {host: set(only) - _paths(trees) for host, trees in present.items()}
            self.messages = (*self.messages, *environments.forget(self.run.record.cluster_id, gone))

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
        gone, left = remove(files)
        if not old:
            self.messages = (*self.messages, *artifact_lines({}, gone), *_staying(left))
            return self.finish("done", ExitCode.OK, hosts=self._expected({}))
        going = {tree.path for trees in old.values() for tree in trees}
        moved = snapshots.note_collected(self.run.record.cluster_id, going, now())
        names = {host: [tree.path for tree in trees] for host, trees in old.items()}
        self.task_results = TaskResults()
        end = self.play(PLAYBOOK, limit=self.cluster.limit, variables={"gc_trees": names})
        removed = removed_trees(old, self.task_results.results)
        cluster_id = self.run.record.cluster_id
        moved += environments.forget(cluster_id, {host: _paths(trees) for host, trees in removed.items()})
        self.messages = (
            *self.messages,
            *artifact_lines({host: trees for host, trees in removed.items() if trees}, gone),
            *_staying(left),
            *moved,
        )
        return self.judge(end)


def _paths(trees: Iterable[Tree]) -> set[str]:
    return {tree.path for tree in trees}


def _staying(files: Sequence[CacheFile]) -> list[str]:
    return [f"{file.name} stays in the cache, because another run uses it." for file in files]
