"""Hash the files of MPI that a rank and its daemon really have mapped, and compare them with what was installed.

One rank of each node does it, so that the work does not grow with the ranks. The files are in the page cache, because
they are mapped. The manifest of the installed artifact holds the sha256 of every file.

It needs the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Callable

MANIFEST = ".clusterctl.files.json"
LIBRARY = re.compile(r"lib(mpi|open-pal|open-rte|pmix|prrte)\.so[.\d]*")
BLOCK = 1 << 20
MOST_CHANGED = 8  # names in a line


class Contents:
    """Tells once what a rank has mapped, as soon as its loader is done."""

    def __init__(self, say: Callable[..., None]) -> None:
        """Take the voice of the rank."""
        self.say = say
        self.before: set[str] = set()

    def look(self, worker: int) -> bool:
        """Look at the working process of a rank; whether there is nothing more to do."""
        text = maps(worker)
        found = mapped(text) if "/libmpi.so" in text else set()  # this is asked often, until the library is there
        is_complete = bool(found) and found == self.before
        self.before = found
        if is_complete:
            self.say("mapped", **compared(found | mapped(maps(os.getppid()))))
        return is_complete


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


def compared(paths: set[str]) -> dict[str, object]:
    """Return the sha256 of each library of MPI by its name, and the files whose content is not the installed one."""
    manifests: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    changed: list[str] = []
    for path in sorted(paths):
        folder = artifact_of(path)
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


def artifact_of(path: str) -> str:
    """Return the folder of the artifact that holds a file, '' if it is in none."""
    return next((str(folder) for folder in Path(path).parents if (folder / MANIFEST).is_file()), "")


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
