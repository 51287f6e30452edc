"""Lists in messages: the first few items, and how many more there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def and_more(words: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return ``a, b and 3 more``; with the separator ``; `` it is ``a; b; and 3 more``."""
    items = list(words)
    rest = len(items) - most
    comma = ";" if separator.startswith(";") else ""
    return separator.join(items[:most]) + (f"{comma} and {rest} more" if rest > 0 else "")
