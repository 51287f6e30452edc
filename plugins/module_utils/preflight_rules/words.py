# SPDX-License-Identifier: Apache-2.0
"""Put problems and values into words: the table of problems, shortened lists and values."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Problem


_MAX_SHOWN = 60


def table(problems: Sequence[Problem], hosts: int) -> str:
    """Return all problems as text; equal problems of several hosts share a line.

    Args:
        problems: the problems.
        hosts: the number of hosts that were looked at.
    """
    folded: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in problems:
        folded[one.problem, one.cure].append(one.host)
    hurt = len({one.host for one in problems})
    head = (
        f"{len(folded)} problem{'s' if len(folded) > 1 else ''} on {hurt} of {hosts} host{'s' if hosts > 1 else ''}; "
        "nothing has been changed."
    )
    lines = [f"{shortened(whom)}: {problem}; {cure}." for (problem, cure), whom in folded.items()]
    return "\n".join([head, *lines])


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Return the first names on one line, and the number of the others."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def shown_value(value: object) -> str:
    """Return a value as a message shows it."""
    return cut(repr(value) if isinstance(value, str) else json.dumps(value, default=str), _MAX_SHOWN)


def cut(text: str, most: int) -> str:
    """Return a text, cut after so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
