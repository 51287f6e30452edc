"""Parsers of other programs' output: text in, figures out, or an error of one sentence."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from clusterctl.model.results import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.model.results import Better, Unit

# What 'mpirun --tag-output' of either series puts before a line, and Slurm's 'srun --label'.
_TAG = re.compile(r"^(?:\[[^\]\s]*,\d+\]<std(?:out|err)>: ?|\d+: )")

_COUNT = re.compile(r"[0-9]{1,18}")


class UnreadableError(ValueError):
    """The output does not hold the expected figures; the message says what is missing."""


class WrongAnswerError(UnreadableError):
    """The program itself reports that its answers were wrong."""


def untagged(text: str) -> Iterator[str]:
    """Yield the lines of a log without the prefix of a launcher."""
    for line in text.splitlines():
        yield _TAG.sub("", line).rstrip()


def number(word: str, where: str) -> float:
    """Return a finite number.

    Raises:
        UnreadableError: the word is not a finite number; the message says where it stands.
    """
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UnreadableError(f"'{word}' is not a number, {where}")
    return value


def count(word: str, where: str) -> int:
    """Return a whole number of at most 18 digits.

    Raises:
        UnreadableError: the word is something else; the message says where it stands.
    """
    if not _COUNT.fullmatch(word):
        raise UnreadableError(f"'{word[:20]}' is not a whole number, {where}")
    return int(word)


def figure(operation: str, backend: str, size: int | None, measured: tuple[str, float, Unit, Better]) -> Figure:
    """Return one figure of a table.

    Args:
        operation: the operation, in clusterctl's words.
        backend: what carried it.
        size: bytes of the message, None for an operation without a message.
        measured: quantity, value, its unit and which way is good.

    Raises:
        UnreadableError: the value is not a finite number.
    """
    quantity, value, unit, better = measured
    if not math.isfinite(value):
        raise UnreadableError(f"the {quantity.replace('_', ' ')} of {operation or backend} is not a finite number")
    return Figure(
        quantity=quantity, operation=operation, backend=backend, size_bytes=size, value=value, unit=unit, better=better
    )
