# SPDX-License-Identifier: GPL-3.0-or-later
"""Run several modules on a host, one after the other, as one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.validation import check_type_list
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.step_action import StepAction

_STEP = frozenset({"module", "options", "when", "proves"})
_OF_FAILURE = ("failed", "unreachable", "msg", "module_stderr", "module_stdout", "stderr")


class ActionModule(StepAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the sum of the results."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        steps = check_type_list(self._task.args.get("steps") or [])
        for step in steps:
            if not isinstance(step, dict) or set(step) - _STEP or not {"module", "options"} <= set(step):
                raise AnsibleActionFail(f"A step has a module and options, and may have 'when' and 'proves': {step!r}.")
        self._proofs = {str(step["module"]) for step in steps if boolean(step.get("proves", False))}
        chosen = [(str(one["module"]), one["options"]) for one in steps if boolean(one.get("when", True))]
        return {**result, **self._in_order(chosen, task_vars or {})}

    def _step(self, module: str, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run a module; of one that proves something, a failure alone counts."""
        if module not in self._proofs:
            return super()._step(module, arguments, variables)
        done = {} if self._task.check_mode else super()._step(module, arguments, variables)
        return {name: done[name] for name in _OF_FAILURE if name in done} if done.get("failed") else {}
