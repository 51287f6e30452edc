# SPDX-License-Identifier: GPL-3.0-or-later
"""Switch a node to its new trust and its new key, and log in to the other nodes as a job would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_steps
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.mesh_action import MeshActionBase

if TYPE_CHECKING:
    from collections.abc import Collection


class ActionModule(MeshActionBase):
    """Its task begins when all nodes have laid out their files. A login that fails is listed in ``refused``."""

    def _steps(self, node: mesh_steps.Node, living: Collection[str]) -> list[mesh_steps.Step]:
        given = self._task.args
        return mesh_steps.login(
            node,
            living,
            switched_key=str(given["key_name"]) if boolean(given["rotate"]) else "",
            verify=str(given["verify"]),
            timeout_s=given["timeout_s"],
        )
