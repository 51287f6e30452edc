"""The artifacts in the controller's cache: software that is built already, by name and platform."""

from __future__ import annotations

import contextlib
import json

from clusterctl.state import paths


def cached_trees() -> frozenset[str]:
    """Return the names of the folders into which the cached artifacts are installed."""
    return frozenset(record.stem for record in (paths.cache_dir().value / "artifacts").glob("*.json"))


def cached() -> frozenset[tuple[str, str]]:
    """Return name and platform of each artifact; a record that cannot be read is left out."""
    found: set[tuple[str, str]] = set()
    for record in (paths.cache_dir().value / "artifacts").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(record.read_bytes())
            found.add((str(data["name"]), str(data["inputs"]["platform"])))
    return frozenset(found)
