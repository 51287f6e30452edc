# SPDX-License-Identifier: Apache-2.0
"""The wheel locks that ship with the collection: one file that names each wheel once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.requirements import Requirement

    from .packages import Target
    from .requirements import Choice

from .packages import Wheel
from .requirements import canonicalize_name

FILE = Path(__file__).resolve().parent / "locks.json"


@dataclass(frozen=True)
class Answer:
    """One alternative set of requirements; ``wheels`` is None where the collection has no lock for it."""

    alternative: tuple[Requirement, ...]
    wheels: tuple[Wheel, ...] | None


@cache
def shipped_locks(file: Path = FILE) -> tuple[dict[str, Any], ...]:
    """Return the locks of a file, in the form of those in the controller's cache.

    The file holds ``files``, the sha256 of each wheel by its file name, and ``locks``: a target's ``python``,
    ``machine`` and ``glibc``, the ``requirements``, and the file names that answer them as ``wheels``.
    """
    document = json.loads(file.read_bytes())
    return tuple(
        {"asked": lock, "wheels": [_entry(filename, document["files"][filename]) for filename in lock.pop("wheels")]}
        for lock in document["locks"]
    )


def _entry(filename: str, sha256: str) -> dict[str, str]:
    name, version, _rest = filename.split("-", 2)  # PEP 427
    return {"name": canonicalize_name(name), "version": version, "filename": filename, "sha256": sha256}


def wheels_in(lock: Mapping[str, Any]) -> tuple[Wheel, ...]:
    """Return the wheels of a lock.

    Raises:
        KeyError: an entry lacks a field.
        TypeError: the lock has another form.
    """
    return tuple(Wheel.of(entry) for entry in lock["wheels"])


def texts(requirements: Iterable[Requirement]) -> list[str]:
    """Return requirements in the form in which a lock holds them."""
    return sorted(map(str, requirements))


def answers(
    locks: Iterable[Mapping[str, Any]], target: Target, requirements: Sequence[Requirement], choice: Choice
) -> list[Answer]:
    """Return what the locks have for each alternative, the preferred one first.

    A lock holds for its Python and machine, and for each C library that is at least as new as its own.

    Args:
        locks: the locks.
        target: the target that the wheels must fit.
        requirements: what each alternative needs.
        choice: the alternatives.
    """
    newest = _minor(target.glibc)
    fitting = [
        lock
        for lock in locks
        if (lock["asked"]["python"], lock["asked"]["machine"]) == (target.python, target.machine)
        and _minor(lock["asked"]["glibc"]) <= newest
    ]
    fitting.sort(key=lambda lock: _minor(lock["asked"]["glibc"]))
    by_question = {tuple(lock["asked"]["requirements"]): wheels_in(lock) for lock in fitting}
    return [
        Answer(alternative, by_question.get(tuple(texts([*requirements, *alternative]))))
        for alternative in choice.alternatives or ((),)
    ]


def hashes(locks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the sha256 of each file that the locks name, by file name."""
    return {wheel.filename: wheel.sha256 for lock in locks for wheel in wheels_in(lock)}


def _minor(glibc: str) -> int:
    return int(glibc.partition(".")[2])
