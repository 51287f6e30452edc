# SPDX-License-Identifier: Apache-2.0
"""Which packages of a lock a target needs, and which file of each fits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from .packages import Target

from .lock import Lock, LockedFile, LockedPackage, LockError

try:  # ansible-core depends on it
    from packaging.markers import Marker
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename
    from packaging.version import InvalidVersion, Version
except ImportError:  # the sanity tests import plugins without the dependencies of ansible-core
    InvalidSpecifier = InvalidWheelFilename = InvalidVersion = ValueError  # type: ignore[misc, assignment]


@dataclass(frozen=True)
class Wanted:
    """What a target needs of a lock.

    Attributes:
        wheels: packages with the one wheel that is taken.
        sdists: packages of which the lock has no wheel for the target.
        hashed: packages whose file the index has to tell.
        trees: packages whose source is a folder or a commit.
    """

    wheels: tuple[LockedPackage, ...] = ()
    sdists: tuple[LockedPackage, ...] = ()
    hashed: tuple[LockedPackage, ...] = ()
    trees: tuple[LockedPackage, ...] = ()


def wanted(lock: Lock, target: Target, python: str, left_out: Iterable[str] = ()) -> Wanted:
    """Return what a target needs of a lock.

    Args:
        lock: the lock.
        target: the target.
        python: version of its Python, with all numbers.
        left_out: canonical names of packages that are not wanted.

    Raises:
        LockError: the lock is for another Python or platform.
    """
    refuse_python(lock, python)
    ranks = _ranks(target)
    wheels, sdists, hashed, trees = [], [], [], []
    for one in _chosen(lock, target, python, set(left_out)):
        best = _best(one, ranks, lock.file)
        if one.tree:
            trees.append(one)
        elif one.hashes:
            hashed.append(one)
        elif best is not None:
            wheels.append(replace(one, wheels=(best,)))
        elif one.sdist is not None:
            sdists.append(one)
        else:
            has = ", ".join(sorted(wheel.filename for wheel in one.wheels)[:3]) or "no file"
            raise LockError(
                f"{lock.file}: {one.name} {one.version} has neither a wheel for {target} (platform {target.platform})"
                f" nor a source archive (it has {has}); lock it for that platform."
            )
    return Wanted(tuple(wheels), tuple(sdists), tuple(hashed), tuple(trees))


def _chosen(lock: Lock, target: Target, python: str, left_out: Container[str]) -> Iterable[LockedPackage]:
    """Return the packages whose markers hold on a target.

    Raises:
        LockError: one cannot be used.
    """
    environment = {**target.environment(), "python_full_version": python, "implementation_version": python}
    chosen: dict[str, LockedPackage] = {}
    for one in lock.packages:
        if one.name in left_out or not _applies(one, lock, environment):
            continue
        if one.problem:
            raise LockError(one.problem)
        other = chosen.setdefault(one.name, one)
        if other is not one:
            raise LockError(
                f"{lock.file} wants {one.name} {other.version} and {one.version} on {target}; lock it again, so that"
                " one of them remains."
            )
        if not _allows(one.requires_python, python, f"{lock.file}: {one.name}"):
            raise LockError(
                f"{lock.file}: {one.name} {one.version} needs Python {one.requires_python}, and the nodes have"
                f" {python}; lock a version for it, or set python_env_python to managed with a"
                " python_env_python_version that fits."
            )
    return chosen.values()


def refuse_python(lock: Lock, python: str) -> None:
    """Refuse a lock for other Pythons.

    Args:
        lock: the lock.
        python: version of the nodes' Python.

    Raises:
        LockError: the lock is for others.
    """
    if not _allows(lock.requires_python, python, lock.file):
        raise LockError(
            f"{lock.file} is for Python {lock.requires_python}, and the nodes have {python}; set python_env_python to"
            " managed with a python_env_python_version that fits, or lock for that Python."
        )


def _allows(requires: str, python: str, what: str) -> bool:
    try:
        return SpecifierSet(requires).contains(python, prereleases=True)
    except InvalidSpecifier as error:
        raise LockError(f"{what}: the requires-python {requires[:100]!r} is not valid; lock it again.") from error


def _applies(one: LockedPackage, lock: Lock, environment: Mapping[str, str]) -> bool:
    """Tell whether a package is wanted."""
    if not one.marker:
        return True
    try:
        marker = Marker(one.marker)
        if lock.extras or lock.groups or "extras" in one.marker or "dependency_groups" in one.marker:
            more: Any = {"extras": set(lock.extras), "dependency_groups": set(lock.groups)}
            return bool(marker.evaluate({**environment, **more}, context="lock_file"))
        return bool(marker.evaluate(dict(environment)))
    except (ValueError, TypeError) as error:  # TypeError: a packaging before 25, which knows no locks
        raise LockError(
            f"{lock.file}: the marker {one.marker[:200]!r} of {one.name} is not understood here; correct it, or renew"
            " the package packaging in the Python of ansible."
        ) from error


def _ranks(target: Target) -> dict[str, int]:
    """Return the tags that fit, by text; the lowest number is the best."""
    major, minor = (int(number) for number in target.python.split("."))
    interpreter, platforms = f"cp{major}{minor}", target.tags()
    tags = [
        *cpython_tags((major, minor), [interpreter], platforms),
        *compatible_tags((major, minor), interpreter, platforms),
    ]
    found: dict[str, int] = {}
    for place, tag in enumerate(tags):
        found.setdefault(str(tag), place)
    return found


def _best(one: LockedPackage, ranks: Mapping[str, int], file: str) -> LockedFile | None:
    """Return the wheel of a package that fits best, None without one.

    Raises:
        LockError: a wheel's name is not that of a wheel of this package.
    """
    found = []
    for wheel in one.wheels:
        try:
            name, version, build, tags = parse_wheel_filename(wheel.filename)
            same = name == one.name and version == Version(one.version)
        except (InvalidWheelFilename, InvalidVersion):  # old wheels have names that no installer takes
            continue
        if not same:
            raise LockError(f"{file}: {wheel.filename} is not a wheel of {one.name} {one.version}; lock it again.")
        fitting = [ranks[str(tag)] for tag in tags if str(tag) in ranks]
        if fitting:
            found.append((min(fitting), [-number for number in build[:1]], wheel.filename, wheel))
    return min(found, key=lambda item: item[:3])[3] if found else None
