"""What of a project's folder is part of its environment: folders that its lock names, and the place of its modules."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import unquote

from clusterctl.support.errors import ConfigError

_MOST_FILES = 50_000
_BLOCK = 1 << 20
# Where uv.lock, pylock.toml and requirements.txt name a folder.
_IN_TOML = re.compile(r"\b(?:editable|directory|path)\s*=\s*(?:\"([^\"\n]+)\"|'([^'\n]+)')")
_IN_LINES = re.compile(
    r"^(?:(?:-e|--editable)[= ]\s*)?(?:[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*@\s*)?(?:file://)?([./][^\s;\[#]*)",
    re.MULTILINE,
)
_LEFT_OUT = {"__pycache__", "node_modules", "venv"}
_LEFT_OUT_ON_TOP = {"build", "dist"}
_PACKAGED = re.compile(r"^\s*\[build-system\]", re.MULTILINE)
_VIRTUAL = re.compile(r"^\s*package\s*=\s*false\b", re.MULTILINE)


def folders(lock: Path, text: str) -> list[Path]:
    """Return the folders that a lock names beside the project itself; their packages are built."""
    found = (
        _IN_TOML.findall(text)
        if lock.suffix in (".lock", ".toml")
        else [(name, "") for name in _IN_LINES.findall(text)]
    )
    top = lock.parent.resolve()
    places = {(top / unquote(double or single)).resolve() for double, single in found}
    return sorted(place for place in places if place != top and place.is_dir())


def digest(folder: Path) -> bytes:
    """Return the digest of a folder's files.

    Raises:
        ConfigError: it cannot be read, or has more files than a package.
    """
    total, count = hashlib.sha256(), 0
    try:
        for top, inner, names in os.walk(folder):
            on_top = Path(top) == folder
            inner[:] = sorted(
                name
                for name in inner
                if not name.startswith(".") and name not in _LEFT_OUT and not (on_top and name in _LEFT_OUT_ON_TOP)
            )
            for name in sorted(names):
                path = Path(top) / name
                count += 1
                if count > _MOST_FILES:
                    raise ConfigError(
                        f"The lock names {folder}, which has more than {_MOST_FILES} files; move data out of it."
                    )
                total.update(f"{path.relative_to(folder)}\0{path.lstat().st_mode}\0".encode())
                total.update(str(path.readlink()).encode() if path.is_symlink() else _of(path))
    except OSError as error:
        raise ConfigError(f"The lock names {folder}, which cannot be read: {error.strerror}.") from None
    return total.digest()


def _of(path: Path) -> bytes:
    total = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                total.update(block)
    return total.digest()


def importable(folder: Path, pyproject: str) -> str:
    """Return the folder of a project's own modules, ``src`` or ``.``; empty where it is no package, as uv has it."""
    if not _PACKAGED.search(pyproject) or _VIRTUAL.search(pyproject):
        return ""
    return "src" if (folder / "src").is_dir() else "."
