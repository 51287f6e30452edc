# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a node its targets when every node listens, and return the results of its connections."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules as rules


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the module of this name with the targets that follow from the plan and from the listeners' ports."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result: ``results``, one list for each target."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        plan, host = variables[given["plan"]], str(variables["inventory_hostname"])
        if not plan["probe"]:
            return {**result, "changed": False}
        found = rules.from_plain(plan["candidates"])
        ports = {
            name: rules.listener_ports(variables["hostvars"][name].get(given["listens"]))
            for name in variables["ansible_play_hosts"]
        }
        targets = [
            {
                "network": network.key,
                "source": network.addresses[host],
                "name": target,
                "address": network.addresses[target],
                "port": ports[target][network.key],
            }
            for network in found.probed
            for source, target in plan["pairs"]
            if source == host and {source, target} <= network.addresses.keys() and network.key in ports.get(target, {})
        ]
        arguments = {
            "name": host,
            "token": plan["listen"][host]["token"],
            "targets": targets,
            "timeout_s": given["timeout_s"],
        }
        result.update(
            self._execute_module(
                module_name="clusterctl.hpc.fabric_connect", module_args=arguments, task_vars=task_vars
            )
        )
        return result
