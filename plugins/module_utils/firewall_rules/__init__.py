# SPDX-License-Identifier: Apache-2.0
"""Firewalls of a node: the rule that drops a connection between nodes, and what opens the cluster's network.

These modules neither read nor write anything. They need the standard library of Python 3.9 alone.
"""

from __future__ import annotations

from .nftables import Blocking, Packet, blocking, words
from .opening import OpeningError, Wanted, firewalld_plan, nft_line, ufw_plan

__all__ = [
    "Blocking",
    "OpeningError",
    "Packet",
    "Wanted",
    "blocking",
    "firewalld_plan",
    "nft_line",
    "ufw_plan",
    "words",
]
