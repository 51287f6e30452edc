"""Paths of the state and cache folders: every folder and file name that clusterctl uses there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.hosts import InventorySources, is_path
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.model.hosts import AnyInventory


_FOLDER_NAME = re.compile(r"(?!\.\.?$)[^/\0]{1,255}")


@dataclass(frozen=True)
class PathSetting:
    """A path together with what decided it, so that a message can say where a surprising value came from."""

    value: Path
    source: str


def _xdg(variable: str, fallback: str) -> PathSetting:
    base = os.environ.get(variable, "")
    if base and Path(base).is_absolute():  # the XDG specification: relative values are to be ignored
        return PathSetting(Path(base) / "clusterctl", f"${variable}")
    return PathSetting(Path.home() / fallback / "clusterctl", "default")


def cache_dir() -> PathSetting:
    """Sources, wheels, artifacts and sandbox images; everything below can be deleted at the cost of a rebuild."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> PathSetting:
    """Run records, locks and the sandboxes' keys; mode 0700."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def config_dir() -> PathSetting:
    """What the user wrote for all clusters: the site's signing key, and whose packs of a shared cache are taken."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def allowed_signers() -> Path:
    """The sites whose packs of a shared cache are taken, in the format of ssh-keygen."""
    return config_dir().value / "allowed_signers"


def signing_key() -> Path:
    """The private key of this site, which signs what goes into a shared cache."""
    return config_dir().value / "signing_key"


# --- folders and files of the state -----------------------------------------------------------------------------------


def _of_state(name: str) -> Callable[[], Path]:
    return lambda: state_dir().value / name


def _of_cluster(name: str) -> Callable[[str], Path]:
    return lambda cluster: cluster_dir(cluster) / name


