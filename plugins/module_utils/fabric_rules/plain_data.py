# SPDX-License-Identifier: Apache-2.0
"""Candidates as JSON-ready data, which travel in the results of Ansible tasks."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .model import Candidates, Network, Rejection


def plain(found: Candidates) -> Dict[str, Any]:
    """Return candidates as JSON-ready data."""
    return {
        "networks": [{**network._asdict(), "cidrs": list(network.cidrs)} for network in found.networks],
        "rejected": [{**one._asdict(), "hosts": list(one.hosts)} for one in found.rejected],
        "pinned": found.pinned,
    }


def from_plain(data: Mapping[str, Any]) -> Candidates:
    """Return the candidates from the data of :func:`plain`."""
    return Candidates(
        tuple(Network(**{**one, "cidrs": tuple(one["cidrs"])}) for one in data["networks"]),
        tuple(Rejection(one["network"], tuple(one["hosts"]), one["reason"]) for one in data["rejected"]),
        bool(data["pinned"]),
    )
