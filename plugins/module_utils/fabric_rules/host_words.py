# SPDX-License-Identifier: Apache-2.0
"""Host names in a sentence: folded to node[1-3], and with the right verb."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, Iterable, List

MOST_NAMED = 3  # hosts or connections in one sentence


def has_or_have(hosts: Iterable[str]) -> str:
    """Return the verb that follows these hosts."""
    return "has" if len(list(hosts)) == 1 else "have"


def other_hosts(hosts: Iterable[str], host: str) -> str:
    """Return all hosts but one, folded."""
    return fold(one for one in hosts if one != host)


def fold(names: Iterable[str]) -> str:
    """Return host names in short: node[1-3,7], rack2-a."""
    groups: Dict[str, List[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        stem = name.rstrip("0123456789")
        groups[stem].append(name[len(stem) :])
    words = []
    for stem, tails in groups.items():
        if len(tails) == 1:
            words.append(stem + tails[0])
            continue
        words += [stem] * ("" in tails)
        ranges: List[List[str]] = []
        for tail in sorted((tail for tail in tails if tail), key=lambda tail: (int(tail), len(tail))):
            if ranges and _follows(ranges[-1][-1], tail):
                ranges[-1] = [ranges[-1][0], tail]
            else:
                ranges.append([tail])
        words.append(f"{stem}[{','.join('-'.join(one) for one in ranges)}]")
    return ",".join(words)


def _follows(before: str, tail: str) -> bool:
    padded = "0" in {before[0], tail[0]}
    return int(tail) == int(before) + 1 and (len(tail) == len(before) or not padded)
