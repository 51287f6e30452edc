# SPDX-License-Identifier: GPL-3.0-or-later
"""Install all artifacts of a plan that a host gets, beside its other versions; the links stay as they are."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction


class ActionModule(StagingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}

        def work() -> dict[str, Any]:
            mine = planned.artifacts_of(variables, str(self._task.args.get("plan", "")), self._host(variables))
            return planned.together(mine, self._installed(mine, variables))

        return self._attempted(work)
