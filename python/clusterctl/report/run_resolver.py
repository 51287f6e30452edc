"""Find the run that a user names: ``last``, ``last-1``, an id or its beginning, or the path of a record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.inventory import ansible_inventory
from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model import results
from clusterctl.model.hosts import InventorySources, is_host_list
from clusterctl.model.run_record import RunRecord
from clusterctl.state import clusters, paths
from clusterctl.state import history as run_history
from clusterctl.state.history.rows import choose
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.results import ValidationRecord
    from clusterctl.state.history import Store, StoredRun

_MOST_CLUSTERS = 4
_MOST_BYTES = 1 << 30  # of a record
_RECORDS = (paths.validation_record, paths.run_record)  # one of them makes a folder that of a run
_RECORD_BEGINS = re.compile(rb'\s*\{\s*"schema_version"\s*:')  # as clusterctl writes it
_FORMS = "an id or its beginning, 'last', 'last-1', or the path of a record"


@dataclass(frozen=True)
class NamedRun:
    """A run that a user named.

    Attributes:
        record: of the run; from the history where the folder of the run is gone.
        folder: where the record was found; None where it comes from the history.
    """

    record: ValidationRecord
    folder: Path | None

    @property
    def log_folder(self) -> Path | None:
        """The folder of the run where it holds the logs; None leaves the choice to the record."""
        return self.folder if self.folder is not None and paths.logs_dir(self.folder).is_dir() else None


class WithoutFiguresError(ConfigError):
    """A named run is not a validation that ended: it has no record with figures.

    Attributes:
        run: its record.
    """

    def __init__(self, run: RunRecord) -> None:
        """Say which command the run was of."""
        super().__init__(
            f"{run.run_id} is a run of 'clusterctl {run.verb}', without figures; name a validation that has ended."
        )
        self.run = run


def resolve(name: str, history: Store | None = None, cluster: str | None = None) -> NamedRun:
    """Return the run that a user named.

    Args:
        name: ``last``, ``last-1``, an id or its beginning, or the path of a record or of a run's folder.
        history: where runs are looked up; None opens the history, and only where the name is not a path.
        cluster: whose runs are meant; None means the runs of all clusters.

    Raises:
        ConfigError: the run is unknown, the beginning of several ids or the last of several clusters, or its record is
            damaged.
        StoreError: the history cannot be read.
    """
    path = path_of(name)
    if path is not None:
        return NamedRun(load(path), path.resolve().parent)
    if history is None:
        with run_history.open() as opened:
            return resolve(name, opened, cluster)
    if cluster is None and run_history.is_last(name):
        cluster = _only_cluster(history, name)
    found = _find(history, name, cluster)
    record = history.record(found.run_id, found.cluster)
    folder = paths.runs_dir(found.cluster) / record.run_id
    return NamedRun(record, folder if paths.validation_record(folder).is_file() else None)


def _find(history: Store, name: str, cluster: str | None = None) -> StoredRun:
    """Return a run of the history, as its ``find`` does.

    Raises:
        ConfigError: the run is unknown, or has no figures.
        StoreError: the history cannot be read.
    """
    try:
        return history.find(name, cluster)
    except ConfigError:
        if any(run.run_id.startswith(name) for run in history.runs(cluster)):
            raise  # it is the beginning of several
        clusters = (path.name for path in _entries(paths.clusters_dir())) if cluster is None else (cluster,)
        folders = [folder for one in clusters for folder in _entries(paths.runs_dir(one))]
        others = [folder for folder in folders if folder.name.startswith(name) and not folder.is_symlink()]
        if name and others:
            _refuse_without_figures(others[choose(name, [folder.name for folder in others], "the history")])
        raise


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _refuse_without_figures(folder: Path) -> None:
    """Refuse the folder of a run that has a record, though not one of a validation.

    Raises:
        WithoutFiguresError: it is one.
    """
    with contextlib.suppress(OSError, ValueError):
        run = RunRecord.model_validate_json(_content(paths.run_record(folder)))
        if not paths.validation_record(folder).exists():
            raise WithoutFiguresError(run)


def resolve_of(name: str, inventory: AnyInventory | None) -> NamedRun:
    """Return the run that a user named, of an inventory's cluster or, without an inventory, of any cluster.

    Raises:
        ConfigError: as :func:`resolve`, or the inventory is missing.
        StoreError: the history cannot be read.
    """
    if inventory is None:
        return resolve(name)
    cluster = cluster_of(inventory)
    with run_history.open() as history:
        try:
            return resolve(name, history, cluster)
        except WithoutFiguresError:
            raise
        except ConfigError:
            if path_of(name) is None:
                _refuse_empty(history, inventory)
            raise


def _only_cluster(history: Store, name: str) -> str | None:
    """Return the cluster whose runs a name counts: that of the history, where it has one alone.

    Raises:
        ConfigError: there are several.
    """
    clusters = history.clusters()
    if len(clusters) > 1:
        words = and_more(clusters, _MOST_CLUSTERS)
        raise ConfigError(f"'{name}' may be a run of {words}; name the inventory with -i, or the run by its id.")
    return clusters[0] if clusters else None


def is_inventory(word: str) -> bool:
    """Whether a word names an inventory and not a run: a list of hosts, or a path that holds no record."""
    path = Path(word)
    if is_host_list(word) or not word.strip():
        return bool(word.strip())
    if _is_there(path.is_dir):
        return not any(_is_there(place(path).exists) for place in _RECORDS)
    if _is_there(path.is_file):
        try:
            return not _is_record(path, _content(path))
        except OSError:
            return False
    return path.suffix in {".ini", ".yml", ".yaml"}


def _is_there(look: Callable[[], bool]) -> bool:
    """Return what a look at a path finds; where it cannot be looked at, what reads it says why."""
    try:
        return look()
    except OSError:
        return False


def _is_record(path: Path, data: bytes) -> bool:
    """Whether the content of a file is a record, be it damaged, and not an inventory: Ansible reads JSON too."""
    if _RECORD_BEGINS.match(data):
        return True
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return path.suffix == ".json" or (data.lstrip().startswith(b"{") and b'"schema_version"' in data)
    return "schema_version" in found if isinstance(found, dict) else path.suffix == ".json"


class OfRun(NamedTuple):
    """A cluster that a run names, in place of its inventory."""

    cluster: str
    inventory: str


def of_run(name: str, inventory: AnyInventory | None) -> OfRun:
    """Return the cluster of a run.

    Raises:
        ConfigError: as :func:`resolve`, or the history lacks the run.
        StoreError: the history cannot be read.
    """
    try:
        record = resolve_of(name, inventory).record
    except WithoutFiguresError as error:
        names = (error.run.cluster_id, error.run.run_id)
        if not all(map(paths.is_folder_name, names)) or not (paths.runs_dir(names[0]) / names[1]).is_dir():
            raise
        return OfRun(error.run.cluster_id, error.run.inventory)
    with run_history.open() as history:
        return OfRun(history.find(record.run_id).cluster, record.inventory)


def with_the_one_before(name: str, inventory: AnyInventory | None) -> tuple[str, str]:
    """Return the ids of the run before a named one in its cluster's history, and of that one.

    Raises:
        ConfigError: as :func:`of_run`, or it is the first run.
        StoreError: the history cannot be read.
    """
    run_id = resolve_of(name, inventory).record.run_id
    with run_history.open() as history:
        ids = [run.run_id for run in history.runs(history.find(run_id).cluster)]
    place = ids.index(run_id) + 1
    if place == len(ids):
        raise ConfigError(f"{run_id} is the first run of its cluster; name the run that it is compared with.")
    return ids[place], run_id


def path_of(name: str) -> Path | None:
    """Return the path of the record where a run is named by its record or folder; None where it is named otherwise.

    Raises:
        ConfigError: the name is empty.
    """
    if not name.strip():
        raise ConfigError(f"The name of a run is empty; give {_FORMS}.")
    path = Path(name)
    if path == paths.run_record(path.parent):
        return paths.validation_record(path.parent)
    if _is_there(path.is_dir) and ("/" in name or any(_is_there(place(path).is_file) for place in _RECORDS)):
        return paths.validation_record(path)
    return path if "/" in name or name.endswith(".json") or _is_there(path.is_file) else None


def load(path: Path) -> ValidationRecord:
    """Read the record of a validation.

    Raises:
        ConfigError: the file is missing, unreadable or damaged, or a newer clusterctl wrote it.
    """
    try:
        data = _content(path)
        if not _is_record(path, data):
            raise ConfigError(
                f"{path} is not the record of a run; give {_FORMS}. Where it is an inventory, name it with -i: "
                f"'last -i {path}'."
            )
        return results.load(data, str(path))
    except FileNotFoundError:
        if path == paths.validation_record(path.parent):
            _refuse_without_figures(path.parent)
        raise ConfigError(f"The record {path} does not exist; give {_FORMS}.") from None
    except OSError as error:
        raise ConfigError(f"The record {path} cannot be read: {error.strerror}.") from None


def _content(path: Path) -> bytes:
    """Return the content of a record's file, which somebody else may have made.

    Raises:
        ConfigError: it is no file, or too large for a record.
        OSError: it cannot be read.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"The record {path} is not a file; give {_FORMS}.")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"The record {path} has more than {_MOST_BYTES >> 20} MiB; give {_FORMS}.")
    return data


