# SPDX-License-Identifier: Apache-2.0
"""Pinned wheels and pinned source archives of Python packages."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

from .errors import WheelError

_SHA256 = re.compile(r"^[0-9a-f]{64}$")

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")

_VERSION = re.compile(r"^[0-9][A-Za-z0-9.+!]*$")


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    name: str
    version: str
    filename: str
    sha256: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Wheel:
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
    def of(cls, entry: Mapping[str, Any], variable: str) -> Sdist:
        """Return the typed form of a mapping.

        Raises:
            WheelError: name, version or sha256 is not valid.
        """
        sdist = cls(*(str(entry.get(field) or "") for field in ("name", "version", "sha256")))
        if not _NAME.match(sdist.name) or not _VERSION.match(sdist.version):
            raise WheelError(f"'{sdist.name} {sdist.version}' is not the name and version of a Python package.")
        if not _SHA256.match(sdist.sha256):
            raise WheelError(
                f"The source of {sdist.name} {sdist.version} has no known sha256 (64 hex digits); set {variable} to the"
                " one that its publisher names, or choose a known version."
            )
        return sdist