def _below(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


clusters_dir = _of_state("clusters")  # the folders of all clusters
inventories_file = _of_state("inventories.json")  # which cluster each inventory names, and the machines of each cluster
inventories_lock = _of_state("inventories.lock")  # the lock under which that index is written
history_file = _of_state("history.sqlite3")  # the history of all clusters
locks_dir = _of_state("locks")  # the lock files of hosts and of the sandboxes
listings_dir = _of_state("listings")  # cached output of ansible-inventory
crashes_dir = _of_state("crashes")  # tracebacks of unexpected errors
sandboxes_dir = _of_state("sandboxes")  # the folders of all sandboxes
sandboxes_lock = _of_state("sandboxes.lock")  # the lock of every command that changes a sandbox
nightly_dir = _of_state("nightly")  # the folders of all nightly jobs


def cluster_dir(cluster: str) -> Path:
    """The folder of one cluster; see :func:`cluster_id`."""
    return clusters_dir() / cluster


runs_dir = _of_cluster("runs")  # a folder for each run, named by the run's id
snapshot_file = _of_cluster("snapshot.json")
hold_file = _of_cluster("hold.json")  # the hold under which a rollback put the cluster
proofs_file = _of_cluster("proofs.json")  # the time of the last proof of each node
environments_file = _of_cluster("environments.json")  # the environments of projects on the nodes
doctor_errors_file = _of_cluster("doctor_errors.json")  # the last errors that doctor found on each node
stalls_dir = _of_cluster("stalls")  # what was seen of jobs that stood still or that a death ended, a file each
hardware_dir = _of_cluster("hardware")  # the looks at the hardware of the nodes, a file each
parts_file = _of_cluster("parts.json")  # the ledger of the parts in the nodes
identity_file = _of_cluster("identity.json")  # the id by which the nodes know the cluster
collected_file = _of_cluster("collected.json")  # the artifacts that ``gc`` removed from the nodes, each with the time
authority_dir = _of_cluster("ca")  # the certificate authority: encrypted keys, and what they signed


def sandbox_dir(name: str) -> Path:
    """The folder of one sandbox."""
    return sandboxes_dir() / name


sandbox_record = _below("sandbox.json")  # in the folder of a sandbox


def nightly_job_dir(job: str) -> Path:
    """The folder of one nightly job, named by the job."""
    return nightly_dir() / job


# in the folder of a nightly job
nightly_job = _below("job.json")
nightly_notification = _below("told.json")  # the last notification
nightly_lock = _below("lock")
nights_dir = _below("nights")  # a folder for each night, named by its start
night_record = _below("night.json")  # in the folder of a night

# in the folder of a run
run_record = _below("run.json")  # what every command keeps
validation_record = _below("validation.json")  # the verdicts and figures of the checks
events_file = _below("events.jsonl")  # the events, one JSON object a line
facts_file = _below("facts.json")  # the facts of the hosts
software_file = _below("software.json")  # the set of links that the run left on the hosts
logs_dir = _below("logs")  # the raw output of the checks of a validation
ansible_log = _below("ansible.log")  # the output of Ansible
ansible_dir = _below("ansible")  # of ansible-runner; it holds the environment, so the folder goes when the run ends


# --- names and modes --------------------------------------------------------------------------------------------------


def ensure_private(path: Path) -> Path:
    """Create ``path`` with mode 0700, and each missing parent too (``mkdir`` would leave those to the umask).

    Raises:
        OSError: the folder cannot be made.
    """
    missing = [path, *(parent for parent in path.parents if not parent.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def resolved(inventory: AnyInventory) -> InventorySources:
    """Return the sources of an inventory by absolute paths without links; lists of hosts stay as they are."""
    words = InventorySources.of(inventory).words
    return InventorySources(tuple(str(Path(word).resolve()) if is_path(word) else word for word in words))


def stem(inventory: AnyInventory) -> str:
    """Return a short name for an inventory: that of its first path, or ``hosts``."""
    found = resolved(inventory).paths
    return found[0].stem if found else "hosts"


def inventory_key(inventory: AnyInventory) -> str:
    """Return the sources of an inventory as the index of inventories names them, a line each."""
    return "\n".join(resolved(inventory).words)


def new_cluster_id(inventory: AnyInventory) -> str:
    """Return the folder name that the cluster of an inventory gets at its first command."""
    whole = inventory_key(inventory).encode("utf-8", "surrogateescape")
    return f"{stem(inventory)}-{hashlib.sha256(whole).hexdigest()[:8]}"


def cluster_id(inventory: AnyInventory) -> str:
    """Return the folder name of the cluster that an inventory names; see :mod:`clusterctl.state.clusters`."""
    return known_inventories().get(inventory_key(inventory)) or new_cluster_id(inventory)


def known_inventories() -> dict[str, str]:
    """Return the folder names of clusters by inventory, as the index has them; an unreadable index counts as empty."""
    try:
        return clusters_named_in(json.loads(inventories_file().read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def clusters_named_in(index: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the folder names of clusters by inventory that the content of an index has, without invalid ones."""
    return {key: name for key, name in index["inventories"].items() if is_folder_name(name)}


def is_folder_name(name: object) -> bool:
    """Whether a name leads to a folder below another one, and nowhere else."""
    return isinstance(name, str) and _FOLDER_NAME.fullmatch(name) is not None


def private_folder(path: Path) -> Path:
    """Make a folder of the state.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        return ensure_private(path)
    except OSError as error:
        state = state_dir()
        raise ConfigError(
            f"The folder {path} cannot be written ({error.strerror}); the state folder comes from {state.source}, "
            "set XDG_STATE_HOME to a writable place."
        ) from None


# --- Tell which folder of the controller is full or read-only, and what to do, from an error of the system ------------

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_LITTLE_BYTES = 1 << 20


def full_disk_words(error: BaseException) -> str:
    """Return a sentence where a full or read-only disk of the controller is the cause of an error; '' elsewhere."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {*_FULL, errno.EROFS}:
            return _sentence(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def _sentence(error: OSError) -> str:
    place = _place(error)
    if error.errno == errno.EROFS:
        return f"{place} is on a read-only file system of this machine; make it writable, or {_elsewhere(place)}."
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(place).free
        return (
            f"The disk of this machine is full: {place} has {free} bytes free; make room there, or {_elsewhere(place)}."
            " Then run the same command again."
        )
    return f"The disk of this machine is full at {place}; make room there and run the same command again."


def _place(error: OSError) -> Path:
    """Return the folder that is meant: the file's, or the fullest of those to which clusterctl writes."""
    if error.filename:
        place = Path(os.fsdecode(error.filename)).absolute()
        return next((folder for folder in (place, *place.parents) if folder.is_dir()), place)
    own = [state_dir().value, cache_dir().value, Path(tempfile.gettempdir())]
    there = [next(folder for folder in (place, *place.parents) if folder.is_dir()) for place in own]
    return next((folder for folder in there if shutil.disk_usage(folder).free < _LITTLE_BYTES), there[0])


def _elsewhere(place: Path) -> str:
    for variable, setting in (("XDG_STATE_HOME", state_dir()), ("XDG_CACHE_HOME", cache_dir())):
        if place == setting.value or setting.value in place.parents or place in setting.value.parents:
            return f"set {variable} to a folder of another disk"
    return "set TMPDIR to a folder of another disk"
