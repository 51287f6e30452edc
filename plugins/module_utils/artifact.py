# SPDX-License-Identifier: Apache-2.0
"""The key, manifest and marker of an artifact (an installed software tree), for nodes and the controller.

A tree ``<root>/<name>-<version>-<key>`` is whole under two conditions. Its marker, which is written last, names the
wanted key. Every file agrees with the manifest whose digest the marker holds. The module runs on nodes, so it needs
only Python 3.9 and the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import tree_removal
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.artifacts import (
    MANIFEST,
    MARKER,
    MOST_ENTRIES,
    MOST_MANIFEST,
    MOST_MARKER,
    MOST_UNPACKED,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_regular

SCHEMA = 1
_KEY_DIGITS = 16
_CHUNK = 1 << 20
_LARGE = 1 << 20
_MOST_WORKERS = 8
_LEFT_BEHIND_S = 86400
_MOST_LEFT = 1000  # with one name; a user could make any number
_LEAST_UNPACKED = 1 << 30  # that an archive of any size may unpack to
_RATIO = 100  # sources shrink to a tenth, builds to a fifth
_RISKY = 0o7022  # setuid, setgid, sticky, and writable for others than the owner
_CAPABILITY = "security.capability"
# Folders that only root writes: a link of an artifact may lead there, for example to the interpreter.
_OF_ROOT = ("/bin/", "/lib/", "/lib64/", "/opt/", "/sbin/", "/usr/")
_OF_ALL = "/usr/tmp/"  # a link to /var/tmp on distributions like Red Hat's


class ArtifactError(Exception):
    """A problem with an artifact; the message is one sentence with the cure."""


class BadPackError(ArtifactError):
    """A pack with the right sha256 does not hold the artifact, so every host would refuse it."""


def plain(value: Any) -> Any:
    """Return ``value`` with every container rebuilt, so that Ansible's lazy templates are resolved."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def canonical(inputs: Any) -> bytes:
    """Return the canonical JSON of ``inputs``, from which the digest is made."""
    return json.dumps(plain(inputs), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def artifact_key(inputs: Any) -> str:
    """Return the 16 hex digits that identify all inputs of an artifact."""
    return hashlib.sha256(canonical(inputs)).hexdigest()[:_KEY_DIGITS]


def most_unpacked(packed: int) -> int:
    """Return how many bytes an archive of so many bytes may unpack to."""
    return min(MOST_UNPACKED, max(_LEAST_UNPACKED, _RATIO * packed))


def tree_name(name: str, version: str, key: str) -> str:
    """Return the base name of an artifact's folder on a node, and of its pack in the cache."""
    return f"{name}-{version}-{key}"


def sha256_of(path: "str | os.PathLike[str]") -> str:
    """Return the sha256 (hex) of a file's content."""
    total = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while True:
            chunk = stream.read(_CHUNK)
            if not chunk:
                return total.hexdigest()
            total.update(chunk)


class Entry(NamedTuple):
    """One line of a manifest; ``kind`` is ``f`` (file), ``l`` (link) or ``d`` (folder)."""

    path: str
    kind: str
    size: int
    content: str  # sha256 of a file, target of a link, empty for a folder
    mode: str  # four octal digits; empty for a link


def _walk(tree: str) -> List[str]:
    found = []
    for folder, folders, files in os.walk(tree):
        below = os.path.relpath(folder, tree)
        found += [name if below == "." else f"{below}/{name}" for name in [*folders, *files]]
    return sorted(name for name in found if name not in {MARKER, MANIFEST})


def make_manifest(tree: str) -> List[Entry]:
    """Return one entry for each file, link and folder below ``tree``, sorted by path.

    Raises:
        ArtifactError: there is a path of another kind, for example a socket, or one with rights that no artifact has.
    """
    entries = []
    owner = Path(tree).stat().st_uid
    for name in _walk(tree):
        path = Path(tree, name)
        state = path.lstat()
        mode = f"{stat.S_IMODE(state.st_mode):04o}"
        if stat.S_ISLNK(state.st_mode):
            entry = Entry(name, "l", 0, str(path.readlink()), "")
        elif stat.S_ISDIR(state.st_mode):
            entry = Entry(name, "d", 0, "", mode)
        elif stat.S_ISREG(state.st_mode):
            entry = Entry(name, "f", state.st_size, sha256_of(path), mode)
        else:
            raise ArtifactError(f"{path} is not a file, link or folder, so it cannot be packed.")
        problem = _problem(entry) or (entry.kind == "f" and has_capability(path) and f"{name!r} has capabilities")
        if problem or state.st_uid != owner:
            problem = problem or f"{name!r} belongs to another user than the folder"
            raise ArtifactError(f"The build cannot be packed: {problem}; correct its steps.")
        entries.append(entry)
    return entries


def has_capability(path: "str | os.PathLike[str]") -> bool:
    """Tell whether a file gives capabilities to who runs it; without support of the file system it does not."""
    try:
        return bool(os.getxattr(path, _CAPABILITY, follow_symlinks=False))
    except OSError:
        return False


def close_modes(tree: str) -> None:
    """Take the sticky bit, a folder's setgid bit and the write access of others from all below a tree.

    The umask of the build and the parent's group set them. A file that would run with its owner's rights stays as it
    is, and :func:`make_manifest` refuses it.

    Raises:
        OSError: a mode cannot be changed.
    """
    for name in _walk(tree):
        path = Path(tree, name)
        state = path.lstat()
        mode = stat.S_IMODE(state.st_mode)
        closed = mode & ~(0o7022 if stat.S_ISDIR(state.st_mode) else 0o1022)
        if not stat.S_ISLNK(state.st_mode) and closed != mode:
            path.chmod(closed)


def manifest_bytes(entries: Sequence[Entry]) -> bytes:
    """Return a manifest as it is written to :data:`MANIFEST`."""
    return json.dumps({"schema": SCHEMA, "files": [list(entry) for entry in entries]}, separators=(",", ":")).encode()


def parse_manifest(data: bytes) -> List[Entry]:
    """Return the entries of a manifest's bytes.

    Raises:
        ArtifactError: the bytes are not a manifest of this schema, or an entry is not one that an artifact may have.
    """
    # each entry is a list, so the number of brackets bounds the memory before anything is parsed
    if len(data) > MOST_MANIFEST or data.count(b"[") + data.count(b"{") > MOST_ENTRIES:
        raise ArtifactError(f"its manifest is larger than {MOST_MANIFEST} bytes or {MOST_ENTRIES} entries")
    try:
        document = json.loads(data, parse_int=artifacts.size)
        if document["schema"] != SCHEMA:
            raise ArtifactError("its manifest has another schema")
        entries = [Entry(*entry) for entry in document["files"]]
        if len({entry.path for entry in entries}) != len(entries):
            raise ArtifactError("its manifest names a path twice")
        problem = next(filter(None, map(_problem, entries)), "")
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ArtifactError("its manifest is not readable") from error
    if problem:
        raise ArtifactError(f"its manifest is refused: {problem}")
    if sum(entry.size for entry in entries) > MOST_UNPACKED:
        raise ArtifactError(f"its files have more than {MOST_UNPACKED} bytes together")
    return entries


# Mode and content of each kind of entry.
_FORMS = {
    "f": re.compile(r"[0-7]{4} [0-9a-f]{64}"),
    "d": re.compile(r"[0-7]{4} "),
    "l": re.compile(r" .+", re.DOTALL),
}
_LONGEST_PATH = 4095
_DEEPEST = 200  # folders of a path; Python follows about 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _problem(entry: Entry) -> str:
    """Return why an artifact may not have an entry; '' where it may.

    Raises:
        TypeError, ValueError: a field has another form.
    """
    path, kind, size, content, mode = entry
    if not isinstance(size, int) or not 0 <= size <= MOST_UNPACKED or (size and kind != "f"):
        raise ValueError(path)
    if not _FORMS[kind].fullmatch(f"{mode} {content}"):
        raise ValueError(path)
    if any(len(text) > _LONGEST_PATH or _CONTROL.search(text) for text in (path, content)):
        return f"{path[:80]!r} has a name or link that is too long or has control characters"
    if path.count("/") > _DEEPEST:
        return f"{path[:80]!r} is deeper than {_DEEPEST} folders"
    if {"", ".", ".."} & set(path.split("/")) or path in {MARKER, MANIFEST}:
        return f"{path!r} is not a path below the artifact"
    if mode and int(mode, 8) & _RISKY:
        return f"{path!r} has mode {mode}, so it is setuid, setgid, sticky or writable for others than its owner"
    return ""


def leaving_link(entries: Collection[Entry], root: str, beside: Collection[str] = ()) -> str:
    """Return a phrase about the first link that leads where others than root may write; '' without one.

    Args:
        entries: of a manifest.
        root: folder of the artifacts, to which links may lead too.
        beside: folders of the user's to which they may lead; whoever names them has seen that root alone writes there.
    """
    places = tuple(f"{os.path.normpath(one)}/" for one in (root, *beside))
    kinds = {entry.path: entry.kind for entry in entries}
    for entry in (entry for entry in entries if entry.kind == "l"):
        target = entry.content
        if target.startswith("/"):
            place = os.path.normpath(target) + "/"
            leaves = not place.startswith((*places, *_OF_ROOT)) or place.startswith(_OF_ALL)
            leaves = leaves or ".." in target.split("/")
        else:
            leaves = _climbs_out(entry, kinds)
        if leaves:
            return f"{entry.path!r} links to {target!r}, which is outside of the artifact"
    return ""


def _climbs_out(entry: Entry, kinds: Mapping[str, str]) -> bool:
    """Whether a relative link goes up beyond the artifact, or up from what is not a folder of it, such as a link."""
    place = entry.path.split("/")[:-1]
    for part in entry.content.split("/"):
        if part == "..":
            if not place or kinds.get("/".join(place)) != "d":
                return True
            place.pop()
        elif part not in {"", "."}:
            place.append(part)
    return False


def _deviation(tree: str, entry: Entry, owner: int, *, content: bool) -> str:
    why = artifacts.deviation(tree, entry, owner, content=content)
    if not why and entry.kind == "f" and has_capability(f"{tree}/{entry.path}"):
        why = "(has capabilities)"
    return why and f"{entry.path} {why}"


def deviation(tree: str, entries: Sequence[Entry], *, content: bool = False) -> Optional[str]:
    """Return the first difference between a tree and its manifest as a phrase, or None.

    Args:
        tree: folder of the files.
        entries: what must be there; additional files, such as a byte code cache, are ignored.
        content: compare the sha256 of every file, not only its size, mode and owner.
    """
    owner = Path(tree).stat().st_uid  # of every file
    large = [entry for entry in entries if content and entry.size >= _LARGE]
    with ThreadPoolExecutor(workers()) as pool:  # hashing large files lets other threads run
        under_way = [pool.submit(_deviation, tree, entry, owner, content=True) for entry in large]
        rest = (entry for entry in entries if not content or entry.size < _LARGE)
        found = next(filter(None, (_deviation(tree, entry, owner, content=content) for entry in rest)), None)
        if found is None:
            found = next(filter(None, (one.result() for one in under_way)), None)
        for one in under_way:
            one.cancel()
    return found


def workers() -> int:
    """Return how many threads may run in parallel on this host."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class TreeState:
    """The state of an artifact's folder."""

    present: bool
    ok: bool
    problem: str = ""
    marker_sha256: str = ""
    manifest_sha256: str = ""
    files: int = 0


def marker_bytes(name: str, version: str, key: str, inputs: Any, manifest_sha256: str) -> bytes:
    """Return the marker that is written last into a tree."""
    marker = {
        "schema": SCHEMA,
        "name": name,
        "version": version,
        "key": key,
        "inputs": plain(inputs),
        "manifest_sha256": manifest_sha256,
    }
    return (json.dumps(marker, indent=1, sort_keys=True) + "\n").encode()


def _read_marker(path: Path, asked: Tuple[int, str, str, str]) -> Tuple[bytes, str]:
    try:
        data = read_regular(str(path), MOST_MARKER)
    except OSError as error:
        raise ArtifactError("its marker is missing, so an install did not finish") from error
    except ValueError as error:
        raise ArtifactError("its marker is not readable") from error
    try:
        marker: Dict[str, Any] = json.loads(data)
        found = (marker["schema"], marker["name"], marker["version"], marker["key"])
        digest = str(marker["manifest_sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError("its marker is not readable") from error
    if asked != found:
        raise ArtifactError("its marker names another build")
    return data, digest


def manifest_of(tree: "str | os.PathLike[str]") -> bytes:
    """Return the bytes of the manifest of an installed artifact.

    Raises:
        ArtifactError: it is missing, not a regular file, or too large.
    """
    try:
        return read_regular(str(Path(tree, MANIFEST)), MOST_MANIFEST)
    except OSError as error:
        raise ArtifactError("its manifest is missing") from error
    except ValueError as error:
        raise ArtifactError("its manifest is not readable") from error


def _read_manifest(tree: str, digest: str) -> List[Entry]:
    data = manifest_of(tree)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ArtifactError("its manifest is not the one its marker names")
    return parse_manifest(data)


def inspect_tree(tree: str, name: str, version: str, key: str, *, content: bool = False) -> TreeState:
    """Compare the folder ``tree`` with the artifact that should be there.

    Args:
        tree: the artifact's folder.
        name: the artifact's name.
        version: its version.
        key: its key.
        content: see :func:`deviation`.
    """
    if not os.path.lexists(tree):
        return TreeState(present=False, ok=False, problem="it is not installed")
    try:
        marker_data, digest = _read_marker(Path(tree, MARKER), (SCHEMA, name, version, key))
        entries = _read_manifest(tree, digest)
    except ArtifactError as error:
        return TreeState(present=True, ok=False, problem=str(error))
    problem = deviation(tree, entries, content=content)
    return TreeState(
        present=True,
        ok=problem is None,
        problem=problem or "",
        marker_sha256=hashlib.sha256(marker_data).hexdigest(),
        manifest_sha256=digest,
        files=len(entries),
    )


def forget_leftovers(folder: str, patterns: Sequence[str]) -> None:
    """Remove the leftovers of killed runs, older than a day, from a folder that others use too.

    A pushed pack is a regular file of another user. Anything else counts only where this user owns it.

    Args:
        folder: where to look.
        patterns: names that only we use; a younger one may belong to a present run.
    """
    for path in (path for pattern in patterns for path in islice(Path(folder).glob(pattern), _MOST_LEFT)):
        with suppress(OSError):
            state = path.lstat()
            is_ours = stat.S_ISREG(state.st_mode) or state.st_uid == os.geteuid()
            if is_ours and time.time() - state.st_mtime >= _LEFT_BEHIND_S:
                tree_removal.remove(str(path))


def jobs_for(asked: int, cores: int, memory_bytes: int, memory_per_job_bytes: int) -> int:
    """Return how many compilers may run in parallel: ``asked``, or else the cores, limited by memory."""
    if asked > 0:
        return asked
    return max(1, min(cores, memory_bytes // max(1, memory_per_job_bytes)))


_COMPILING = re.compile(
    r"^\s+(?:CC|CXX|CPP|CCAS|PPAS|FC|F77|NVCC)\s+(\S+)|^libtool: compile: |^\[ *\d+%\] Building \w+ object "
)
_ENTERING = re.compile(r"Making \w+ in (\S+)$|[Ee]ntering directory '([^']+)'")
_CHECKING = re.compile(r"^checking (.+?)\.\.\.")
_WIDTH = 60


@dataclass
class Progress:
    """Turn the growing output of a build step into one line of progress."""

    step: str
    compiled: int = 0
    checks: int = 0
    lines: int = 0
    folder: str = ""
    check: str = ""
    last: str = ""
    _rest: str = field(default="", repr=False)

    def feed(self, text: str) -> None:
        """Take the output since the last call; it may end in the middle of a line."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.lines += 1
            self.last = line.strip() or self.last
            if _COMPILING.match(line):
                self.compiled += 1
                continue
            entering = _ENTERING.search(line)
            if entering:
                self.folder = "/".join((entering.group(1) or entering.group(2)).split("/")[-2:])
                continue
            checking = _CHECKING.match(line)
            if checking:
                self.checks += 1
                self.check = checking.group(1)

    def line(self) -> str:
        """Return the line, for example ``make: 412 files, now btl/tcp``."""
        if self.compiled:
            where = f", now {self.folder}" if self.folder else ""
            text = f"{self.compiled} files{where}"
        elif self.checks:
            text = f"{self.checks} checks, now {self.check}"
        else:
            text = self.last or "started"
        short = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
        return f"{self.step}: {short}"
