# SPDX-License-Identifier: GPL-3.0-or-later
"""Run node_facts on a node between two readings of the controller's clock; an unreachable node is an answer."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import node_record_gate
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events

run_events.refuse_keys()  # this is the action of the first task, which Ansible's main process loads


class ActionModule(ActionBase):  # type: ignore[misc]
    """Never fails: preflight_judge reports why a node could not be looked at, with all other problems."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``node`` (None without a valid one), ``before_s``, ``after_s``, ``failure`` and ``invalid``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        before_s = time.time()
        failure = ""
        try:
            answer: dict[str, Any] = self._execute_module(
                module_name="clusterctl.hpc.node_facts", module_args=dict(self._task.args), task_vars=task_vars
            )
        except AnsibleError as error:
            answer, failure = {}, str(error)
        after_s = time.time()
        if "node" not in answer and not failure:
            said = (answer.get(key) for key in ("module_stderr", "module_stdout", "msg"))
            failure = "\n".join(str(text) for text in said if text) or "the probe gave no answer"
        node, invalid = answer.get("node"), ""
        try:
            node = node and node_record_gate.passed(node)
        except node_record_gate.RecordError as error:
            node, invalid = None, str(error)
        times = {"before_s": before_s, "after_s": after_s}
        result.update(changed=False, node=node, failure=failure, invalid=invalid, **times)
        return result
