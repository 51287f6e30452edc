# SPDX-License-Identifier: GPL-3.0-or-later
"""Software of the user that the nodes have already: what its variable names, and what differs between nodes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeVar

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host

_MOST_NAMED, _MOST_PARTS = 4, 5

FoundT = TypeVar("FoundT", bound="DataclassInstance")


@dataclass(frozen=True)
class Named:
    """What a variable names.

    Attributes:
        variable: its name.
        section: the key of a host's facts with the look at it.
        example: a path, for messages.
    """

    variable: str
    section: str
    example: str

    def path_of(self, host: Host) -> str:
        """Return the path that a host's variables name; '' for none."""
        return host.settings.text(self.variable).rstrip("/")

    def found(self, host: Host, form: type[FoundT]) -> FoundT | None:
        """Return what the look found; None where none is named, or :meth:`unusable` says why it cannot be used.

        Args:
            host: the host.
            form: a dataclass with the fields of the look.
        """
        look = host.node.get(self.section)
        if not look or not self.path_of(host) or self.unusable(host):
            return None
        return form(**{one.name: look[one.name] for one in fields(form)})

    def unusable(self, host: Host) -> str:
        """Return why it cannot be used on a host, a sentence; '' where it can, or where none is named."""
        path, look = self.path_of(host), host.node.get(self.section) or {}
        if not path:
            return ""
        if not existing_python.PLAIN.fullmatch(path):
            return (
                f"{self.variable} is '{path}'; write an absolute path of letters, digits and the signs . _ + - alone,"
                f" such as {self.example}."
            )
        if str(look.get("path", "")).rstrip("/") != path:
            return (
                f"{host.name} was not asked about {path}; set {self.variable} in the inventory or with -e, where the"
                " look at the nodes reads it."
            )
        return f"{host.name}: {look['problem']}; {look['cure']}." if look["problem"] else ""

    def unlike(
        self, groups: Sequence[Sequence[Host]], of: Callable[[Host], Software | None], platforms: Sequence[str]
    ) -> Iterator[Refusal]:
        """Yield where hosts of one platform do not have the same.

        Args:
            groups: hosts of one platform with equal settings, also those that name none.
            of: what a host has; None where it cannot be used.
            platforms: on which a host names it.
        """
        for platform in dict.fromkeys(platforms):
            its = [hosts for hosts in groups if hosts[0].platform == platform]
            paths = {hosts[0].name: self.path_of(hosts[0]) or "none" for hosts in its}
            if len(set(paths.values())) > 1:
                named = ", ".join(f"{path} on {name}" for name, path in paths.items())
                yield Refusal("", f"{self.variable} must be the same on all hosts of one platform; it is {named}.")
                continue
            first, said = differing({host.name: found for hosts in its for host in hosts if (found := of(host))})
            if said:
                yield Refusal(first, said)


class Software(Protocol):
    """What must be the same on all hosts of a platform."""

    @property
    def path(self) -> str:
        """Its path."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Words for what it is, by a name of that property."""

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of its parts, by name."""


def differing(found: Mapping[str, Software]) -> tuple[str, str]:
    """Name in one sentence the hosts that have other packages than most, or another label.

    Args:
        found: the software of each host, at the same path.

    Returns:
        The first of these hosts, and the sentence; both are '' where all hosts have the same.
    """
    if not found:
        return "", ""
    kinds = {name: json.dumps([dict(one.labels), dict(one.packages)], sort_keys=True) for name, one in found.items()}
    usual = Counter(kinds.values()).most_common(1)[0][0]
    most = [name for name, words in kinds.items() if words == usual]
    other, whose = found[most[0]], most[0] if len(most) == 1 else "the others"
    parts: dict[str, list[str]] = {}
    for name in (one for one in found if one not in most):
        one, theirs = found[name], other.labels
        lines = [f"{its} and {whose} {theirs[of]}" for of, its in one.labels.items() if theirs.get(of, its) != its]
        has, lacks = (f"which {whose} {verb}" for verb in (("has", "lacks") if len(most) == 1 else ("have", "lack")))
        lines += existing_python.differences(dict(other.packages), dict(one.packages), f"and {whose}", has, lacks)
        more = f" and {len(lines) - _MOST_PARTS} more" if len(lines) > _MOST_PARTS else ""
        parts.setdefault(f"{one.path} has {', '.join(lines[:_MOST_PARTS])}{more}", []).append(name)
    if not parts:
        return "", ""
    words = [f"{_named(names)}: {line}" for line, names in parts.items()]
    first = next(iter(parts.values()))[0]
    return first, f"{'; '.join(words)}; make {other.path} the same on all nodes of the platform."


def _named(hosts: Sequence[str]) -> str:
    rest = len(hosts) - _MOST_NAMED
    return f"{', '.join(hosts[:_MOST_NAMED])}{f' and {rest} more' if rest > 0 else ''}"
