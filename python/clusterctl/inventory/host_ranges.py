"""Refuse a range of hosts such as node[1:999999999] in an inventory before Ansible expands it in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterctl.model.hosts import InventorySources

_MOST_BYTES = 64 << 20  # of one file; a larger one is left to Ansible
_VARIABLES = frozenset({"group_vars", "host_vars"})
# Where Ansible takes a range: the first word of a line, as in INI and YAML, and a key of a YAML mapping in one line.
_RANGE = re.compile(
    r"""(?:^|[{,])[ \t]*["']?(?P<pattern>[\w.-]+(?:\[[\w:]*:[\w:]*\][\w.-]*)+)(?=["'\s:=}]|$)""", re.MULTILINE
)


def refuse_too_many(sources: InventorySources) -> None:
    """Refuse files whose ranges name too many hosts.

    Raises:
        ConfigError: with the pattern, the file and the limit.
    """
    for path in sources.paths:
        for place in _files(path):
            counts = {pattern: nodeset.count(pattern) for pattern in patterns(_text(place))}
            if sum(counts.values()) > nodeset.MOST_HOSTS:
                largest = max(counts, key=lambda pattern: counts[pattern])
                raise ConfigError(
                    f"The inventory {place} names too many hosts by '{largest}'; one inventory has at most "
                    f"{nodeset.MOST_HOSTS:,} hosts, so correct the range."
                )


def patterns(text: str) -> list[str]:
    """Return the ranges of hosts in the text of an inventory."""
    return [match["pattern"] for match in _RANGE.finditer(text)]


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that Ansible reads hosts from; the output of a script holds no range."""
    if not path.is_dir():
        yield path
        return
    for place in sorted(path.iterdir()):
        if place.name not in _VARIABLES:
            yield from _files(place)


def _text(place: Path) -> str:
    try:
        if not place.is_file() or place.stat().st_size > _MOST_BYTES:
            return ""
        return place.read_text(encoding="utf-8", errors="replace")
    except OSError:  # Ansible says why
        return ""
