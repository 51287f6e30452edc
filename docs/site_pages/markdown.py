"""Small helpers that write Markdown: escaped text, tables, headings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_\[\]{}#|])")


def escaped(text: str) -> str:
    """Return plain text so that Markdown shows it as it stands."""
    return _SPECIAL.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def code(text: str, anchor: str = "") -> str:
    """Return inline code for a table's cell, with an anchor of its own where one is given.

    Markdown has no way to write a ``|`` there. Such text is HTML, and may break behind each one.
    """
    if "|" in text:
        words = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;<wbr>")
        return f'<code id="{anchor}">{words}</code>' if anchor else f"<code>{words}</code>"
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}" + (f"{{ #{anchor} }}" if anchor else "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; a ``|`` within a cell is escaped."""
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row([cell.replace("\n", " ") for cell in row]) for row in rows]
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def block(text: str, language: str = "text") -> list[str]:
    """Return a fenced block, with a fence that the text does not hold."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}{language}", text.rstrip("\n"), fence, ""]
