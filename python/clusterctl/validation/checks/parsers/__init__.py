"""Read what programs of others print: text in, figures out, and one sentence where there is nothing to read."""

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


class UnreadableError(ValueError):
    """The output does not hold what was to be read from it; the message says what is missing."""


class WrongAnswerError(UnreadableError):
    """The program has measured something, and says itself that its answers were wrong."""


def untagged(text: str) -> Iterator[str]:
    """Yield the lines of a log without what a launcher put before them."""
    for line in text.splitlines():
        yield _TAG.sub("", line).rstrip()


def number(word: str, where: str) -> float:
    """Return a finite number.

    Raises:
        UnreadableError: it is none; the message says where it stands.
    """
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UnreadableError(f"'{word}' is no number, {where}")
    return value


def figure(operation: str, backend: str, size: int | None, told: tuple[str, float, Unit, Better]) -> Figure:
    """Return one of a table's figures.

    Args:
        operation: what was run, in our words.
        backend: what carried it.
        size: bytes of the message, None where there is none.
        told: quantity, value, its unit and which way is good.

    Raises:
        UnreadableError: the value is too large to be reckoned with.
    """
    quantity, value, unit, better = told
    if not math.isfinite(value):
        raise UnreadableError(f"the {quantity.replace('_', ' ')} of {operation or backend} is no finite number")
    return Figure(
        quantity=quantity, operation=operation, backend=backend, size_bytes=size, value=value, unit=unit, better=better
    )
