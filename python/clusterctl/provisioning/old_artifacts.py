"""Which old artifacts go from nodes and from the cache: by count and age, never one in use; no I/O."""

from __future__ import annotations

import contextlib
import fcntl
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clusterctl.model import nodeset
from clusterctl.state import paths

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from clusterctl.model.snapshot import Snapshot
    from clusterctl.model.software import Hold, SoftwareSet


LEAST_KEPT = 2  # the set in force and the one before it, to which a rollback goes back
_AGE = re.compile(r"\s*(\d+)\s*(h|d|w)\s*")
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
        try:
            return Tree(str(data["path"]), int(data["size"]), float(data["installed"]), in_use)
        except OverflowError as error:
            raise ValueError(str(error)) from error


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

    Args:
        sets: what the runs left, newest first.
        hold: of the cluster.
        snapshot: of the cluster.
        keep: how many different sets stay; never fewer than the one in force and the one before it.
    """
    wanted = distinct(sets)[: max(keep, LEAST_KEPT)] + ([hold.software] if hold else [])
    found = {tree for software in wanted for host in software.hosts.values() for tree in host.links.values()}
    watch = (entry for host in snapshot.hosts.values() for entry in host.watch)
    return found | {str(entry["path"]) for entry in watch if entry.get("kind") == "artifact"}


def old_trees(
    trees: Mapping[str, Sequence[Tree]], kept: Container[str], before: float | None
) -> dict[str, tuple[Tree, ...]]:
    """Return by host the artifacts that go; hosts without one are left out.

    Args:
        trees: what each host has.
        kept: the folders that stay.
        before: what was installed later stays as well; None sets no age.
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


def old_cache_files(
    files: Iterable[CacheFile], kept_names: Container[str], kept_words: str, before: float | None, fresh: float
) -> list[CacheFile]:
    """Return the files of the cache that go.

    Sources and wheels are not of one set, so they go by their age alone, unless a kept pack or a lock names them.

    Args:
        files: what the cache has.
        kept_names: names of the folders that a cluster or a node still needs.
        kept_words: the records of the kept packs and the locks of wheels, as one text.
        before: what was written later stays; None sets no age.
        fresh: what was written later stays in any case, because a run may be about to install it.
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


def lines(trees: Mapping[str, Sequence[Tree]], files: Sequence[CacheFile]) -> list[str]:
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


# Type of the files in the controller's cache that can be made or fetched again.


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


# Packs, sources and wheels in the controller's cache: what there is, and its removal.

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
