# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the other nodes in where the networks to try are closed, and have a node listen for their connections."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase


class ActionModule(ArtifactActionBase):
    """Its options are ``plan``, the plan of the networks, and ``open_firewall``. Without a trial, it does nothing."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the listener's ports, with what the firewall needed."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        plan, host = self._task.args["plan"], self._host(variables)

        def work() -> dict[str, Any]:
            if not plan["probe"]:
                return {"changed": False, "changes": [], "watch": []}
            opened: dict[str, Any] = {}
            if boolean(self._task.args["open_firewall"]):
                opened = self._call("fabric_firewall", {"networks": plan["openings"][host], "exact": False}, variables)
            self._task.check_mode = False  # listening changes nothing, and the trial needs it
            return planned.sum_of(opened, self._call("fabric_listen", plan["listen"][host], variables))

        return self._attempted(work)
