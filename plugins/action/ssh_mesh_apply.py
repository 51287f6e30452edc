# SPDX-License-Identifier: GPL-3.0-or-later
"""Do on a node what follows from the plan of the mesh: lay out its files, or switch to the new trust and log in."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look, mesh_steps
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.step_action import StepAction


class ActionModule(StepAction):
    """Its options ``look``, ``plan`` and ``signed`` name the variables with the results of the tasks before it.

    They are data and no templates. After the phase ``lay_out``, a node accepts all others; by keys and by certificates
    where it goes from one to the other. The phase ``login`` begins when all nodes have laid out their files. A login
    that fails is listed in ``refused``.
    """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the sum of the results."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        living = {str(host) for host in variables["ansible_play_hosts"]}
        host = str(variables["inventory_hostname"])
        plan = variables[given["plan"]]
        try:
            node = mesh_steps.Node(
                host=host,
                look=mesh_look.of_files(host, variables[given["look"]]),
                trust=str(given["trust"]),
                plan=plan,
                signed=variables[given["signed"]],
                is_partial=mesh_steps.is_partial(plan, living),
            )
        except MeshError as error:
            return {**result, **mesh_look.failed(error)}
        if given["phase"] == "lay_out":
            steps = mesh_steps.lay_out(node)
        else:
            switched_key = str(given["key_name"]) if boolean(given["rotate"]) else ""
            steps = mesh_steps.login(
                node, living, switched_key=switched_key, verify=str(given["verify"]), timeout_s=given["timeout_s"]
            )
        return {**result, **self._in_order(steps, variables)}
