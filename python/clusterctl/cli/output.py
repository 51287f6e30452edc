"""What the commands' outputs have in common: where text goes, and how times and host lists are written."""

from __future__ import annotations

import os
import sys
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

_PLAIN_WIDTH = 160  # without a terminal and COLUMNS; 80 columns would cut paths
_MINUTE = 60
VERDICT_STYLES = {"PASS": "green", "FAIL": "red", "ERROR": "magenta", "SKIP": "dim"}
_HOUR = 3600


class Format(str, Enum):
    """How a command answers: words for people on stderr, or JSON for programs on stdout."""

    TEXT = "text"
    JSON = "json"


class StreamFormat(str, Enum):
    """How a command that takes a while answers: as :class:`Format`, or one JSON object per event on stdout."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


@cache
def console() -> Console:
    """Return the console for human text; stdout is for data alone."""
    from rich.console import Console  # noqa: PLC0415 - not for --format json

    width = None if sys.stderr.isatty() else _asked_width() or _PLAIN_WIDTH
    return Console(stderr=True, highlight=False, width=width)


def keeps_lines() -> bool:
    """Whether a sentence stays on one line: a terminal folds it by itself, a file keeps it without COLUMNS."""
    return sys.stderr.isatty() or _asked_width() is None


def _asked_width() -> int | None:
    """Return the width that COLUMNS asks for, None where it is unset or not a positive number."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Return a duration as people say it: 0.8s, 42s, 1m12s, 1h03m."""
    if seconds < 10:  # noqa: PLR2004 - below this, tenths are of interest
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"


def folded(hosts: Iterable[str]) -> str:
    """Return hosts as one word, node[1-3,7]."""
    from clusterctl.model import nodeset  # noqa: PLC0415 - see cli.main: --help stays quick

    return nodeset.folded(hosts)


def plural(count: int, word: str) -> str:
    """Return '1 host' or '3 hosts'."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shown_command(argv: list[str]) -> tuple[str, ...]:
    """Return the command as it may be kept and shown: extra variables by name only, for they may be secrets."""
    shown = ["clusterctl"]
    hide_next = False
    for word in argv:
        if hide_next:
            shown.append(_name_only(word))
            hide_next = False
        elif word in {"-e", "--extra-vars"}:
            shown.append(word)
            hide_next = True
        elif word.startswith("--extra-vars="):
            shown.append("--extra-vars=" + _name_only(word.partition("=")[2]))
        elif word.startswith("-e") and not word.startswith("--"):
            shown.append("-e" + _name_only(word[2:]))
        else:
            shown.append(word)
    return tuple(shown)


def _name_only(value: str) -> str:
    if value.startswith("@"):
        return value
    if value.lstrip().startswith("{"):
        return "{…}"
    return value.partition("=")[0] + "=…"
