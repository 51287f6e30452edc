# SPDX-License-Identifier: Apache-2.0
"""Run a module that lays out files: its result, its watch entries, and no file content in the syslog."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module, file_entry, file_stage


class QuietModule(audited_module.AuditedModule):
    """A module whose arguments hold the contents of files; neither the syslog nor the result shows them."""

    def log(self, msg: str, log_args: Any = None) -> None:
        """Log that the module ran, without its arguments."""
        super().log(f"{self._name} invoked" if log_args else msg)

    @property
    def shown_arguments(self) -> Dict[str, Any]:
        """The invocation in the result: only paths and states."""
        files = self.params.get("files")
        if files is None:
            return {"path": self.params.get("path")}
        return {"files": [{"path": given["path"], "state": given["state"]} for given in files]}


class _Selinux:
    """SELinux contexts by the functions of AnsibleModule."""

    def __init__(self, module: QuietModule) -> None:
        self.module = module

    def carry(self, target: str, staged: str) -> None:
        """Give the staged file the context of its target, or the policy's context for a new target."""
        there = os.path.lexists(target)  # selinux_context ends the module for a missing path
        context = self.module.selinux_context(target) if there else self.module.selinux_default_context(target)
        self.module.set_context_if_different(staged, context, changed=False)


def run(
    module: QuietModule, entries: Callable[[], List[file_entry.Entry]], verify: Callable[[], str] = lambda: ""
) -> None:
    """Lay out the entries and end the module with the collection's usual result.

    Args:
        module: the running module.
        entries: makes the entries; its StageError is the module's failure.
        verify: runs when all is in place, never in check mode; returns a sentence where the effect is missing.
    """
    invocation = {"module_args": module.shown_arguments}
    try:
        outcome = file_stage.apply(
            entries(),
            check_mode=module.check_mode,
            want_diff=module._diff,  # noqa: SLF001 - the documented way for a module to learn of --diff
            selinux=_Selinux(module) if module.selinux_enabled() else None,
        )
    except file_entry.StageError as error:
        module.fail_json(msg=str(error), changes=[], watch=[], invocation=invocation)
    result: Dict[str, Any] = {
        "changed": bool(outcome.changes),
        "changes": outcome.changes,
        "watch": outcome.watch,
        "invocation": invocation,
    }
    if outcome.backups:
        result["backups"] = outcome.backups
    if module._diff:  # noqa: SLF001 - as above
        result["diff"] = outcome.diff
    problem = "" if module.check_mode else verify()
    if problem:
        module.fail_json(msg=problem, **{**result, "watch": []})
    module.exit_json(**result)
