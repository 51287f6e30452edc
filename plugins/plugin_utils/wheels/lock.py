# SPDX-License-Identifier: Apache-2.0
"""The user's own lock of a Python environment: what pylock.toml, uv.lock and requirements.txt have in common.

A lock is read as data. Nothing that it names is run on the controller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from .packages import WheelError
from .requirements import canonicalize_name

MOST_BYTES = 1 << 26
MOST_PACKAGES = 10_000
CREATE = "make one with 'uv lock', 'uv export --format pylock.toml' or 'pip lock'"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!]{0,98}")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}")
_URL = re.compile(r"[!-~]{1,4000}")
_WEB = {"http", "https"}
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_USER = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,60})?")
_FOLDER = re.compile(r"[A-Za-z0-9_.+@/-]{0,400}")


class LockError(WheelError):
    """A lock cannot be used; the message names its file, the package and the cure."""


@dataclass(frozen=True)
class Asked:
    """What is wanted of a lock beside its main packages.

    Attributes:
        extras: names of extras.
        groups: names of dependency groups, in addition to the lock's default groups.
    """

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, extras: Iterable[Any], groups: Iterable[Any]) -> Asked:
        """Return the typed form of lists of names.

        Raises:
            LockError: a text is not the name of an extra or a group.
        """
        return cls(_names("python_env_lock_extras", extras), _names("python_env_lock_groups", groups))


@dataclass(frozen=True)
class LockedFile:
    """A wheel or a source archive that a lock names.

    Attributes:
        filename: base name.
        sha256: 64 hex digits.
        url: where the lock found it, without a login; '' where only the index of pip's configuration is asked.
    """

    filename: str
    sha256: str
    url: str = field(default="", compare=False)


@dataclass(frozen=True)
class SourceTree:
    """Where the source of a package is: a commit of a git repository, or a folder of this controller.

    Attributes:
        url: of the repository, without a login; '' for a folder.
        commit: its 40 hex digits, which are the hash of all files.
        folder: absolute path.
        subdirectory: the package's folder in it; '' for all of it.
    """

    url: str = ""
    commit: str = ""
    folder: str = ""
    subdirectory: str = ""


@dataclass(frozen=True)
class LockedPackage:
    """A package that a lock names.

    Attributes:
        name: canonical.
        version: the version; '' where the source of ``tree`` tells it.
        marker: when it is wanted, as in PEP 508 or PEP 751; '' for always.
        requires_python: the Pythons that it runs on; '' for all.
        wheels: its wheels.
        sdist: its source archive.
        tree: its source, where it is not an archive.
        hashes: sha256 of files that the lock names by their hash alone, as requirements.txt does.
        problem: why it cannot be installed, as a sentence; '' if it can. It counts where the package is wanted.
    """

    name: str
    version: str
    marker: str = ""
    requires_python: str = ""
    wheels: tuple[LockedFile, ...] = ()
    sdist: LockedFile | None = None
    tree: SourceTree | None = None
    hashes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Lock:
    """A lock that was read.

    Attributes:
        file: its path, for messages.
        requires_python: the Pythons that it was made for; '' for all.
        packages: what it names, for all platforms.
        requirements: requirements without hashes, which an index has to resolve once.
        extras: names of extras that markers see.
        groups: names of dependency groups that markers see.
    """

    file: str
    requires_python: str = ""
    packages: tuple[LockedPackage, ...] = ()
    requirements: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def lock_text(path: Path) -> str:
    """Return the text of a lock.

    Raises:
        LockError: it is missing, too large, or not a text.
    """
    if not path.is_file():
        what = "is not a file" if path.exists() else "is not on this controller"
        raise LockError(f"python_env_lock: {path} {what}; name a pylock.toml, uv.lock or requirements.txt.")
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise LockError(f"python_env_lock: {path} has more than {MOST_BYTES >> 20} MiB, so it is not a lock.")
        return data.decode("utf-8")
    except OSError as error:
        raise LockError(f"python_env_lock: {path} cannot be read ({error.strerror}); make it readable.") from error
    except UnicodeDecodeError as error:
        raise LockError(f"python_env_lock: {path} is not a text in UTF-8, so it is not a lock; {CREATE}.") from error


def package(file: str, name: Any, version: Any, **more: Any) -> LockedPackage:
    """Return a package with a valid name and version.

    Raises:
        LockError: the name or the version is not valid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LockError(f"{file}: {str(name)[:100]!r} is not the name of a package; {CREATE}.")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise LockError(
            f"{file}: {name} has no version (found {str(version or '')[:100]!r}); lock a released version of it."
        )
    return LockedPackage(str(canonicalize_name(name)), version, **more)


