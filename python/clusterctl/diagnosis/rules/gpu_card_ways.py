"""Is there an RDMA card near each GPU: behind the same PCI switch, or at least on the same NUMA node?

NCCL takes the nearest card of a GPU, and GPUDirect RDMA between sockets is slow (NVIDIA, "GPUDirect RDMA", "Supported
Systems"). How many GPUs have a card near them is how a machine is built, so nodes are held against nodes with as many
GPUs and cards. What all of them have in common is a note.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.diagnosis import gpu_peers
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware

ORDER = 56
_SHOWN = 8
_READING = "way to the nearest RDMA card"
_FARTHEST = "other NUMA node"
_WAYS = {"PCI switch": 0, "NUMA node": 1, _FARTHEST: 2}  # the nearest first
_FAR = {1: "is not behind a PCI switch with an RDMA card", 2: "has no RDMA card on its NUMA node"}
_CURE = "compare 'nvidia-smi topo -m' with another node; put the card into the slot that it has there"


def findings(view: View) -> Iterator[Finding]:
    """Return the nodes on which more GPUs are far from a card than on most nodes that have as many of both."""
    groups: dict[tuple[int, int], dict[str, dict[str, int]]] = {}
    for host, looks in view.hardware.items():
        ways = _ways(looks.now)
        if ways:
            groups.setdefault((len(ways), len(looks.now.devices("rdma card"))), {})[host] = ways
    for group in groups.values():
        for least, words in sorted(_FAR.items(), reverse=True):
            far = {host: [gpu for gpu, way in ways.items() if way >= least] for host, ways in group.items()}
            usual, times = Counter(map(len, far.values())).most_common(1)[0]
            if len(group) < gpu_peers.LEAST or times * 2 <= len(group):
                continue
            for host, gpus in far.items():
                if len(gpus) > usual and not _told(group[host], least, gpus):
                    cause = f"the GPU {and_more(gpus, _SHOWN)} {words}, and {usual} of {len(group[host])} on most nodes"
                    yield Finding("gpudirect", "warning", (host,), cause, _CURE)


def notes(view: View) -> Iterator[str]:
    """Return on which nodes a GPU has no card on its NUMA node, in words that hold for all of them."""
    hosts = [host for host, looks in view.hardware.items() if _WAYS[_FARTHEST] in _ways(looks.now).values()]
    if hosts:
        yield (
            f"On {nodeset.folded(hosts)}, a GPU has no RDMA card on its NUMA node, so its traffic to other nodes "
            "crosses the link between sockets ('nvidia-smi topo -m' shows it as SYS)."
        )


def _ways(seen: Hardware) -> dict[str, int]:
    return {gpu: _WAYS[way] for gpu, way in seen.texts("gpu", _READING).items() if way in _WAYS}


def _told(ways: dict[str, int], least: int, gpus: list[str]) -> bool:
    """Whether the finding about the farthest way tells of all of these GPUs already."""
    return least < _WAYS[_FARTHEST] and all(ways[gpu] == _WAYS[_FARTHEST] for gpu in gpus)
