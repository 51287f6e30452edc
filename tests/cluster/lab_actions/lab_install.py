"""Install artifacts on a host and switch their links, as the role software does with those of its plan."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import artifact_key, plain
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import links_to_switch
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction


class ActionModule(StagingAction):
    """Its option ``artifacts`` has those of the module artifact_install, with ``inputs`` and ``cache_dir``."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        asked = plain(self._task.args["artifacts"])
        for one in asked:
            one["key"] = artifact_key(one.pop("inputs"))

        def work() -> dict[str, Any]:
            staged = self._staged(asked, variables)
            installed = planned.together(asked, staged)
            links = links_to_switch(staged.values())
            if installed.get("failed") or self._task.check_mode or not links:
                return installed
            given = {"links": links, "host": self._host(variables)}
            return planned.sum_of(installed, self._call("artifact_switch", given, variables))

        return self._attempted(work)
