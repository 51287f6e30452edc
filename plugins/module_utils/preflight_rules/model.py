# SPDX-License-Identifier: Apache-2.0
"""Types of preflight: a problem on a host, and the limits that nodes are compared with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
