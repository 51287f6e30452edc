# SPDX-License-Identifier: GPL-3.0-or-later
"""Install all artifacts of a plan that a host gets, beside its other versions; the links stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction


class ActionModule(StagingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = self._host(variables)

        def work() -> dict[str, Any]:
            mine = planned.artifacts_of(variables, str(self._task.args.get("plan", "")), host)
            self._has_built = any(one["uses"] and planned.builds(host, one, variables) for one in mine)
            installed = self._installed(mine, variables)
            leaving = [one for one in installed.values() if one.get("before") and one["before"] != one.get("tree")]
            replaces = bool(leaving or planned.leaving(variables, host))
            return {**planned.together(mine, installed), "replaces": replaces}

        return self._attempted(work)

    def _known_of(self, base: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was installed for a build is younger than the facts."""
        return None if self._has_built else super()._known_of(base, variables)
