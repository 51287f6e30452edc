# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the other nodes in where the networks to try are closed, and have a node listen for their connections."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.step_action import StepAction


class ActionModule(StepAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the listener's ports, with what the firewall needed; without a trial, do nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        plan, host = variables[self._task.args["plan"]], str(variables["inventory_hostname"])
        if not plan["probe"]:
            return {**result, "changed": False}
        opening = ("fabric_firewall", {"networks": plain(plan["openings"][host]), "exact": False})
        listen = plain(plan["listen"][host])
        if plan["candidates"]["cables"]:
            listen["prefix"] = str(self._task.args["prefix"])
        opens = boolean(self._task.args["open_firewall"])
        steps = [*([opening] if opens else []), ("fabric_listen", listen)]
        return {**result, **self._in_order(steps, variables)}
