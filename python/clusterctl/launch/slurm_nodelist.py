"""Slurm's folded list of nodes: ``node[01-03,7],gpu1`` into names, in the list's own order.

Slurm counts nodes in that order, and a NodeSet would sort them. The standard library suffices, so that a pod needs no
further package.
"""

from __future__ import annotations

import itertools
import re

from clusterctl.support.errors import ConfigError

_PIECE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[[0-9,-]+\])*")
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST = 100_000  # ten times the nodes of the largest machines


def unfolded(nodelist: str) -> tuple[str, ...]:
    """Return the names in Slurm's list, in its order; nothing for an empty list.

    Raises:
        ConfigError: the text is not such a list, or names more nodes than any machine has.
    """
    if not nodelist:
        return ()
    pieces = _PIECE.findall(nodelist)
    if ",".join(pieces) != nodelist:
        raise ConfigError(f"Slurm's list of nodes {nodelist!r} has more in it than names and ranges.")
    hosts: list[str] = []
    for piece in pieces:
        parts = [_numbers(ranges, nodelist) if ranges else [text] for ranges, text in _PART.findall(piece)]
        for words in itertools.product(*parts):
            hosts.append("".join(words))
            if len(hosts) > _MOST:
                raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
    return tuple(hosts)


def _numbers(ranges: str, nodelist: str) -> list[str]:
    """Return the numbers of ``01-03,7`` as they are written; the width of a range is that of its start."""
    found: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise _unreadable(nodelist, f"{text!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _unreadable(nodelist, f"{text!r} ends before it begins")
        if int(last) - int(first) >= _MOST:
            raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        if len(found) > _MOST:
            raise _unreadable(nodelist, f"it names more than {_MOST} nodes")
    return found


def _unreadable(nodelist: str, why: str) -> ConfigError:
    shown = nodelist if len(nodelist) <= 200 else f"{nodelist[:200]}…"  # noqa: PLR2004 - one line of a terminal or two
    return ConfigError(f"Slurm's list of nodes {shown!r} cannot be read: {why}.")
