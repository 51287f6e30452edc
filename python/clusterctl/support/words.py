"""Words of messages: lists that are cut short, and text that a terminal shows and does not obey."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Control characters but tab and line feed, other ends of lines, characters without a width, those that change the
# direction of text, and lone surrogates.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_MOST = 8000  # characters of one line


def and_more(words: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return ``a, b and 3 more``; with the separator ``; `` it is ``a; b; and 3 more``."""
    items = list(words)
    rest = len(items) - most
    comma = ";" if separator.startswith(";") else ""
    return separator.join(items[:most]) + (f"{comma} and {rest} more" if rest > 0 else "")


def visible(text: str) -> str:
    """Return text that may come from a node with each character that a terminal obeys written as its number."""
    return _OBEYED.sub(_number, text)


def escaped(text: str, most: int = _MOST) -> str:
    r"""Return text that may come from a node as one line, with ``\\n`` and ``\\t`` as they are written.

    Args:
        text: of any length.
        most: how many of its characters are shown.
    """
    shown = text if len(text) <= most else f"{text[:most]}…"
    return visible(shown).replace("\n", "\\n").replace("\t", "\\t")


def _number(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"  # noqa: PLR2004 - as Python writes it
