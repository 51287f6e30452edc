"""Hash the files of installed artifacts that a rank really uses, and compare them with what was installed.

One rank of each node does it, so that the work does not grow with the ranks. The files are in the page cache, because
they are mapped or were imported. The manifest of an installed artifact holds the sha256 of every file. It needs the
standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

MANIFEST = ".clusterctl.files.json"
LIBRARY = re.compile(r"lib(mpi|open-pal|open-rte|pmix|prrte)\.so[.\d]*")
BLOCK = 1 << 20
MOST_CHANGED = 8  # names in a line
MOST_BYTES = 1 << 29  # of a file; CUDA's libraries have gigabytes


def used() -> set[str]:
    """Return the files that this process has mapped or imported, links resolved; Python itself writes compiled ones."""
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = {os.path.realpath(path) for path in imported if isinstance(path, str)}
    return mapped(maps(os.getpid())) | {path for path in paths if Path(path).is_file() and not path.endswith(".pyc")}


def maps(pid: int) -> str:
    """Return what the kernel says of a process's memory, '' where it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def mapped(text: str) -> set[str]:
    """Return the regular files in the map of a process's memory."""
    places = {line[line.index("/") :] for line in text.splitlines() if "/" in line}
    return {path for path in places if not path.startswith(("/dev/", "/memfd:", "/SYSV")) and Path(path).is_file()}


def compared(paths: set[str], within_s: float = float("inf")) -> dict[str, object]:
    """Return the sha256 of each library of MPI by its name, and the files whose content is not the installed one.

    Args:
        paths: the files; small ones come first.
        within_s: after so many seconds, the others are left out.
    """
    until = time.monotonic() + within_s
    manifests: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    changed: list[str] = []
    for size, path in sorted((Path(path).stat().st_size, path) for path in paths):
        if size > MOST_BYTES or time.monotonic() > until:
            break
        folder = artifact_of(Path(path).parent)
        name = Path(path).name
        if not folder and not LIBRARY.fullmatch(name):
            continue
        digest = sha256(path)
        if LIBRARY.fullmatch(name):
            files[name] = digest
        if folder and folder not in manifests:
            manifests[folder] = installed(folder)
        known = manifests.get(folder, {}).get(path[len(folder) + 1 :], digest)
        if known != digest:
            changed.append(path)
    return {"files": files, "changed": changed[:MOST_CHANGED]}


@functools.lru_cache(maxsize=None)
def artifact_of(place: Path) -> str:
    """Return the folder of the artifact that a folder belongs to, '' if it is in none."""
    return next((str(folder) for folder in (place, *place.parents) if (folder / MANIFEST).is_file()), "")


def installed(folder: str) -> dict[str, str]:
    """Return the sha256 of each file of an artifact, by its path in it; {} where the manifest cannot be read."""
    try:
        entries = json.loads(Path(folder, MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(entry[0]): str(entry[3]) for entry in entries if entry[1] not in {"l", "d"}}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def sha256(path: str) -> str:
    """Return the sha256 of a file, '' where it cannot be read."""
    total = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            while True:
                block = stream.read(BLOCK)
                if not block:
                    return total.hexdigest()
                total.update(block)
    except OSError:
        return ""
