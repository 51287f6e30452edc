"""Folded lists of host names such as node[1-3,7], and their expansion for Ansible."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import re
from collections.abc import Collection, Iterable
from itertools import zip_longest

from clusterctl.support.errors import TooManyHostsError

MOST_HOSTS = 100_000  # of one inventory; a larger number is a typing error, and would fill the memory
_MOST_DIGITS, _TOO_MANY = 9, 1_000_000_000
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_DIGITS, _MOST_SCATTERED, _SCATTERED = re.compile(r"\d+"), 200, 20
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(?P<first>\d+)(?:[:-](?P<last>\d+)(?:[:/](?P<step>\d+))?)?")
_LETTERS, _SHOWN = 26, 200
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")
_COLON_PARTS = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")  # as Ansible splits a pattern without commas
_BRACKETED = re.compile(r"(?P<sign>[!&]?)(?P<head>[A-Za-z0-9._-]+)(?P<rest>(?:\[[0-9,:-]+\][A-Za-z0-9._-]*)+)")


def folded(names: Iterable[str]) -> str:
    """Return host names as one word, node[1-3,7]."""
    given = list(names)
    # Signs such as '@', '&' and '^' are operators of a NodeSet.
    if len(given) <= 1 or not all(map(_NAME.fullmatch, given)) or _is_scattered(given):
        return ",".join(given)
    from ClusterShell.NodeSet import NodeSet, NodeSetException  # noqa: PLC0415 - 60 ms, for lists only

    try:
        return str(NodeSet.fromlist(given))
    except (NodeSetException, ValueError):  # a number of thousands of digits is a ValueError
        return ",".join(given)


def _is_scattered(names: list[str]) -> bool:
    """Whether names have several numbers that make no grid: to fold thousands of them takes minutes."""
    if len(names) <= _MOST_SCATTERED:
        return False
    places = zip_longest(*map(_DIGITS.findall, names))
    return math.prod(len(set(numbers)) for numbers in places) > _SCATTERED * len(names)


def count(word: str) -> int:
    """Return how many hosts node[1-3,7] or node[1:9:2] names at most, without expanding it."""
    found = 1
    for inside in _BRACKET.findall(word):
        found *= sum(_count_of(part) for part in inside.split(","))
    return found


def _count_of(part: str) -> int:
    match = _RANGE.fullmatch(part.strip())
    if match is None:  # letters as Ansible counts them, or not a range at all
        return _LETTERS if ":" in part else 1
    if match["last"] is None:
        return 1
    if max(len(digits.lstrip("0")) for digits in match.groups("")) > _MOST_DIGITS:
        return _TOO_MANY
    first, last, step = int(match["first"]), int(match["last"]), int(match["step"] or 1)
    return max(0, last - first) // max(1, step) + 1


def expanded(word: str) -> list[str] | None:
    """Return the host names of node[1-3,7] or node[1:3]; None where the word is not such a list.

    Raises:
        TooManyHostsError: it names more hosts than an inventory may have.
    """
    if count(word) > MOST_HOSTS:
        raise TooManyHostsError(
            f"{word[:_SHOWN]!r} names more than {MOST_HOSTS:,} hosts, the most for one inventory; name fewer."
        )
    from ClusterShell.NodeSet import (  # noqa: PLC0415 - 60 ms, for brackets only
        RESOLVER_NOGROUP,
        NodeSet,
        NodeSetException,
    )

    # Without groups, because ClusterShell runs commands of the site for a name with '@'.
    ranges = re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(":", "-"), word)
    try:
        return [str(name) for name in NodeSet(ranges, resolver=RESOLVER_NOGROUP)]
    except (NodeSetException, ValueError):  # a number of thousands of digits is a ValueError
        return None


def ansible_pattern(limit: str, groups: Collection[str]) -> str:
    """Return a ``--limit`` as Ansible takes it: brackets behind a name that is not a group become host names.

    Behind the name of a group they stay: there Ansible counts the members of the group, as in ``nodes[0:2]``.
    """
    if "[" not in limit:
        return limit
    parts = _parts(limit)
    found = [_for_ansible(part, groups) for part in parts]
    return ",".join(found) if found != parts else limit


def _parts(limit: str) -> list[str]:
    commas = [part.strip() for part in _COMMA_OUTSIDE.split(limit)]
    return commas if len(commas) > 1 else _COLON_PARTS.findall(limit)


def unmatched(limit: str, hosts: Collection[str], groups: Collection[str]) -> str:
    """Return the first part of a ``--limit`` that names no host and no group, without its sign; empty if each does.

    Ansible ignores such a part: ``all,!nod7`` would select all hosts. A range counts if one of its hosts is there.
    """
    known = frozenset((*hosts, *groups, "all"))
    return next((name for part in _parts(limit) if (name := part.lstrip("!&")) and not _matches(name, known)), "")


def _matches(name: str, known: frozenset[str]) -> bool:
    if name in known or name.startswith("@"):  # a file of names, which Ansible reads
        return True
    if name.startswith("~"):
        with contextlib.suppress(re.error):  # Ansible refuses it
            return any(map(re.compile(name[1:]).match, known))
        return True
    if (match := _BRACKETED.fullmatch(name)) is not None:
        names = None if match["head"] in known else expanded(name)
        return names is None or not known.isdisjoint(names)
    return any(fnmatch.fnmatchcase(one, name) for one in known)


def _for_ansible(part: str, groups: Collection[str]) -> str:
    match = _BRACKETED.fullmatch(part)
    if match is None or match["head"] in groups:
        return part
    names = expanded(match["head"] + match["rest"])
    if names is None:
        return part
    if match["sign"] == "&":  # several intersections would leave nothing
        return f"&~({'|'.join(map(re.escape, names))})$"
    return ",".join(match["sign"] + name for name in names)


def host_list(words: str) -> str:
    """Return a list of hosts as Ansible takes it, node1,node2, with every bracket expanded."""
    names = [
        name for word in _COMMA_OUTSIDE.split(words) for name in (expanded(word) if "[" in word else None) or [word]
    ]
    return ",".join(names if len(names) > 1 else [*names, ""])
