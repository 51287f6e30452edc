"""Look at the mark of a cluster on nodes, write it, and take and release the lock of a run: one ssh per node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.node_claim import ClaimAnswer
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import one_trip
from clusterctl.remote.reach import by_hand, where
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.hosts import Host
    from clusterctl.remote import python

NODE_CLAIM = "node_claim.claim"
_ANSWER = "node_claim"
_TIMEOUT_S = 30.0


def ask(
    requests: Mapping[Host, Mapping[str, Any]], timeout_s: float = _TIMEOUT_S
) -> tuple[dict[str, ClaimAnswer], dict[str, ProbeFailure]]:
    """Send each host its request, see ``plugins/module_utils/node_claim``.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """
    lines = {host: json.dumps(request).encode() for host, request in requests.items()}
    return one_trip.ask(lines, NODE_CLAIM, _read, timeout_s=timeout_s)


def _read(host: Host, ending: python.Ending) -> ClaimAnswer | ProbeFailure:
    """Return the answer in the output, which may have lines of a login script around it."""
    for line in reversed(ending.output.splitlines()):
        if line.startswith(f'{{"{_ANSWER}"'.encode()):
            try:
                return ClaimAnswer.model_validate(node_json.loads(line)[_ANSWER])
            except (ValidationError, ValueError):
                break
    words = f"{where(host)} gave no readable answer about its cluster; see what a login prints: {by_hand(host)}."
    return ProbeFailure(host.name, "error", words)
