# SPDX-License-Identifier: Apache-2.0
"""Choose the pairs to probe, and decide from their results which network carries the jobs."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .host_words import fold
from .model import Candidates, Decision, Facts, Network, PairResult, Rejection
from .words import failure_words, pace, title

ALL_PAIRS_UP_TO = 32


def pairs(hosts: Sequence[str], seed: int = 0) -> Tuple[Tuple[str, str], ...]:
    """Return who connects to whom: all ordered pairs up to 32 hosts, else a sample with every host.

    The sample is a ring in random order, which connects all hosts, and log2(N) further targets for each host.
    """
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return tuple((source, target) for source in hosts for target in hosts if source != target)
    chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
    order = list(hosts)
    chance.shuffle(order)
    found = dict.fromkeys(zip(order, order[1:] + order[:1]))  # noqa: B905 - strict= came with Python 3.10
    for source in hosts:
        for target in chance.sample(order, math.ceil(math.log2(len(hosts)))):
            if target != source:
                found[source, target] = None
    return tuple(found)


def decide(found: Candidates, results: Sequence[PairResult]) -> Decision:
    """Take the best candidate in which every connection came through.

    Args:
        found: the candidates, best first.
        results: of the probe; without results, the first candidate is taken.
    """
    failures = tuple(one for one in results if one.kind != "ok")
    failed: Dict[str, List[PairResult]] = defaultdict(list)
    for one in failures:
        failed[one.network].append(one)
    chosen = next((network for network in found.networks if network.key not in failed), None)
    rejected = list(found.rejected)
    for network in found.networks:
        if network is not chosen:
            hosts = tuple(network.addresses)
            why = failure_words(failed[network.key]) if failed[network.key] else _slower(network, chosen)
            rejected.append(Rejection(title(network), hosts, why))
    if chosen is not None:
        seen = sum(one.network == chosen.key for one in results)
        how = "pinned" if found.pinned else _how(chosen, found, failed)
        proof = f"{seen} connections came through" if seen else "not probed"
        reason = f"{title(chosen)}: {how}; {proof}"
    elif found.networks:
        reason = "no network carries connections between all nodes"
    else:
        reason = "no network is common to all nodes"
    return Decision(chosen, tuple(rejected), failures, found.pinned, reason)


def _how(chosen: Network, found: Candidates, failed: Mapping[str, Sequence[PairResult]]) -> str:
    if len(found.networks) == 1:
        return "the only network that all nodes have"
    if all(network is chosen or failed.get(network.key) for network in found.networks):
        return "the only network that carries"
    return f"the fastest of those that carry ({pace(chosen)})"


def _slower(network: Network, chosen: Optional[Network]) -> str:
    if chosen is None:
        return "was not proven"
    ours = ((network.speed_mbps or 0), (network.mtu or 0))
    theirs = ((chosen.speed_mbps or 0), (chosen.mtu or 0))
    word = "carries too, and is slower" if ours < theirs else "carries too, and is no faster"
    return f"{word} ({pace(network)}; {title(chosen)} has {pace(chosen)})"


def prefer(found: Candidates, records: Mapping[str, Optional[Facts]]) -> Candidates:
    """Put the network first that the nodes have on record; a run on a part of a cluster needs this."""
    known = {",".join(record["cidrs"]) for record in records.values() if record}
    order = sorted(found.networks, key=lambda network: network.key not in known)
    return found._replace(networks=tuple(order))


def recorded(found: Candidates, records: Mapping[str, Optional[Facts]]) -> Optional[Network]:
    """Return the candidate that all nodes have on record, if it is still the best one.

    Each record names the nodes with which this one was proven. If they are all here and the facts that decide are the
    same, it needs no second proof; a new node does.

    Args:
        found: the present candidates.
        records: by host, what /etc/clusterctl/fabric.json says.
    """
    if not found.networks:
        return None
    best = found.networks[0]
    for host in best.addresses:
        known = proven_with(best, host, records.get(host))
        if known is None or not set(best.addresses) <= {host, *known}:
            return None
    return best


def proven_with(network: Network, host: str, record: Optional[Facts]) -> Optional[Tuple[str, ...]]:
    """Return the nodes with which a host's connections in this network are proven, None if it is not on record."""
    record = record or {}
    known = (tuple(record.get("cidrs") or ()), record.get("interface"), record.get("address"))
    if known != (network.cidrs, network.interfaces[host], network.addresses[host]):
        return None
    return tuple(record.get("proven") or ())


def matrix(found: Candidates, results: Sequence[PairResult] = ()) -> Tuple[str, ...]:
    """Return a line for each rejected network and interface: its hosts, and the reason."""
    rejected = decide(found, results).rejected
    width = max((len(one.network) for one in rejected), default=0)
    hosts = [fold(one.hosts) for one in rejected]
    wide = max((len(words) for words in hosts), default=0)
    return tuple(
        f"{one.network:<{width}}  {words:<{wide}}  {one.reason}"
        for one, words in zip(rejected, hosts)  # noqa: B905 - strict= came with Python 3.10
    )
