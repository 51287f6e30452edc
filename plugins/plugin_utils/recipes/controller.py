# SPDX-License-Identifier: GPL-3.0-or-later
"""What recipes have the controller look up: wheels in its cache or an index, and archives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import model
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import (
    Asked,
    Choice,
    LockedEnvironment,
    Target,
    WheelStore,
    locked_environment,
    parse_requirements,
)


class Controller(model.Controller):
    """The machine that runs the recipes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Tell ``note`` what is waited for."""
        self._note = note

    def pin(self, wish: model.WheelWish) -> model.Pinned:
        """Return wheels of a lock, else those that the index chooses; see the base class."""
        requirements = parse_requirements(list(wish.requirements), wish.variable)
        choice = Choice.of(wish.first_of, wish.choice_variable or wish.variable)
        store = WheelStore(Path(wish.cache_dir), wish.wheel_dir, note=self._note)
        wheels = store.lock(wish.name, Target.of(wish.target), requirements, wish.variable, choice)
        return model.Pinned([asdict(wheel) for wheel in wheels], choice.taken(wheels), store.notes)

    def pin_lock(self, wish: model.LockWish) -> LockedEnvironment:
        """Read a user's lock and have its files in the cache; see the base class."""
        project = Path(wish.path).expanduser().absolute().parent
        store = WheelStore(Path(wish.cache_dir), wish.wheel_dir, note=self._note, project=project)
        asked = Asked.of(wish.extras, wish.groups)
        return locked_environment(store, Path(wish.path), asked, Target.of(wish.target), wish.python, wish.left_out)

    def fetch(self, name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: str) -> source.Fetched:
        """Fetch a file, unless the cache has it; see the base class."""
        return source.fetch(name, version, sources, Path(cache_dir).expanduser(), variable="", note=self._note)
