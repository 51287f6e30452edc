"""Build one artifact on a host, as the role software does with those of its plan."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_building import BuildingAction


class ActionModule(BuildingAction):
    """Its options are those that a recipe gives a build."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        return self._made(plain(self._task.args), task_vars or {})
