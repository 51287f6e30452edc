# SPDX-License-Identifier: Apache-2.0
"""Read a lock in TOML: pylock.toml (PEP 751), and uv.lock, which uv turns into one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

from .lock import (
    CREATE,
    MOST_BYTES,
    MOST_PACKAGES,
    Asked,
    Lock,
    LockedFile,
    LockedPackage,
    LockError,
    SourceTree,
    from_tree,
    git_tree,
    locked_file,
    package,
    with_sdist,
)
from .requirements import canonicalize_name

_MOST_TEXT = 10_000
_WHEEL = re.compile(r"[^-]+-(?P<version>[^-]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+[.]whl")
_SOURCE = re.compile(r"(?P<name>.+)-(?P<version>[0-9][^-]*)[.]tar[.]gz")


def toml(text: str, file: str) -> dict[str, Any]:
    """Return a document of TOML.

    Raises:
        LockError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise LockError(f"{file} is not TOML ({str(error)[:200]}), so it is not a lock; {CREATE}.") from error


def read_pylock(text: str, file: str, folder: Path, asked: Asked) -> Lock:
    """Return the lock in a text.

    Args:
        text: the content of a ``pylock.toml``.
        file: its path, for messages.
        folder: paths of files in it begin here.
        asked: the extras and groups that are wanted.

    Raises:
        LockError: the text is not such a lock, or names what cannot be installed.
    """
    document = toml(text, file)
    version = document.get("lock-version")
    if not isinstance(version, str):
        raise LockError(f"{file} has no lock-version, so it is not a pylock.toml; {CREATE}.")
    if version.partition(".")[0] != "1":
        raise LockError(f"{file} has the lock-version {version[:20]}, and version 1 is read; export it as version 1.")
    entries = document.get("packages", [])
    if not isinstance(entries, list) or len(entries) > MOST_PACKAGES:
        raise LockError(f"{file} has no list of up to {MOST_PACKAGES} packages; {CREATE}.")
    _refuse_unknown(file, document, asked)
    return Lock(
        file,
        _text(document, "requires-python", file),
        tuple(_package(entry, file, folder) for entry in entries),
        extras=asked.extras,
        groups=tuple(sorted({*asked.groups, *_names(document, "default-groups")})),
    )


def _refuse_unknown(file: str, document: Mapping[str, Any], asked: Asked) -> None:
    """Refuse extras and groups that the lock does not define.

    Raises:
        LockError: the first of them.
    """
    for variable, names, known in (
        ("python_env_lock_extras", asked.extras, _names(document, "extras")),
        ("python_env_lock_groups", asked.groups, _names(document, "dependency-groups")),
    ):
        for name in names:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                raise LockError(f"{variable}: {file} does not define {name} ({has}); correct the name.")


def _names(document: Mapping[str, Any], key: str) -> list[str]:
    found = document.get(key, [])
    return [str(canonicalize_name(str(name))) for name in found] if isinstance(found, list) else []


