# SPDX-License-Identifier: Apache-2.0
"""The user's own lock of a Python environment: what pylock.toml, uv.lock and requirements.txt have in common.

A lock is read as data. Nothing that it names is run on the controller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

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
class LockedPackage:
    """A package that a lock names.

    Attributes:
        name: canonical.
        version: the version.
        marker: when it is wanted, as in PEP 508 or PEP 751; '' for always.
        requires_python: the Pythons that it runs on; '' for all.
        wheels: its wheels.
        sdist: its source archive.
        hashes: sha256 of files that the lock names by their hash alone, as requirements.txt does.
        problem: why it cannot be installed, as a sentence; '' if it can. It counts where the package is wanted.
    """

    name: str
    version: str
    marker: str = ""
    requires_python: str = ""
    wheels: tuple[LockedFile, ...] = ()
    sdist: LockedFile | None = None
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


def not_fetched(file: str, name: str, kind: str) -> str:
    """Return the sentence about a package that is neither a wheel nor a source archive.

    Args:
        file: the lock.
        name: the package.
        kind: ``vcs`` or ``directory``, as PEP 751 names them.
    """
    if kind == "vcs":
        return (
            f"{file}: {name} comes from a version control system, which is not fetched; lock a released version, or"
            " build its wheel ('uv build --wheel') and lock that file."
        )
    return (
        f"{file}: {name} is a folder on this controller, which is not installed; build its wheel ('uv build --wheel')"
        " and lock that file, or leave it out of the lock."
    )


def _names(variable: str, texts: Iterable[Any]) -> tuple[str, ...]:
    found = set()
    for text in texts:
        if not _NAME.fullmatch(str(text)):
            raise LockError(f"{variable}: {str(text)[:100]!r} is not a name; write one that the lock defines.")
        found.add(str(canonicalize_name(str(text))))
    return tuple(sorted(found))
