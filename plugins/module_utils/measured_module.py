# SPDX-License-Identifier: Apache-2.0
"""A module whose result says what the run has used of this node's processors."""

from __future__ import annotations

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import cpu_used


class MeasuredModule(AnsibleModule):
    """A module that adds ``cpu`` to its result, also where it fails."""

    def exit_json(self, **result: Any) -> NoReturn:
        """Add what was used, then end the module."""
        super().exit_json(**{**result, "cpu": cpu_used.used()})

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """Add what was used, then end the module."""
        super().fail_json(msg, **{**result, "cpu": cpu_used.used()})
