# SPDX-License-Identifier: Apache-2.0
"""Pinned wheels and source archives of Python packages, the target that they fit, and the errors of their search."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

_SHA256 = re.compile(r"^[0-9a-f]{64}$")

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")

_VERSION = re.compile(r"^[0-9][A-Za-z0-9.+!]*$")

_PLATFORM = re.compile(
    r"-(?P<machine>x86_64|aarch64|ppc64le|s390x)-glibc(?P<glibc>2\.\d{1,3})-py(?P<python>3\.\d{1,3})(?:-|$)"
)

# By machine, the oldest minor release of glibc that wheels can be built against (PEP 600); older names of releases.
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17, "ppc64le": 17, "s390x": 17}

_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class WheelError(ArtifactError):
    """A wheel or a source archive is not available; the message names it and the cure."""


class NothingFitsError(WheelError):
    """No version of a package fits.

    ``package`` is its canonical name. ``certain`` is false if an index did not answer, because that index may have it.
    """

    def __init__(self, message: str, package: str, *, certain: bool) -> None:
        """Keep the facts beside the message."""
        super().__init__(message)
        self.package, self.certain = package, certain


class NoAnswerError(WheelError):
    """The index did not answer."""


class OtherFileError(WheelError):
    """A file has another sha256 than the pinned one. ``filename`` is its name, ``package`` its canonical name."""

    def __init__(self, message: str, package: str, filename: str) -> None:
        """Keep the facts beside the message."""
        super().__init__(message)
        self.package, self.filename = package, filename


class PipFailedError(Exception):
    """pip ended with an error."""

    def __init__(self, output: str) -> None:
        """Keep what pip wrote."""
        super().__init__(output)
        self.output = output


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    name: str
    version: str
    filename: str
    sha256: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Return the typed form of an entry of a lock; what else it has is left out.

        Raises:
            KeyError: the entry lacks a field.
        """
        return cls(*(str(entry[field.name]) for field in fields(cls)))


@dataclass(frozen=True)
class Sdist:
    """One pinned source archive of a Python package."""

    name: str
    version: str
    sha256: str

    @classmethod
    def of(cls, entry: Mapping[str, Any], variable: str) -> Self:
        """Return the typed form of a mapping.

        Raises:
            WheelError: name, version or sha256 is not valid.
        """
        sdist = cls(*(str(entry.get(field.name) or "") for field in fields(cls)))
        if not _NAME.match(sdist.name) or not _VERSION.match(sdist.version):
            raise WheelError(f"'{sdist.name} {sdist.version}' is not the name and version of a Python package.")
        if not _SHA256.match(sdist.sha256):
            raise WheelError(
                f"The source of {sdist.name} {sdist.version} has no known sha256 (64 hex digits); set {variable} to the"
                " one that its publisher names, or choose a known version."
            )
        return sdist

    @property
    def cached_as(self) -> str:
        """The name of its file in the cache."""
        return f"{self.name}-{self.version}-{self.sha256[:16]}.tar.gz"


@dataclass(frozen=True)
class PlacedWheel(Wheel):
    """A pinned wheel of a user's lock; ``url`` is where the lock found it, '' where only the index is asked."""

    url: str = ""


@dataclass(frozen=True)
class PlacedSdist(Sdist):
    """A pinned source archive of a user's lock; ``url`` is where the lock found it."""

    url: str = ""


@dataclass(frozen=True)
class PackedSdist(Sdist):
    """A source archive that this controller packed, of a folder or a commit.

    ``version`` is '0' where only the build tells it. ``subdirectory`` is the package's folder in the archive, '' for
    its top.
    """

    subdirectory: str = ""


@dataclass(frozen=True)
class Target:
    """The interpreter and C library that wheels must fit."""

    platform: str
    python: str  # major.minor
    machine: str
    glibc: str

    @classmethod
    def of(cls, platform: str) -> Target:
        """Return the target of a platform's id.

        Raises:
            WheelError: the id has no machine, glibc or Python.
        """
        match = _PLATFORM.search(platform)
        if not match:
            raise WheelError(
                f"The platform '{platform}' does not name a machine, glibc and Python that wheels exist for;"
                " write an id like debian-12-x86_64-glibc2.36-py3.11."
            )
        return cls(platform, match["python"], match["machine"], match["glibc"])

    def __str__(self) -> str:
        """Return the words for messages."""
        return f"Python {self.python} on {self.machine} with glibc {self.glibc}"

    def tags(self) -> list[str]:
        """Return the platform tags that fit, the newest C library first."""
        tags = []
        for minor in range(int(self.glibc.split(".")[1]), _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _OLD_NAMES:
                tags.append(f"{_OLD_NAMES[minor]}_{self.machine}")
        return [*tags, f"linux_{self.machine}"]

    def environment(self) -> dict[str, str]:
        """Return the variables of PEP 508 markers on the node."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


def place_of(pinned: Wheel | Sdist) -> str:
    """Return where a user's lock found a file; '' where only the index is asked."""
    return pinned.url if isinstance(pinned, (PlacedWheel, PlacedSdist)) else ""


def beside(pinned: Sequence[Wheel | Sdist], package: str) -> set[str]:
    """Return the names of packages whose files lie on the same server as those of a package, and its own name.

    Args:
        pinned: files of packages.
        package: the canonical name; empty without an address.
    """
    servers = {one.name: urlsplit(place).netloc for one in pinned if (place := place_of(one))}
    return {name for name, server in servers.items() if package in servers and server == servers[package]}
