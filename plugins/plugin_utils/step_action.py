# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins that call several modules on one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.planned import sum_of


class StepAction(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """An action that calls modules one after the other, and returns their results as one."""

    _supports_check_mode = True

    def _in_order(self, steps: Iterable[tuple[str, Mapping[str, Any]]], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the sum of the results; the first step that fails is the last one.

        Args:
            steps: modules of this collection, each with its arguments.
            variables: of the task.
        """
        done: list[dict[str, Any]] = []
        for module, arguments in steps:
            done.append(
                self._execute_module(
                    module_name=f"clusterctl.hpc.{module}", module_args=dict(arguments), task_vars=variables
                )
            )
            if done[-1].get("failed") or done[-1].get("unreachable"):
                break
        return sum_of(*done)
