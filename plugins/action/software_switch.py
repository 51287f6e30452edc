# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the new folders of a host, switch its links to them and prove them, or switch back and fail with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import links_to_switch
from ansible_collections.clusterctl.hpc.plugins.module_utils.preflight_rules import shortened
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ModuleFailedError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.software_proof import ProvingAction

_NOTHING: dict[str, Any] = {"changed": False, "changes": [], "watch": [], "switched": [], "before": {}}


class ActionModule(ProvingAction):
    """See the module of the same name for the options.

    It reads what the tasks before it registered.
    """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host; without a link to switch, nothing is asked of the host before the proof."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        phase, name = str(self._task.args["phase"]), str(self._task.args.get("plan") or "")
        if phase == "back":
            return self._back(variables)
        switched = self._switched(phase, variables)
        if not name or switched.get("failed"):
            return switched

        def work() -> dict[str, Any]:
            mine = planned.artifacts_of(variables, name, self._host(variables))
            return planned.together(mine, self._proved(mine, variables))

        try:
            proved = self._attempted(work)
        except AnsibleConnectionFailure as error:  # what Ansible makes of it, and what was switched stays known
            proved = {"unreachable": True, "changed": False, "msg": str(error)}
        except Exception as error:  # noqa: BLE001 - without what was switched, no link of this host would go back
            why = ": ".join(filter(None, (type(error).__name__, str(error))))
            msg = f"{self._host(variables)}: the software could not be proved ({why}); run again."
            proved = {"failed": True, "changed": False, "msg": msg}
        return planned.sum_of(switched, proved)

    def _switched(self, phase: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Check the new folders of the host, or switch its links."""
        try:
            if phase == "switch" and (refused := (variables.get("software_guard") or {}).get("refused")):
                return {**_NOTHING, "failed": True, "msg": refused}
            links = dict.fromkeys(planned.leaving(variables, self._host(variables)), "")
            if not self._task.check_mode:  # where nothing was installed, a link would lead nowhere
                links |= links_to_switch(
                    plain((variables.get("software_staged") or {}).get("artifacts") or {}).values()
                )
            if not links:
                return dict(_NOTHING)
            busy = bool(variables.get("software_while_busy"))
            asked = {"links": links, "phase": phase, "host": self._host(variables), "while_busy": busy}
            return self._call("artifact_switch", asked, variables)
        except ModuleFailedError as error:
            return {**_NOTHING, **error.result, "changed": False}

    def _back(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Let the links lead where they led before the switch, and fail with the reason."""
        lost = [host for host in variables["ansible_play_hosts_all"] if host not in variables["ansible_play_hosts"]]
        why = str(self._task.args.get("why") or f"{shortened(lost)} failed or cannot be reached.")
        switched = plain(variables.get("software_switched") or {})
        before: Mapping[str, str] = switched.get("before") or {}
        if not (switched.get("switched") and (variables.get("software_guard") or {}).get("guarded")):
            return {**_NOTHING, "failed": True, "msg": why}
        host = self._host(variables)
        done = self._call("artifact_switch", {"links": before, "host": host}, variables)
        for one in plain((variables.get("software_plan") or {}).get("artifacts") or []):
            if one["link"] in switched["switched"] and host in one["hosts"]:
                for module, options in one["after"].items():
                    gone: dict[str, Any] = {} if before[one["link"]] else {"headers": []}
                    self._call(module, {**options, "installed": True, **gone}, variables)
        where = "Every link leads where it led before."
        return {**done, "failed": True, "msg": f"{why}{chr(10) if chr(10) in why else ' '}{where}"}
