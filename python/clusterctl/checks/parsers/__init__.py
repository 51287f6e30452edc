"""Read what programs of others print: text in, figures out, and one sentence where there is nothing to read."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
