# SPDX-License-Identifier: Apache-2.0
"""The wheel locks that ship with the collection, one file for each Python, machine and C library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.requirements import Requirement

    from .requirements import Choice
    from .target import Target

from .packages import Wheel

FOLDER = Path(__file__).resolve().parent / "locks"


@dataclass(frozen=True)
class Answer:
    """One alternative set of requirements; ``wheels`` is None where the collection has no lock for it."""

    alternative: tuple[Requirement, ...]
    wheels: tuple[Wheel, ...] | None


@cache
def shipped_locks(folder: Path = FOLDER) -> tuple[dict[str, Any], ...]:
    """Return the locks in a folder."""
    return tuple(lock for path in sorted(folder.glob("*.json")) for lock in json.loads(path.read_bytes()))


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
