# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell once for all nodes what is left to do after the logins: failed ones, and traces of an earlier mesh."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look, mesh_steps


class ActionModule(ActionBase):  # type: ignore[misc]
    """Its options ``looks``, ``logins`` and ``plan`` name the variables of earlier results."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``refused``, ``certificates`` and ``unfinished``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        living = [str(host) for host in variables["ansible_play_hosts"]]
        hostvars = variables["hostvars"]
        try:
            looks = {host: mesh_look.of_files(host, hostvars[host].get(given["looks"])) for host in living}
        except MeshError as error:
            return {**result, **mesh_look.failed(error)}
        left = mesh_steps.left_to_do(
            looks,
            {host: hostvars[host].get(given["logins"]) for host in living},
            str(given["trust"]),
            is_partial=mesh_steps.is_partial(variables[given["plan"]], living),
        )
        return {**result, "changed": False, **left}
