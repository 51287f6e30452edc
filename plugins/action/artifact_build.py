# SPDX-License-Identifier: GPL-3.0-or-later
"""Make sure that the controller's cache has an artifact: from there, from a shared cache, or built by the host."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_building import BuildingAction


class ActionModule(BuildingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        missing = [name for name in ("name", "version", "inputs", "cache_dir", "steps") if not arguments.get(name)]
        if missing:
            return {
                "failed": True,
                "msg": f"artifact_build needs {', '.join(missing)}.",
                "changed": False,
                "changes": [],
            }
        return self._made(arguments, task_vars or {})
