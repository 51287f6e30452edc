"""Tell whether this machine has far more to do than cores, so that answers of nodes are late for its own sake."""

from __future__ import annotations

import os

_BUSY = 4.0  # processes that want a core, for each core


def busy_words() -> str:
    """Return a clause about the load of the last minute; empty where this machine is not busy."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"this machine is busy (a load of {load:.0f} on {cores} cores)" if load > _BUSY * cores else ""
