# SPDX-License-Identifier: Apache-2.0
"""Refuse a value that would leave its line, or its quotes, in a configuration file.

Whoever makes a line of a file from data passes each value through here, whatever was checked before. It needs only
Python 3.9 and the standard library.
"""

from __future__ import annotations

import re

# Controls of ASCII and Latin-1, and the separators of lines and paragraphs. str.splitlines splits at some of them.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
_CONTROL_IN_LINES = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
_NAMES = {
    "\n": "a newline",
    "\r": "a carriage return",
    "\0": "a NUL",
    '"': "a quote",
    "'": "a quote",
    "\\": "a backslash",
    "#": "a '#'",
    " ": "a blank",
}
_LONGEST_SHOWN = 80


class LineError(ValueError):
    """A line cannot hold a value; the message is one sentence, without its full stop, that names field and value."""


def checked(value: str, field: str, *, refused: str = "") -> str:
    """Return the value.

    Args:
        value: what goes into a line.
        field: what it is and where it goes, as the message begins.
        refused: further characters that mean something in this place, such as quotes.

    Raises:
        LineError: the value has a control character, or one of those.
    """
    found = _CONTROL.search(value)
    letter = found.group() if found else next((one for one in refused if one in value), "")
    if not letter:
        return value
    raise LineError(f"{field} is {shown(value)}, which has {named(letter)} that the line cannot hold")


def control_in(lines: str) -> str:
    """Return the first character that no line of a text file may have, '' without one; tabs are allowed."""
    found = _CONTROL_IN_LINES.search(lines)
    return found.group() if found else ""


def named(letter: str) -> str:
    """Return the words for a character that a line cannot hold."""
    return _NAMES.get(letter, "a control character" if _CONTROL.match(letter) else ascii(letter))


def shown(value: str) -> str:
    """Return a value as a message shows it: escaped and short."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
