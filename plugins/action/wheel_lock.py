# SPDX-License-Identifier: GPL-3.0-or-later
"""Pin wheels for the nodes' platforms on the controller, without a connection to the host."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import (
    Choice,
    Target,
    WheelStore,
    parse_requirements,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class ActionModule(ArtifactActionBase):
    """Its options are those that the roles give; plugins/modules has a note of what it does."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the pinned wheels by platform."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        unchanged: dict[str, Any] = {"changed": False, "changes": [], "watch": []}
        by_platform: dict[str, dict[str, Any]] = arguments.get("by_platform") or {}
        platforms = list(dict.fromkeys(map(str, [*(arguments.get("platforms") or []), *by_platform])))
        missing = [name for name in ("name", "cache_dir") if not arguments.get(name)]
        missing += [] if platforms else ["platforms or by_platform"]
        if missing:
            return {**unchanged, "failed": True, "msg": f"wheel_lock needs {', '.join(missing)}."}
        try:
            wheels, notes = self._pin(
                arguments,
                {name: by_platform.get(name) or {} for name in platforms},
                lambda text: self._note(self._host(task_vars or {}), text),
            )
        except (ArtifactError, OSError) as error:
            if boolean(arguments.get("refuse", True)):
                return {**unchanged, "failed": True, "msg": str(error)}
            return {**unchanged, "wheels": {}, "problem": str(error)}
        for note in notes:
            self._note(self._host(task_vars or {}), note)
        return {**unchanged, "wheels": wheels, "problem": "", "warnings": notes}

    @staticmethod
    def _pin(
        arguments: dict[str, Any], by_platform: dict[str, dict[str, Any]], note: Callable[[str], None]
    ) -> tuple[dict[str, list[dict[str, str]]], list[str]]:
        """Return the wheels by platform, and the warnings."""
        name = str(arguments["name"])
        variable = str(arguments.get("variable") or f"{name}_requirements")
        choice_variable = str(arguments.get("choice_variable") or variable)
        store = WheelStore(Path(str(arguments["cache_dir"])), str(arguments.get("wheel_dir") or ""), note=note)
        common = list(arguments.get("requirements") or [])
        wheels: dict[str, list[dict[str, str]]] = {}
        notes = []
        for platform, wanted in by_platform.items():
            requirements = parse_requirements([*common, *(wanted.get("requirements") or [])], variable)
            choice = Choice.of(wanted.get("first_of") or [], choice_variable)
            target = Target.of(str(wanted.get("target") or platform))
            pinned = store.lock(name, target, requirements, variable, choice)
            wheels[platform] = [asdict(wheel) for wheel in pinned]
            if wanted.get("otherwise") and choice.taken(pinned) > 0:
                notes.append(f"{platform}: {wanted['otherwise']}")
        return wheels, [*notes, *store.notes]