def common_cluster(history: Store, names: Sequence[str]) -> str:
    """Return the cluster of the runs that are named by id; the only cluster of the history where none is.

    Raises:
        ConfigError: a run is unknown, the runs belong to different clusters, or none is named of several clusters.
    """
    ids = [name for name in names if path_of(name) is None and not run_history.is_last(name)]
    if not ids:
        _only_cluster(history, next((name for name in names if run_history.is_last(name)), "last"))
    clusters = {name: _find(history, name).cluster for name in ids or ["last"]}
    if len(set(clusters.values())) > 1:
        words = " and ".join(f"{name} of {cluster}" for name, cluster in clusters.items())
        raise ConfigError(f"The runs are of different clusters ({words}); compare runs of one, or give their records.")
    return next(iter(clusters.values()))


def cluster_meant(history: Store, names: Sequence[str], inventory: AnyInventory | None) -> str:
    """Return the cluster of an inventory, or :func:`common_cluster` of the named runs where none is given.

    Raises:
        ConfigError: the inventory is missing, a run is unknown, or the runs belong to different clusters.
    """
    if inventory is None:
        return common_cluster(history, names)
    _refuse_empty(history, inventory)
    return cluster_of(inventory)


def cluster_of(inventory: AnyInventory | OfRun) -> str:
    """Return the cluster of an inventory or of a run.

    Raises:
        ConfigError: the inventory is missing, or its machines have more than one past.
    """
    if isinstance(inventory, OfRun):
        return inventory.cluster
    sources = InventorySources.of(inventory)
    ansible_inventory.refuse_missing(sources)
    return Cluster(sources).id


