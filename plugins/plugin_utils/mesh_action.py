# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins that call several modules for the mesh on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look, mesh_steps
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.step_action import StepAction

if TYPE_CHECKING:
    from collections.abc import Collection


class MeshActionBase(StepAction):
    """Does the steps that follow from what was planned for a node.

    Its options ``look``, ``plan`` and ``signed`` name the variables in which the results of the tasks before it are.
    They are data and no templates.
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
        return {**result, **self._in_order(self._steps(node, living), variables)}

    def _steps(self, node: mesh_steps.Node, living: Collection[str]) -> list[mesh_steps.Step]:
        """Return what is done on a node; ``living`` are the hosts that still take part."""
        raise NotImplementedError
