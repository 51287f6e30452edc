# SPDX-License-Identifier: GPL-3.0-or-later
"""Install artifacts on a host: ask for their states, and push only the packs that the host needs."""

from __future__ import annotations

from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, artifact_key, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction


class ActionModule(StagingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        asked: list[dict[str, Any]] = plain(self._task.args.get("artifacts") or [])

        def work() -> dict[str, Any]:
            for one in asked:
                missing = [name for name in ("name", "version", "cache_dir") if not one.get(name)]
                if not one.get("inputs") and not one.get("key"):
                    missing.append("inputs or key")
                if missing:
                    raise ArtifactError(f"artifact_install needs {', '.join(missing)}.")
                one["key"] = str(one.get("key") or artifact_key(one["inputs"]))
            return planned.together(asked, self._staged(asked, task_vars or {}))

        return self._attempted(work)