def runs_of(history: Store, given: AnyInventory | OfRun, check: str | None = None) -> tuple[StoredRun, ...]:
    """Return the runs of an inventory's cluster, oldest first.

    Args:
        history: where runs are looked up.
        given: the inventory of the cluster, or a run's cluster.
        check: only the runs with this check.

    Raises:
        ConfigError: the cluster has not run yet, or the check is unknown.
    """
    _refuse_empty(history, given)
    runs = history.runs(cluster_of(given))[::-1]
    if check is None:
        return runs
    found = tuple(run for run in runs if any(one.check == check for one in run.results))
    if not found:
        names = sorted({one.check for run in runs for one in run.results})
        raise ConfigError(
            f"The check '{check}' is unknown to the runs of {_sources(given)}; choose of: {', '.join(names)}."
        )
    return found


def _refuse_empty(history: Store, given: AnyInventory | OfRun) -> None:
    """Refuse a cluster that has not run yet.

    Raises:
        ConfigError: it names the inventory, and earlier runs that it can go on with.
    """
    if history.runs(cluster_of(given), 1):
        return
    inventory = _sources(given)
    former = clusters.other_pasts(inventory)
    other = f"; 'clusterctl history --past {former[-1]} {inventory.shown}' goes on with earlier runs" if former else ""
    raise ConfigError(f"The history of {inventory} is empty; 'clusterctl validate {inventory.shown}' begins it{other}.")


def _sources(given: AnyInventory | OfRun) -> InventorySources:
    return InventorySources((given.inventory,)) if isinstance(given, OfRun) else InventorySources.of(given)