def locked_file(of: LockedPackage, file: str, filename: str, sha256: Any, url: str = "") -> LockedFile:
    """Return a file with a valid name and sum.

    Args:
        of: the package.
        file: the lock, for messages.
        filename: base name; '' takes the one of the address.
        sha256: its sum.
        url: where the lock found it; a login in it is dropped.

    Raises:
        LockError: the name or the sum is not valid.
    """
    place = without_login(url)
    filename = filename or unquote(PurePosixPath(urlsplit(url).path).name)
    if not _FILENAME.fullmatch(filename):
        raise LockError(f"{file}: {filename[:100]!r} of {of.name} is not the name of a file; {CREATE}.")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise LockError(
            f"{file}: {filename} of {of.name} has no sha256, so it is not used; lock it again with an index that names"
            " the sums of its files."
        )
    return LockedFile(filename, sha256, place)


def with_sdist(of: LockedPackage, sdist: LockedFile, file: str) -> LockedPackage:
    """Return a package with its source archive, of which only the form .tar.gz is read."""
    if sdist.filename.endswith(".tar.gz"):
        return replace(of, sdist=sdist)
    problem = (
        f"{file}: the source of {of.name} is {sdist.filename}, and only .tar.gz is read; build its wheel ('uv build"
        " --wheel') and lock that, or lock another version."
    )
    return replace(of, problem="" if of.wheels else problem)


def without_login(url: str) -> str:
    """Return an address without user and password; '' for one that holds a query, which may be a login as well."""
    if not _URL.fullmatch(url):
        return ""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.query or parts.scheme not in {*_WEB, "file"} or (parts.scheme in _WEB and not parts.hostname):
        return ""
    host = parts.hostname or ""
    netloc = f"{f'[{host}]' if ':' in host else host}{port}"
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def from_tree(file: str, name: Any, version: Any, tree: SourceTree) -> LockedPackage:
    """Return a package whose source is a commit or a folder; ``version`` may be None.

    Raises:
        LockError: the name or the version is not valid, or the subdirectory leads out of the tree.
    """
    found = package(file, name, "0" if version is None else version)
    parts = PurePosixPath(tree.subdirectory).parts
    if tree.subdirectory.startswith("/") or ".." in parts or not _FOLDER.fullmatch(tree.subdirectory):
        raise LockError(
            f"{file}: the subdirectory {tree.subdirectory[:100]!r} of {found.name} is not a folder of its source;"
            " correct it."
        )
    inner = "" if not parts else str(PurePosixPath(tree.subdirectory))
    return replace(found, version="" if version is None else found.version, tree=replace(tree, subdirectory=inner))


def git_tree(file: str, name: str, url: str, commit: Any, subdirectory: str = "") -> SourceTree:
    """Return a commit of a git repository.

    Raises:
        LockError: it is not pinned, or its address is not one that git is asked for.
    """
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise LockError(
            f"{file}: {name} comes from git without a commit of 40 hex digits (found {str(commit or '')[:60]!r}); lock"
            " it again, so that it stays the same."
        )
    place = _repository(url)
    if not place:
        raise LockError(
            f"{file}: the address of the repository of {name} is not one of https://, ssh:// or file://; lock it with"
            " such an address, or lock a release."
        )
    return SourceTree(place, commit.lower(), subdirectory=subdirectory)


def _repository(url: str) -> str:
    """Return the address of a repository without a password; '' for one that is not asked. ssh needs its user."""
    url = url.removeprefix("git+")
    if not _URL.fullmatch(url):
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme != "ssh":
        return without_login(url) if parts.scheme in {"https", "file"} else ""
    user = parts.username or ""
    bare = without_login(urlunsplit(("https", *parts[1:])))
    if not bare or not _USER.fullmatch(user) or (parts.hostname or "").startswith("-"):
        return ""
    return f"ssh://{f'{user}@' if user else ''}{bare.removeprefix('https://')}"


def _names(variable: str, texts: Iterable[Any]) -> tuple[str, ...]:
    found = set()
    for text in texts:
        if not _NAME.fullmatch(str(text)):
            raise LockError(f"{variable}: {str(text)[:100]!r} is not a name; write one that the lock defines.")
        found.add(str(canonicalize_name(str(text))))
    return tuple(sorted(found))
