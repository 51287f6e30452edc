"""Packs, sources and wheels in the controller's cache: what there is, and its removal."""

from __future__ import annotations

import contextlib
import fcntl
import re
from typing import TYPE_CHECKING, Literal

from clusterctl.model.cache import CacheFile
from clusterctl.state import paths

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from pathlib import Path

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
