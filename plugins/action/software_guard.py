# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out, once for all hosts, whether a version in use is replaced; refuse it where too many hosts were lost."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.module_utils.preflight_rules import shortened


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """Its options are ``may_lose``, how many hosts may be lost ('' is any number), and ``refuse``.

    Without ``refuse``, what the task with it registered as ``software_guard`` says whether a version is replaced.
    """

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``guarded``, or fail.

        A first installation or a repair replaces no version. There the other hosts go on without a host that failed.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        here = variables["ansible_play_hosts"]
        lost = [host for host in variables["ansible_play_hosts_all"] if host not in here]
        refuse = bool(self._task.args.get("refuse", True))
        if refuse:
            checked = [variables["hostvars"][host].get("software_checked") or {} for host in here]
            guarded = any(replaces(one.get("before")) for one in checked)
        else:  # a host that was lost since then counts as it did before
            guarded = bool((variables.get("software_guard") or {}).get("guarded"))
        may_lose = str(self._task.args.get("may_lose", ""))
        result.update(changed=False, guarded=guarded, lost=lost, too_many=too_many(lost, may_lose) and guarded)
        if result["too_many"] and refuse:
            words = f"{shortened(lost)} {'is' if len(lost) == 1 else 'are'} not ready for it; see the message there."
            result.update(failed=True, msg=f"No link is switched, because {words}")
        return result


def replaces(before: Any) -> bool:
    """Whether a link led to a version before; what a host says of its links may have any form."""
    return isinstance(before, dict) and any(bool(tree) for tree in before.values())


def too_many(lost: list[str], may_lose: str) -> bool:
    """Whether more hosts were lost than may be."""
    return may_lose != "" and len(lost) > int(may_lose)
