# SPDX-License-Identifier: Apache-2.0
"""Describe networks and failed connections in words."""

from __future__ import annotations

from typing import Sequence

from .host_words import MOST_NAMED
from .model import KIND_WORDS, Network, PairResult


def title(network: Network) -> str:
    """Return the name of a network in a report: eth0 10.0.0.0/24."""
    names = dict.fromkeys(network.interfaces.values())
    return f"{'/'.join(names)} {', '.join(network.cidrs)}"


def pace(network: Network) -> str:
    """Return speed and MTU of a network."""
    speed = f"{network.speed_mbps} Mb/s" if network.speed_mbps else "speed unknown"
    return f"{speed}, MTU {network.mtu}" if network.mtu else speed


def failure_words(failures: Sequence[PairResult]) -> str:
    """Say which connections of a network failed; a node that is in all of them is named."""
    kinds = {one.kind for one in failures}
    ends = [{one.source, one.target} for one in failures]
    common = set.intersection(*ends)
    words = "; ".join(
        f"{one.source} to {one.target}: {one.problem or KIND_WORDS.get(one.kind, one.kind)}"
        for one in failures[:MOST_NAMED]
    )
    more = f" and {len(failures) - MOST_NAMED} more" if len(failures) > MOST_NAMED else ""
    if len(common) == 1 and len(failures) > 1:
        what = KIND_WORDS.get(next(iter(kinds)), "failed") if len(kinds) == 1 else "failed"
        return f"every failing connection has {common.pop()} at one end ({what}: {words}{more})"
    return f"{words}{more}"
