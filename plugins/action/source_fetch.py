# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a source to the controller's cache, without a connection to the host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import background, source
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase

if TYPE_CHECKING:
    from collections.abc import Mapping


class ActionModule(ArtifactActionBase):
    """Its options are those that the roles give; plugins/modules has a note of what it does."""

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
        if boolean(arguments.get("early") or False):
            return self._begin(name, version, sources, cache_dir, task_vars or {})
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

    def _begin(
        self, name: str, version: str, sources: list[Any], cache_dir: Path, variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Begin to fetch in the background where a build may need the file. A problem is told where it is needed."""
        begun, may_be_shared = False, bool(self._templar.template(variables.get("cluster_cache") or ""))
        if not self._task.check_mode and not may_be_shared:
            with contextlib.suppress(ArtifactError, OSError):
                begun = background.is_needed(name, version, sources, cache_dir)
                if begun:
                    background.begin_fetch(name, version, sources, cache_dir, os.getppid())
        return {"changed": False, "changes": [], "watch": [], "begun": begun}
