# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins wheels for the nodes' platforms on the controller; no connection to the host is used."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Target, WheelStore, parse_requirements


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the pinned wheels by platform."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        unchanged: dict[str, Any] = {"changed": False, "changes": [], "watch": []}
        missing = [name for name in ("name", "platforms", "requirements", "cache_dir") if not arguments.get(name)]
        if missing:
            return {**unchanged, "failed": True, "msg": f"wheel_lock needs {', '.join(missing)}."}
        name = str(arguments["name"])
        variable = str(arguments.get("variable") or f"{name}_requirements")
        try:
            requirements = parse_requirements(arguments["requirements"], variable)
            store = WheelStore(Path(str(arguments["cache_dir"])), str(arguments.get("wheel_dir") or ""))
            wheels = {
                str(platform): [
                    asdict(wheel) for wheel in store.lock(name, Target.of(str(platform)), requirements, variable)
                ]
                for platform in arguments["platforms"]
            }
        except (ArtifactError, OSError) as error:
            return {**unchanged, "failed": True, "msg": str(error)}
        return {**unchanged, "wheels": wheels}
