"""Where clusterctl keeps things on the controller, and how each path was decided."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from clusterctl.support.errors import ConfigError


@dataclass(frozen=True)
class PathSetting:
    """A path together with what decided it, so that a message can say where a surprising value came from."""

    value: Path
    source: str


def _xdg(variable: str, fallback: str) -> PathSetting:
    base = os.environ.get(variable, "")
    if base and Path(base).is_absolute():  # the XDG specification: relative values are to be ignored
        return PathSetting(Path(base) / "clusterctl", f"${variable}")
    return PathSetting(Path.home() / fallback / "clusterctl", "default")


def cache_dir() -> PathSetting:
    """Sources, wheels, artifacts and sandbox images; everything below can be deleted at the cost of a rebuild."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> PathSetting:
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


def cluster_id(inventory: Path) -> str:
    """Return a readable and unique folder name for the cluster of an inventory."""
    resolved = inventory.resolve()
    return f"{resolved.stem}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"


def private_folder(path: Path) -> Path:
    """Make a folder of the state.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        return ensure_private(path)
    except OSError as error:
        state = state_dir()
        raise ConfigError(
            f"The folder {path} cannot be written ({error.strerror}); the state folder comes from {state.source}, "
            "set XDG_STATE_HOME to a writable place."
        ) from None
