# SPDX-License-Identifier: Apache-2.0
"""The libraries that an artifact needs: those that the host lacks, and those that the distribution's packages hold."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import build_user, command, disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, workers

_ELF_MAGIC = b"\x7fELF"
_LDD_BATCH = 16
_ANSWER_S = 60
_LOADER_S = 300.0  # for a batch of files, which may lie on a slow disk
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_RECORDS = "/var/lib/clusterctl/libraries"
_FOUND = re.compile(r"^\s*\S+ => (/\S+) \(0x", re.MULTILINE)


def elf_files(tree: str) -> List[str]:
    """Return the absolute paths of the programs and shared libraries below ``tree``."""
    found = []
    for folder, _unused, names in os.walk(tree):
        for name in names:
            path = f"{folder}/{name}"
            try:  # plain calls, because there are tens of thousands of files; a special file raises an error
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENXIO, errno.ENODEV}:
                    continue
                raise
            try:
                head = os.read(descriptor, 18)
            finally:
                os.close(descriptor)
            # e_type 2 and 3 are programs and shared objects; 1, a relocatable object, has no dependencies
            if head[:4] == _ELF_MAGIC and len(head) == 18 and (head[16] | head[17]) in {2, 3}:  # noqa: PLR2004
                found.append(path)
    return sorted(found)


class Missing(NamedTuple):
    """A library that a file of an artifact needs and this host lacks."""

    library: str
    needed_by: str


_NOT_FOUND = re.compile(r"^\s*(\S+) => not found")
_NO_VERSION = re.compile(r"^(\S+): (\S+): version `([^']+)' not found \(required by (\S+)\)")
_HEADER = re.compile(r"^(/\S.*):$")


def parse_ldd(text: str) -> List[Missing]:
    """Return what ``ldd FILE FILE…`` could not find.

    Args:
        text: its standard output and error, each file's part under a line ``/path/of/file:``.
    """
    missing = []
    current = ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = header.group(1)
            continue
        version = _NO_VERSION.match(line)
        if version:
            missing.append(Missing(f"{Path(version.group(2)).name} ({version.group(3)})", version.group(4)))
            continue
        absent = _NOT_FOUND.match(line)
        if absent:
            missing.append(Missing(absent.group(1), current))
    return missing


class Closure(NamedTuple):
    """What this host's loader says of a tree.

    ``missing`` holds each library that it does not find, with the file (relative to the tree) that needs it, in the
    order found, without repeats. ``found`` holds the path of each library that it takes.
    """

    missing: List[Missing]
    found: List[str]


def ask_loader(tree: str, library_path: Sequence[str], ignore: Sequence[str] = (), *, within: bool = False) -> Closure:
    """Ask this host's loader about every program and library of a tree.

    Args:
        tree: folder of the artifact, where it is now.
        library_path: folders to search first; relative ones are below ``tree``.
        ignore: patterns of library names that may be missing.
        within: accept a library that lies anywhere in the tree, because Python packages load each other's libraries.

    The loader can start code of the tree (DT_AUDIT), so root asks as an unprivileged user id.

    Raises:
        ArtifactError: only root can reach the tree, or no user id is free.
    """
    with build_user.held("loader") as uid:
        closed = "" if uid is None else build_user.closed_above(tree)
        if closed:
            raise ArtifactError(
                f"Users cannot reach {tree}, because {closed} is closed to others; open it (chmod o+x)."
            )
        try:
            return _ask_loader_as(uid, tree, library_path, ignore, within=within)
        finally:
            if uid is not None:
                build_user.end_all(uid)


def _ask_loader_as(
    uid: Optional[int], tree: str, library_path: Sequence[str], ignore: Sequence[str], *, within: bool
) -> Closure:
    folders = [str(Path(tree, folder)) for folder in library_path]
    environment = {**_ENVIRONMENT, "LD_LIBRARY_PATH": ":".join(folders)}
    files = elf_files(tree)

    def ask(batch: Sequence[str]) -> str:
        # a second name makes ldd print the header line for a batch of one as well
        argv = ["ldd", *(batch if len(batch) > 1 else [*batch] * 2)]
        become = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        done = command.run(argv, _LOADER_S, environment, become=become, merged=True)
        if done.errors and done.status == command.NOT_STARTED:
            raise ArtifactError(f"What the programs of {tree} load cannot be told: {done.errors}")
        if done.errors:
            raise ArtifactError(
                f"The loader gave no answer about {batch[0]} within {_LOADER_S:g} s, or one without end; do not use"
                " this artifact."
            )
        return done.output

    with ThreadPoolExecutor(workers()) as pool:
        answers = list(pool.map(ask, [files[start : start + _LDD_BATCH] for start in range(0, len(files), _LDD_BATCH)]))
    own = {name for _unused, _unused, names in os.walk(tree) for name in names} if within else set()
    found: Dict[Tuple[str, str], Missing] = {}
    for item in (item for answer in answers for item in parse_ldd(answer)):
        needed_by = os.path.relpath(item.needed_by, tree) if item.needed_by.startswith(tree) else item.needed_by
        if item.library not in own and not any(fnmatch.fnmatchcase(item.library, pattern) for pattern in ignore):
            found.setdefault((item.library, needed_by), Missing(item.library, needed_by))
    taken = {match.group(1) for answer in answers for match in _FOUND.finditer(answer)}
    return Closure(list(found.values()), sorted(taken))


# --- the libraries of the distribution that an artifact stands on ----------------------------------------------------


def packages_of(paths: Sequence[str]) -> Dict[str, str]:
    """Return the package of each path, '' for a path that no package owns."""
    if not paths:
        return {}
    owners = dict.fromkeys(paths, "")
    # Where /lib is a link to /usr/lib, dpkg knows a file by either path.
    aliases = {alias: path for path in paths for alias in (path, _other_name(path))}
    for line in command.run(["dpkg-query", "--search", *aliases], _ANSWER_S, _ENVIRONMENT).output.splitlines():
        names, _unused, path = line.rpartition(": ")
        if path in aliases and not line.startswith("diversion by "):
            owners[aliases[path]] = names.split(", ")[0]
    unknown = [path for path, owner in owners.items() if not owner]
    for path in unknown if shutil.which("rpm", path=_ENVIRONMENT["PATH"]) else []:
        asked = command.run(["rpm", "-qf", "--queryformat", "%{NAME}", path], _ANSWER_S, _ENVIRONMENT)
        owners[path] = asked.output.strip() if asked.ok else ""
    return owners


def _other_name(path: str) -> str:
    return path[len("/usr") :] if path.startswith("/usr/lib") else f"/usr{path}"


def remember(base: str, libraries: Mapping[str, str]) -> None:
    """Keep the libraries that a tree takes from outside, each with its package; after an error the next run asks."""
    with suppress(OSError):
        folder = Path(_RECORDS)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        disk_files.write(folder / f"{base}.json", json.dumps({"libraries": dict(libraries)}, sort_keys=True))


def forget(base: str) -> None:
    """Drop what was kept of a tree that is removed."""
    with suppress(OSError):
        Path(_RECORDS, f"{base}.json").unlink()


def recall(base: str) -> Optional[Dict[str, str]]:
    """Return what was kept of a tree; None without a record."""
    try:
        kept = json.loads(Path(_RECORDS, f"{base}.json").read_bytes())["libraries"]
        return {str(path): str(package) for path, package in kept.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
