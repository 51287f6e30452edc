"""A node's clock against that of this machine; apart from the types of facts, which take long to import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of this machine's, give or take ``uncertainty_s``."""

    offset_s: float
    uncertainty_s: float
