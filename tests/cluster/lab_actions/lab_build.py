"""Build one artifact on a host, as the role software does with those of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_building import BuildingAction

if TYPE_CHECKING:
    from collections.abc import Mapping


class ActionModule(BuildingAction):
    """Its options are those that a recipe gives a build."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        return self._made(plain(self._task.args), task_vars or {})

    def _links_of_uses(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, str]:  # noqa: ARG002
        """Return no links: its builds use no other artifact."""
        return {}
