# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a source to the controller's cache, without a connection to the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the path of the verified file."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        missing = [name for name in ("name", "version", "cache_dir") if not arguments.get(name)]
        if missing:
            return {"failed": True, "msg": f"source_fetch needs {', '.join(missing)}.", "changed": False, "changes": []}
        name, version = str(arguments["name"]), str(arguments["version"])
        cache_dir = Path(str(arguments["cache_dir"])).expanduser()
        sources = arguments.get("sources") or []
        try:
            known = source.cached(name, version, sources, cache_dir)
            if known is None and self._task.check_mode:
                return {"changed": True, "changes": [f"would fetch {name} {version}"], "cached": False, "watch": []}
            host = self._host(task_vars or {})
            fetched = known or source.fetch(
                name,
                version,
                sources,
                cache_dir,
                variable=str(arguments.get("variable") or f"{name}_sources"),
                note=lambda text: self._note(host, text),
            )
        except (ArtifactError, OSError) as error:
            return {"failed": True, "changed": False, "msg": str(error), "changes": [], "watch": []}
        return {
            "changed": not fetched.cached,
            "changes": [] if fetched.cached else [f"fetched {name} {version} from {fetched.source}"],
            "path": str(fetched.path),
            "sha256": fetched.sha256,
            "source": fetched.source,
            "cached": fetched.cached,
            "watch": [],
        }
