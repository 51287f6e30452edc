# SPDX-License-Identifier: Apache-2.0
"""Problems of the preflight, their table, and the limits that they are measured by."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# --- model -----------------------------------------------------------------------------------------------------------

_CONFIGURATION = frozenset({"prefix", "variable"})

_UNREACHABLE = frozenset({"unreachable", "refused", "unknown_host_key"})


@dataclass(frozen=True)
class Problem:
    """One problem that would hurt the cluster; ``check`` is the short name of the rule."""

    host: str
    check: str
    problem: str
    cure: str
    variable: str = ""  # the variable whose name or value is wrong

    def as_dict(self) -> dict[str, str]:
        """Return the form for a task's result; ``kind`` says where the cure is: host, configuration or unreachable."""
        kind = "host"
        if self.check in _CONFIGURATION:
            kind = "configuration"
        elif self.check in _UNREACHABLE:
            kind = "unreachable"
        return {**asdict(self), "kind": kind}


@dataclass(frozen=True)
class Limits:
    """The limits that nodes are compared with: the role's variables of the same names."""

    supported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_python: str = "3.9"
    min_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    min_builder_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    builders: Sequence[str] = ()
    max_clock_skew_s: float = 5.0
    require_unique_host_keys: bool = True


# --- words -----------------------------------------------------------------------------------------------------------

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
