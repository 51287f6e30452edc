# SPDX-License-Identifier: Apache-2.0
"""The audit line of a node: who changed what, by which run, in a file that root alone writes, and in the syslog."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import selinux_labels
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_claim import audit_file

_RUN = "CLUSTERCTL_RUN"  # run, user and controller as JSON; the playbooks set it


class AuditedModule(AnsibleModule):
    """A module whose changes stand in the audit file and in the syslog, also when it fails after them."""

    keeps_file = True  # an uninstall, which removes the file, is in the syslog alone

    def exit_json(self, **result: Any) -> NoReturn:
        """Give what was written its SELinux contexts, write the audit line, then end the module."""
        self._label(result)
        self._audit(result)
        super().exit_json(**result)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """Write the audit line of what was changed before the failure, then end the module."""
        self._audit(result)
        super().fail_json(msg, **result)

    def _label(self, result: Dict[str, Any]) -> None:
        if not result.get("changed") or self.check_mode or os.geteuid() != 0:
            return
        problem = selinux_labels.relabel(entry for entry in result.get("watch") or () if isinstance(entry, dict))
        if problem:
            self.warn(problem)

    def _audit(self, result: Dict[str, Any]) -> None:
        changes = [str(change) for change in result.get("changes") or ()]
        looks_only = result.get("changed") is False  # its changes are those that another call will make
        if not changes or looks_only or self.check_mode or os.geteuid() != 0:
            return
        text = audit_file.line(os.environ.get(_RUN, ""), self._name, changes, audit_file.login_address(), time.time())
        try:
            if self.keeps_file:
                audit_file.append(text)
        except OSError as error:
            self.warn(f"The audit line was not written: {audit_file.FILE}: {error.strerror}.")
        self.log(f"audit {text}")
