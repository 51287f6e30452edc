# SPDX-License-Identifier: Apache-2.0
"""Installed artifacts, verified by their marker and their manifest, and the folder that holds them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib

from .reading import Json, list_folder, read_regular, read_text, sha256, user_name

# --- artifacts -------------------------------------------------------------------------------------------------------

MARKER = ".clusterctl.json"
MANIFEST = ".clusterctl.files.json"
MOST_MARKER = 1 << 22  # bytes
MOST_MANIFEST = 1 << 24  # bytes: about 100,000 files
MOST_ENTRIES = 250_000
MOST_UNPACKED = 1 << 36  # bytes; an environment of torch and CUDA has 8 GB
_KINDS = {"l": stat.S_ISLNK, "d": stat.S_ISDIR}
SLICES = 7  # of an artifact's files: one a night, so that each byte is read within a week


class Verifier:
    """Verifies artifacts for one record: each tree once, by whatever links it is reached."""

    def __init__(self, content: list[int] | None = None, silent: frozenset[str] | set[str] = frozenset()) -> None:
        """Take the slices of the files whose content is compared as well, and folders that do not answer.

        Args:
            content: see :func:`slice_of`; None compares none.
            silent: folders on file systems that do not answer.
        """
        self._content, self._silent = content or [], silent
        self._known: dict[tuple[str, str], tuple[int, str]] = {}

    def verify(self, path: str) -> tuple[Json, int, str]:
        """Read an artifact's marker and compare its files with its manifest.

        Kinds, sizes, modes, owners and link targets are compared. That takes milliseconds. Contents are compared where
        the record asks for it.

        Args:
            path: the artifact's folder, or a link to it.

        Returns:
            The marker ({} if it is missing), the number of manifest entries, and a sentence that says what is wrong
            ('' if the artifact is whole).
        """
        folder = os.path.realpath(path)
        try:
            marker = json.loads(read_regular(f"{folder}/{MARKER}", MOST_MARKER))
        except FileNotFoundError:
            return {}, 0, f"{path} has no {MARKER}, so its installation was never finished"
        except (OSError, ValueError, RecursionError) as error:
            return {}, 0, f"{folder}/{MARKER} cannot be read: {error}"
        if not isinstance(marker, dict):
            return {}, 0, f"{folder}/{MARKER} is not a marker: it must hold a JSON object"
        tree = folder, str(marker.get("manifest_sha256", ""))
        if tree not in self._known:
            count, problem = _compare_with_manifest(*tree, self._content)
            self._known[tree] = count, problem or self._of_existing(marker.get("inputs"))
        return (marker, *self._known[tree])

    def _of_existing(self, inputs: object) -> str:
        """Return how software of the user differs from what the marker names; '' for an artifact without any."""
        if not isinstance(inputs, dict) or not inputs.get("existing"):
            return ""
        # Most modules that verify an artifact compile these for nothing.
        from . import existing_openmpi, existing_python  # noqa: PLC0415

        if not existing_python.PLAIN.fullmatch(str(inputs["existing"])):
            return ""
        its = existing_openmpi if "files" in inputs else existing_python
        return its.changes(inputs, self._silent)


def slice_of(name: str) -> int:
    """Return the slice of a file, from its path in the artifact: the same on each node and each night."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % SLICES


def _compare_with_manifest(folder: str, digest: str, content: list[int]) -> tuple[int, str]:
    """Return the number of manifest entries, and a sentence that says how the folder differs ('' if it does not)."""
    try:
        raw = read_regular(f"{folder}/{MANIFEST}", MOST_MANIFEST)
        if hashlib.sha256(raw).hexdigest() != digest:
            return 0, f"{folder}/{MANIFEST} is not the one that the marker names"
        files = _entries(raw)
        owner = os.stat(folder).st_uid
        doubtful = files if content else _at_first_sight(folder, files, owner)
        wrong = [
            (str(entry[0]), why)
            for entry in doubtful
            if (why := deviation(folder, entry, owner, content=bool(content) and slice_of(entry[0]) in content))
        ]
    except FileNotFoundError:
        return 0, f"{folder}/{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        return 0, f"{folder}/{MANIFEST} cannot be read: {error}"
    if not wrong:
        return len(files), ""
    return len(files), f"{len(wrong)} of {len(files)} files are missing or changed, first {' '.join(wrong[0])}"


