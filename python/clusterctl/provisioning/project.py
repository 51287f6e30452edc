"""The environment of a user's project: its lock in, a folder on every node out, beside the cluster's own.

An environment is installed once for each lock. What was installed where is known here, so a later job sends nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.launch import scheduler_env
from clusterctl.model.nodeset import folded
from clusterctl.state import cache_entries, environments, paths
from clusterctl.state.environments import Environment
from clusterctl.support import content
from clusterctl.support.errors import ClusterctlError, ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from module_utils import source_files  # mypy finds it by mypy_path

    from clusterctl.model.hosts import AnyInventory, InventoryOptions
    from clusterctl.model.run_record import RunObserver, RunRecord
else:
    source_files = content.module_util("source_files")

LOCKS = ("uv.lock", "pylock.toml", "requirements.txt")
_BESIDE = "pyproject.toml"  # uv reads it with uv.lock
_MOST_BYTES = 64 << 20
_MOST_FILES = 50_000
# Where uv.lock, pylock.toml and requirements.txt name a folder.
_IN_TOML = re.compile(r"\b(?:editable|directory|path)\s*=\s*(?:\"([^\"\n]+)\"|'([^'\n]+)')")
_IN_LINES = re.compile(
    r"^(?:(?:-e|--editable)[= ]\s*)?(?:[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*@\s*)?(?:file://)?([./][^\s;\[#]*)",
    re.MULTILINE,
)
_PACKAGED = re.compile(r"^\s*\[build-system\]", re.MULTILINE)
_VIRTUAL = re.compile(r"^\s*package\s*=\s*false\b", re.MULTILINE)


class NotInstalledError(ClusterctlError):
    """The environment of a project could not be installed; the run's record has told why."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(record.message or "The environment of the project was not installed.")
        self.record = record
        self.exit_code = ExitCode(record.exit_code or ExitCode.HOST_FAILED)


@dataclass(frozen=True)
class Project:
    """A project here.

    ``digest`` is that of the lock, and of the folders that it names. ``importable`` is the folder of the project's own
    modules, relative to its top; empty where it is no package.
    """

    folder: Path
    lock: Path
    digest: str
    importable: str = ""

    @classmethod
    def of(cls, folder: Path) -> Project:
        """Return the project in a folder.

        Raises:
            ConfigError: it is no folder, has no lock, or the lock cannot be read.
        """
        place = Path(os.path.abspath(folder))  # noqa: PTH100 - a link keeps the name that the user typed
        if not place.is_dir():
            raise ConfigError(f"{place} is not a folder; --project takes the folder of your project.")
        lock = next((place / name for name in LOCKS if (place / name).is_file()), None)
        if lock is None:
            raise ConfigError(
                f"{place} has no lock ({', '.join(LOCKS)}); make one there with 'uv lock', or take --sync for the "
                "cluster's own environment."
            )
        total = hashlib.sha256()
        for path in (lock, place / _BESIDE):
            total.update(f"{path.name}\n".encode() + _content(path))
        for inner in _folders(lock, _content(lock).decode(errors="replace")):
            total.update(_digest(inner))
        importable = _importable(place, _content(place / _BESIDE).decode(errors="replace"))
        return cls(place, lock, total.hexdigest(), importable)

    def exported(self, given: Sequence[str], directory: str) -> tuple[str, ...]:
        """Return the words of ``-x`` by which the program can import the project's own modules.

        ``PYTHONPATH`` among the user's words stays. An absolute ``directory`` of ``--chdir`` is the user's own choice.
        """
        own = any(word.partition("=")[0] == "PYTHONPATH" for word in given)
        if own or not self.importable or directory.startswith("/"):
            return tuple(given)
        return (*given, f"PYTHONPATH={os.path.relpath(self.importable, directory or '.')}")


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is longer than {_MOST_BYTES >> 20} MiB; name a project with a lock.")
    return data


