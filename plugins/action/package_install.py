# SPDX-License-Identifier: GPL-3.0-or-later
"""Install packages on a host by its package manager, and have the host record which ones came."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    ArtifactActionBase,
    ModuleFailedError,
)


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        names = arguments.get("name") or []
        if isinstance(names, str):
            names = [names]
        if self._task.check_mode:
            return {"changed": False, "came": [], "changes": [], "watch": []}
        variables = task_vars or {}
        try:
            came, complaint = self._packages(names, arguments.get("options") or {}, variables)
        except ModuleFailedError as error:
            return {"changes": [], "watch": [], **error.result, "changed": False}
        if complaint:
            return {"failed": True, "changed": False, "msg": complaint, "changes": [], "watch": []}
        changes = [f"installed the packages {', '.join(came)}"] if came else []
        return {"changed": bool(came), "came": came, "changes": changes, "watch": []}
