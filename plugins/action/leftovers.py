# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove what unfinished runs left: partial files in the controller's cache, then what lies on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import default_folder
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    ArtifactActionBase,
    ModuleFailedError,
)

_FOLDERS = ("artifacts", "sources", "wheels")
_SHARED = "/var/tmp"  # noqa: S108 - names that only modules of ours have


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments: dict[str, Any] = plain(self._task.args)
        caches = {Path(str(arguments["cache_dir"])).expanduser(), *map(Path, self._setting("cache_dir", variables))}
        if not self._task.check_mode:
            for folder in (*(cache / name for cache in caches for name in _FOLDERS), default_folder()):
                partial_file.forget_abandoned(folder)
        given = {
            **arguments,
            "folders": sorted({*(arguments.get("folders") or [_SHARED]), *self._setting("work_dir", variables)}),
            "packs": [path.name[: -len(".json")] for cache in caches for path in (cache / "artifacts").glob("*.json")],
            "host": self._host(variables),
        }
        try:
            return self._call("leftovers", given, variables)
        except ModuleFailedError as error:
            return {"changes": [], "watch": [], **error.result, "changed": False}

    def _setting(self, name: str, variables: dict[str, Any]) -> list[str]:
        """Return what the user set for a folder; '~' is the home of the controller's user."""
        found = str(self._templar.template(variables.get(f"preflight_{name}") or ""))
        return [str(Path(found).expanduser())] if found else []