def _entries(raw: bytes) -> list:
    """Return the entries of a manifest.

    Raises:
        ValueError, TypeError, LookupError, RecursionError: it has another form, or more than an artifact has.
    """
    # each entry is a list, so the number of brackets bounds the memory before anything is parsed
    if raw.count(b"[") + raw.count(b"{") > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES} entries")
    files = json.loads(raw, parse_int=size)["files"]
    if not isinstance(files, list) or sum(entry[2] for entry in files) > MOST_UNPACKED:
        raise ValueError(f"its files have more than {MOST_UNPACKED} bytes together")
    return files


def size(digits: str) -> int:
    """Return a size in the JSON of a manifest.

    Raises:
        ValueError: no artifact has one.
    """
    if len(digits) > len(str(MOST_UNPACKED)):  # Python 3.9 takes minutes for a number of a million digits
        raise ValueError("it has a number that is too large")
    return int(digits)


def _at_first_sight(folder: str, files: list, owner: int) -> list:
    """Return the entries that are not plainly whole regular files; of tens of thousands, few are left."""
    modes: dict[str, int] = {}
    doubtful = []
    for entry in files:
        word = entry[4] if len(entry) > 4 else ""  # noqa: PLR2004 - an entry's fifth value, '' for a link
        if word not in modes:
            modes[word] = stat.S_IFREG | int(word or "0", 8)
        try:
            status = os.lstat(f"{folder}/{entry[0]}")
        except OSError:
            doubtful.append(entry)
            continue
        if status.st_mode != modes[word] or status.st_size != entry[2] or status.st_uid != owner or entry[1] != "f":
            doubtful.append(entry)
    return doubtful


def deviation(folder: str, entry: "list | tuple", owner: int, *, content: bool) -> str:
    """Return how a file differs from its manifest entry (path, kind, size, sha256 or target, mode); '' if it does not.

    Every file belongs to the owner of the folder. ``content`` compares the sha256 as well.
    """
    name, kind, length, wanted = entry[:4]
    path = f"{folder}/{name}"
    try:
        status = os.lstat(path)
    except OSError:
        return "(missing)"
    found = ""
    if not _KINDS.get(kind, stat.S_ISREG)(status.st_mode):
        found = "(of another kind)"
    elif status.st_uid != owner:
        found = f"(owner {user_name(status.st_uid)})"
    elif kind == "l":
        found = "" if os.readlink(path) == wanted else "(leads elsewhere)"
    elif len(entry) > 4 and stat.S_IMODE(status.st_mode) != int(entry[4], 8):  # noqa: PLR2004 - the fifth value
        found = f"(mode {stat.S_IMODE(status.st_mode):04o}, was {entry[4]})"
    elif kind != "d" and status.st_size != length:
        found = f"(size {status.st_size}, was {length})"
    elif kind != "d" and content and sha256(path) != wanted:
        found = "(content)"
    return found


def artifacts(asked: list[Json] | None, verifier: Verifier, root: str) -> Json:
    """Verify the artifacts asked for; None stands for every artifact directly below the root.

    A relative link is below the root.
    """
    if asked is None:
        folders = [f"{root}/{name}" for name in list_folder(root)]
        asked = [
            {"name": "", "link": folder}
            for folder in folders
            if not os.path.islink(folder) and os.path.isfile(f"{folder}/{MARKER}")
        ]
    return {
        "artifacts": [
            _artifact(
                str(entry.get("name", "")),
                os.path.join(root, str(entry["link"])),
                entry.get("inputs") or [],
                verifier,
                root,
            )
            for entry in asked
        ]
    }


