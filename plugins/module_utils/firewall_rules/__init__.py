# SPDX-License-Identifier: Apache-2.0
"""Firewalls of a node: the rule that drops a connection between nodes.

These modules neither read nor write anything. They need the standard library of Python 3.9 alone.
"""

from __future__ import annotations

from .nftables import Blocking, Packet, blocking, words

__all__ = ["Blocking", "Packet", "blocking", "words"]
