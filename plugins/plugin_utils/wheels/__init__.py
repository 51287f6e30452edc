# SPDX-License-Identifier: Apache-2.0
"""Find Python wheels for the nodes on the controller, pin them in a lock, and keep them in the cache.

The nodes' Python and C library decide which wheels fit, not the controller's. Nodes never ask a package index. The
user's own pip configuration says which index the controller asks.
"""

from __future__ import annotations

from .lock import Asked, LockError
from .locked import Built, LockedEnvironment, locked_environment, read_lock, uv_program
from .packages import NothingFitsError, PackedSdist, Sdist, Target, Wheel, WheelError
from .pip import explain, lacking
from .requirements import NO_CHOICE, Choice, Metadata, closure, parse_requirements, read_metadata
from .store import LOCK_SCHEMA, WheelStore, bring

__all__ = [
    "LOCK_SCHEMA",
    "NO_CHOICE",
    "Asked",
    "Built",
    "Choice",
    "LockError",
    "LockedEnvironment",
    "Metadata",
    "NothingFitsError",
    "PackedSdist",
    "Sdist",
    "Target",
    "Wheel",
    "WheelError",
    "WheelStore",
    "bring",
    "closure",
    "explain",
    "lacking",
    "locked_environment",
    "parse_requirements",
    "read_lock",
    "read_metadata",
    "uv_program",
]