def _artifact(name: str, link: str, inputs: list[str], verifier: Verifier, root: str) -> Json:
    if not os.path.isdir(link):
        problem = f"{link} does not exist" if not os.path.lexists(link) else f"{link} leads nowhere"
        return {
            "name": name,
            "link": link,
            "target": "",
            "version": "",
            "key": "",
            "linked": os.path.islink(link),
            "ok": False,
            "problem": problem,
            "inputs": {},
        }
    marker, _unused, problem = verifier.verify(link)
    linked = os.path.islink(link) or not name
    found = str(marker.get("name", name))
    if not name:  # found in the root: tell whether the public link leads here
        public = f"{root}/{found}"
        switched = os.path.realpath(public) == os.path.realpath(link)
        target, link = os.path.realpath(link), public if switched else ""
    else:
        target = os.path.realpath(link)
    told = marker.get("inputs")
    return {
        "name": found,
        "link": link,
        "target": target,
        "version": str(marker.get("version", "")),
        "key": str(marker.get("key", "")),
        "linked": linked,
        "ok": not problem,
        "problem": problem,
        "inputs": {key: value for key, value in told.items() if key in inputs} if isinstance(told, dict) else {},
    }


# --- prefix ----------------------------------------------------------------------------------------------------------

DEFAULT_PREFIX = "/usr/local"
_TREE = re.compile(r"[A-Za-z0-9_]+-[^/]+-[0-9a-f]{16}")
_NOTE = re.compile(r"# clusterctl: added PATH (.+)")  # of the role environment
_FIRST = "/openmpi/bin"


def prefix(path: str) -> Json:
    """Return what is known of the folder of the software, and further folders that hold some of clusterctl."""
    others = [
        other for other in prefix_candidates(read_text("/etc/environment", "")) if other != path and has_software(other)
    ]
    existing = _existing(path)
    state = {
        "path": path,
        "problem": "" if path == DEFAULT_PREFIX else prefix_problem(path),
        "read_only": bool(os.statvfs(existing[-1]).f_flag & os.ST_RDONLY),
        "others": others,
        "trees": installed_trees(path),
    }
    return {"prefix": state}


def prefix_candidates(environment: str) -> list[str]:
    """Return the folders that may hold software: the default, and those that /etc/environment (a text) tells of."""
    notes = (_NOTE.fullmatch(line.strip()) for line in environment.split("\n"))
    words = [word for note in notes if note for word in note.group(1).split()]
    return sorted(
        {DEFAULT_PREFIX, *(word[: -len(_FIRST)] for word in words if word.startswith("/") and word.endswith(_FIRST))}
    )


def has_software(path: str) -> bool:
    """Tell whether a folder holds an artifact."""
    return any(os.path.isfile(f"{path}/{name}/{MARKER}") for name in installed_trees(path))


def installed_trees(path: str) -> list[str]:
    """Return the names in a folder that are those of artifacts, whole or not."""
    return sorted(name for name in list_folder(path) if _TREE.fullmatch(name))


def prefix_problem(path: str) -> str:
    """Return why root must not install below a folder, as a clause; '' where it may. What is missing root makes."""
    for folder in _existing(path):
        state = os.lstat(folder)
        mode = stat.S_IMODE(state.st_mode)
        if stat.S_ISLNK(state.st_mode):
            return f"{folder} is a link, and the path is to be that of the folder itself ({os.path.realpath(folder)})"
        if not stat.S_ISDIR(state.st_mode):
            return f"{folder} is not a folder"
        if state.st_uid != 0:
            return f"{folder} belongs to {user_name(state.st_uid)}, who could replace the software"
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and state.st_gid != 0):
            return f"{folder} can be written by others than root (mode {mode:04o}), who could replace the software"
        if mode & 0o005 != 0o005:  # noqa: PLR2004 - to read and to enter
            return f"{folder} can be entered by root alone (mode {mode:04o})"
    return ""


def _existing(path: str) -> list[str]:
    """Return the folders on the way to a path that are there, / first; a link ends the way."""
    found = ["/"]
    for name in path.strip("/").split("/"):
        folder = f"{found[-1].rstrip('/')}/{name}"
        if not os.path.lexists(folder):
            break
        found.append(folder)
        if os.path.islink(folder):
            break
    return found