def _text(table: Mapping[str, Any], key: str, file: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise LockError(f"{file}: {key} is not a text; {CREATE}.")
    return value


def _package(entry: Any, file: str, folder: Path) -> LockedPackage:
    """Return the typed form of an entry of ``packages``."""
    if not isinstance(entry, dict):
        raise LockError(f"{file}: an entry of packages is not a table; {CREATE}.")
    name = str(entry.get("name"))[:100]
    marker = _text(entry, "marker", file)
    known = {"marker": marker, "requires_python": _text(entry, "requires-python", file)}
    for kind in ("vcs", "directory"):
        if kind in entry:
            tree = _tree(entry, entry[kind], file, folder)
            return replace(tree, marker=marker, requires_python=known["requires_python"])
    if "archive" in entry:
        return _archive(entry, file, folder, known)
    found = package(file, entry.get("name"), entry.get("version"), **known)
    wheels = entry.get("wheels", [])
    if not isinstance(wheels, list):
        raise LockError(f"{file}: the wheels of {name} are not a list; {CREATE}.")
    found = replace(found, wheels=tuple(_file(found, one, file, folder) for one in wheels))
    return with_sdist(found, _file(found, entry["sdist"], file, folder), file) if "sdist" in entry else found


def _tree(entry: Mapping[str, Any], place: Any, file: str, folder: Path) -> LockedPackage:
    """Return a package that is a folder, or a commit of a repository; a problem counts where it is wanted."""
    name = str(entry.get("name"))[:100]
    if not isinstance(place, dict):
        raise LockError(f"{file}: the source of {name} is not a table; {CREATE}.")
    path, subdirectory = _text(place, "path", file), _text(place, "subdirectory", file)
    local = (folder / path).resolve() if path and "\0" not in path else None
    if "directory" in entry:
        if local is None:
            raise LockError(f"{file}: the folder of {name} has no path; {CREATE}.")
        tree = SourceTree(folder=str(local), subdirectory=subdirectory)
        return from_tree(file, entry.get("name"), entry.get("version"), tree)
    kind = _text(place, "type", file)
    problem = (
        f"{file}: {name} comes from {kind[:20]!r}, and git is the version control system that is read; lock a release."
    )
    if kind == "git":
        url = local.as_uri() if local else _text(place, "url", file)
        try:
            tree = git_tree(file, name, url, place.get("commit-id"), subdirectory)
        except LockError as error:
            problem = str(error)
        else:
            return from_tree(file, entry.get("name"), entry.get("version"), tree)
    return replace(package(file, entry.get("name"), "0"), problem=problem)


def _archive(entry: Mapping[str, Any], file: str, folder: Path, known: Mapping[str, str]) -> LockedPackage:
    """Return a package that is one file at an address of its own."""
    unnamed = package(file, entry.get("name"), "0")
    its = _file(unnamed, entry["archive"], file, folder)
    wheel = _WHEEL.fullmatch(its.filename)
    if wheel:
        return replace(package(file, entry["name"], wheel["version"], **known), wheels=(its,))
    source = _SOURCE.fullmatch(its.filename)
    if source is None or canonicalize_name(source["name"]) != unnamed.name:
        problem = (
            f"{file}: {unnamed.name} comes from {its.filename}, whose name has no version; lock a released version, or"
            " build its wheel ('uv build --wheel') and lock that file."
        )
        return replace(unnamed, marker=known["marker"], problem=problem)
    return with_sdist(package(file, entry["name"], source["version"], **known), its, file)


def _file(of: LockedPackage, entry: Any, file: str, folder: Path) -> LockedFile:
    """Return the typed form of a wheel, a source archive or an archive."""
    if not isinstance(entry, dict):
        raise LockError(f"{file}: a file of {of.name} is not a table; {CREATE}.")
    hashes = entry.get("hashes")
    path, url = _text(entry, "path", file), _text(entry, "url", file)
    if "\0" not in path and path:
        url = (folder / path).resolve().as_uri()
    return locked_file(
        of, file, _text(entry, "name", file), hashes.get("sha256") if isinstance(hashes, dict) else "", url
    )


# --- uv.lock: uv makes a pylock.toml of it, without a network and without a Python ------------------------------------

_LONGEST_S = 300
# --frozen takes the lock as it is. The project itself comes with the user's code.
_ARGUMENTS = (
    *("export", "--frozen", "--offline", "--no-config", "--no-cache", "--quiet", "--color=never"),
    *("--format=pylock.toml", "--no-emit-project"),
)


def export(path: Path, asked: Asked, uv: Path) -> str:
    """Return the text of a ``pylock.toml`` that says what a ``uv.lock`` says.

    Args:
        path: the lock, beside the ``pyproject.toml`` of its project.
        asked: extras and groups; the project's default groups come as well.
        uv: the program.

    Raises:
        LockError: the file is not such a lock, or does not define an extra or a group.
    """
    if not (path.parent / "pyproject.toml").is_file():
        raise LockError(
            f"{path} has no pyproject.toml beside it, which says what the lock is for; put it there, or export the lock"
            " ('uv export --format pylock.toml -o pylock.toml') and name that file."
        )
    wanted = [f"--extra={name}" for name in asked.extras] + [f"--group={name}" for name in asked.groups]
    with tempfile.TemporaryDirectory() as home:
        # neither the user's settings nor logins of their environment reach uv
        surroundings = {"PATH": home, "HOME": home, "TMPDIR": home, "LC_ALL": "C", "UV_PYTHON_DOWNLOADS": "never"}
        try:
            done = subprocess.run(
                [str(uv), *_ARGUMENTS, *wanted],
                cwd=path.parent,
                env=surroundings,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired as error:
            raise LockError(f"{path}: uv did not end within {_LONGEST_S} s; export the lock by hand.") from error
    if done.returncode:
        raise LockError(f"{path}: uv cannot use this lock: {_reason(done.stderr)}; run 'uv lock' in its folder.")
    if len(done.stdout) > MOST_BYTES:
        raise LockError(f"{path} has more than {MOST_BYTES >> 20} MiB, so it is not a lock.")
    return done.stdout.decode("utf-8", "replace")


def _reason(said: bytes) -> str:
    """Return what uv says is wrong, in one line without logins."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    text = " ".join(lines[:2]).removeprefix("error: ")
    return re.sub(r"://[^/@\s]*@", "://", re.sub(r"[^ -~]", " ", text))[:300].rstrip(". ") or "it says no reason"
