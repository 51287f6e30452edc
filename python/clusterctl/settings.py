"""Where clusterctl keeps things on the controller, and how each path was decided."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """A path together with what decided it, so that a message can say where a surprising value came from."""

    value: Path
    source: str


def _xdg(variable: str, fallback: str) -> Setting:
    base = os.environ.get(variable, "")
    if base and Path(base).is_absolute():  # the XDG specification: relative values are to be ignored
        return Setting(Path(base) / "clusterctl", f"${variable}")
    return Setting(Path.home() / fallback / "clusterctl", "default")


def cache_dir() -> Setting:
    """Sources, wheels, artifacts and sandbox images; everything below can be deleted at the cost of a rebuild."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> Setting:
    """Run records, locks and the sandboxes' keys; mode 0700."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def ensure_private(path: Path) -> Path:
    """Create ``path`` with mode 0700, and each missing parent too (``mkdir`` would leave those to the umask).

    Raises:
        OSError: the folder cannot be made.
    """
    missing = [path, *(parent for parent in path.parents if not parent.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path
