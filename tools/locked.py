# SPDX-License-Identifier: Apache-2.0
"""The part of a lock that some packages need, as requirements with hashes for ``pip install --require-hashes``."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from dev_locks import WHOLE, file_of
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def requirements(needs: Iterable[str], python: str = "") -> str:
    """Return the pins of packages and of all that they require.

    Args:
        needs: packages, or requirements with markers; the lock and the running Python have those that apply.
        python: the version for which the pins are, for example '3.11'; '' is the running Python.
    """
    environment = {name: str(value) for name, value in default_environment().items()}
    if python:
        environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    return pins_of(file_of(WHOLE).read_text(encoding="utf-8"), closure(needs, environment), environment)


def closure(needs: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Return the names of packages and of all that they require, as the running Python has them."""
    found: set[str] = set()
    waiting = list(needs)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = str(canonicalize_name(requirement.name))
        if name not in found and _applies(requirement, environment):
            found.add(name)
            waiting += _requires(name)
    return found


def _applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""})


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # only another Python needs it, as a rule a backport without requirements
        return []


def pins_of(lock: str, names: Iterable[str], environment: Mapping[str, str]) -> str:
    """Return the pins of a lock for these packages, without markers and comments.

    Raises:
        LookupError: the lock has no pin of a package.
    """
    wanted, name = set(names), ""
    found: dict[str, list[str]] = {}
    for line in lock.splitlines():
        if not line.startswith((" ", "#")):
            requirement = Requirement(line.rstrip(" \\"))
            name = str(canonicalize_name(requirement.name)) if _applies(requirement, environment) else ""
            if name in wanted:
                found[name] = [f"{requirement.name}{requirement.specifier}"]
        elif name in found and line.lstrip().startswith("--hash"):
            found[name].append(line.strip(" \\"))
    if missing := sorted(wanted - found.keys()):
        raise LookupError(f"{file_of(WHOLE)} has no pin of {', '.join(missing)}; renew it by 'make dev-locks'.")
    return "".join(" ".join(words) + "\n" for words in found.values())
