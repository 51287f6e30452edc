# SPDX-License-Identifier: Apache-2.0
"""Make text of a node fit for a terminal, a log or one line of a file."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

# Control characters, and those that change the direction or the lines of a text (Unicode's categories).
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SPACES = {ord(letter): " " for letter in "\t\n\v\f\r"}
_BITS = 128  # a counter of 64 bits, or an address
MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, keep: str = "") -> str:
    """Return a text in which each character that a terminal would obey is replaced, but for those of ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter in keep or unicodedata.category(letter) not in _UNPRINTABLE else MARK for letter in text
    )


def one_line(text: str, most: int = 4096) -> str:
    """Return a text as one line of printable characters, cut where it is longer than ``most``."""
    words = printable(" ".join(text[: most * 2].split()))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def inert(value: Any, *, depth: int = 12, longest: int = 1 << 16, most: int = 1 << 17) -> Any:
    """Return a value of JSON whose texts are printable; a newline or tab of a text becomes a space.

    Args:
        value: what a node said.
        depth: how deep lists and mappings may lie in each other.
        longest: characters of one text.
        most: values in all.

    Raises:
        ValueError: the value is deeper, longer or larger; the text is a clause that follows the name of the answer.
    """
    left = most

    def counted(one: Any, room: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"has more than {most} values")
        if not isinstance(one, (dict, list, tuple)):
            return _scalar(one, longest)
        if not room:
            raise ValueError(f"is more than {depth} levels deep")
        if isinstance(one, dict):
            return {counted(str(key), room): counted(its, room - 1) for key, its in one.items()}
        return [counted(its, room - 1) for its in one]

    return counted(value, depth)


def _scalar(one: Any, longest: int) -> Any:
    if isinstance(one, str):
        if len(one) > longest:
            raise ValueError(f"has a text of {len(one)} characters, of at most {longest}")
        return one if one.isprintable() else printable(one.translate(_SPACES))
    if isinstance(one, int) and one.bit_length() > _BITS:
        raise ValueError(f"has a number of {one.bit_length()} bits, of at most {_BITS}")
    if isinstance(one, float) and not math.isfinite(one):
        raise ValueError("has a number that is not finite")
    if one is None or isinstance(one, (bool, int, float)):
        return one
    raise ValueError(f"has a value of the type {type(one).__name__}")
