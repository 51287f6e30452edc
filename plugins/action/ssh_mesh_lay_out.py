# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out a node's certificates, authorized keys, known hosts and settings of the ssh client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_steps
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.mesh_action import MeshActionBase

if TYPE_CHECKING:
    from collections.abc import Collection


class ActionModule(MeshActionBase):
    """After it, a node accepts all others; by keys and by certificates where it goes from one to the other."""

    def _steps(self, node: mesh_steps.Node, living: Collection[str]) -> list[mesh_steps.Step]:  # noqa: ARG002 - as the other
        return mesh_steps.lay_out(node)
