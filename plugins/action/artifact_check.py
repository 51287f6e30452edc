# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove one artifact or several."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options; those of one artifact may stand without a list."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)

        def work() -> dict[str, Any]:
            told = self._call("artifact_check", {"artifacts": [arguments]}, task_vars or {})
            (result,) = told["artifacts"].values()
            return {"changed": False, "changes": [], "watch": [], **result}

        return self._attempted(work)
