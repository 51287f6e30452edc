# SPDX-License-Identifier: GPL-3.0-or-later
"""Install an artifact on a host: ask for its state, and push the pack only if the host needs it."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import artifact_key, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction


class ActionModule(StagingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        missing = [name for name in ("name", "version", "cache_dir") if not arguments.get(name)]
        if not arguments.get("inputs") and not arguments.get("key"):
            missing.append("inputs or key")
        if missing:
            return {
                "failed": True,
                "msg": f"artifact_install needs {', '.join(missing)}.",
                "changed": False,
                "changes": [],
            }
        key = str(arguments.get("key") or artifact_key(arguments["inputs"]))

        def work() -> dict[str, Any]:
            (result,) = self._staged([{**arguments, "key": key}], task_vars or {}).values()
            return result

        return {"key": key, **self._attempted(work)}