def _folders(lock: Path, text: str) -> list[Path]:
    """Return the folders that a lock names beside the project itself; their packages are built."""
    found = (
        _IN_TOML.findall(text)
        if lock.suffix in (".lock", ".toml")
        else [(name, "") for name in _IN_LINES.findall(text)]
    )
    top = lock.parent.resolve()
    places = {(top / unquote(double or single)).resolve() for double, single in found}
    return sorted(place for place in places if place != top and place.is_dir())


def _digest(folder: Path) -> bytes:
    """Return the digest of the files of a folder that belong to its package."""
    total = hashlib.sha256()
    found: list[tuple[str, Path]] = []
    try:
        for path, inner in source_files.files(folder):
            found.append((inner, path))
            if len(found) > _MOST_FILES:
                raise ConfigError(
                    f"The lock names {folder}, which has more than {_MOST_FILES} files; move data out of it."
                )
        for inner, path in sorted(found):
            total.update(f"{inner}\0{path.lstat().st_mode}\0".encode())
            if path.is_symlink():
                total.update(str(path.readlink()).encode())
                continue
            total.update(cache_entries.sha256_of(path).encode())
    except OSError as error:
        raise ConfigError(f"The lock names {folder}, which cannot be read: {error.strerror}.") from None
    return total.digest()


def _importable(folder: Path, pyproject: str) -> str:
    """Return the folder of a project's own modules, ``src`` or ``.``; empty where it is no package, as uv has it."""
    if not _PACKAGED.search(pyproject) or _VIRTUAL.search(pyproject):
        return ""
    return "src" if (folder / "src").is_dir() else "."


def environment(
    project: Project,
    inventory: AnyInventory,
    options: InventoryOptions,
    observer: Callable[[], AbstractContextManager[RunObserver]] | None,
    *,
    gone_from: Collection[str] = (),
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[str, str]:
    """Return the folder of the project's environment on each node; install it where it is not known to be.

    Nodes of different platforms have different folders.

    ``observer`` makes what shows the installation; None where nothing may be installed. ``gone_from`` are hosts that
    were found without it. ``tell`` takes the warnings of an installation, such as where uv's choice of versions is
    kept.

    Raises:
        ConfigError: the inventory is wrong.
        NotInstalledError: it could not be installed.
    """
    whole = Cluster.of(inventory, options)
    cluster = whole.inventory
    scheduler_env.refuse_outside(os.environ, cluster.selected_hosts)
    cluster_id, part = paths.cluster_id(cluster.sources), cluster.parts.get("python_env", "")
    digest = hashlib.sha256(f"{project.digest} {part}".encode()).hexdigest()
    known = environments.read(cluster_id).get(digest)
    trees = {host: tree for host, tree in (known.trees if known else {}).items() if host not in gone_from}
    if not set(cluster.selected) <= trees.keys():
        if observer is None:
            without = folded(sorted(set(cluster.selected) - trees.keys()))
            raise ConfigError(
                f"The environment of {project.folder} is not installed on {without}; run a job with --project once, "
                "without --print."
            )
        _known, notes = environments.to_change(cluster_id)  # a refusal after the installation would cost its minutes
        for note in notes:
            tell(note)
        from clusterctl.provisioning import project_install  # noqa: PLC0415 - a known environment needs none of it

        # Without the job's own words, such as values of -x, which may be secrets.
        argv = ("clusterctl", "run", "--project", str(project.folder), cluster.sources.shown)
        request = project_install.ProjectRequest(inventory=whole, options=options, argv=argv, lock=project.lock)
        with observer() as shown:
            found = project_install.install(request, shown)
        if found.record.exit_code != ExitCode.OK:
            raise NotInstalledError(found.record)
        for warning in found.record.warnings:
            tell(warning)
        trees |= found.trees
    used = datetime.now(timezone.utc)
    kept = Environment(project=str(project.folder), lock=project.lock.name, trees=trees, used=used)
    environments.keep(cluster_id, digest, kept)
    return {name: trees[name] for name in cluster.selected}
