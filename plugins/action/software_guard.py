# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out, once for all hosts, whether a version in use is replaced, and whether too many hosts were lost for it."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.module_utils.preflight_rules import shortened


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """Its options are ``may_lose``, how many hosts may be lost ('' is any number), and ``switched``.

    Once the links are switched, what the task before it registered as ``software_guard`` says whether a version is
    replaced.
    """

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``guarded``, ``too_many`` and ``refused``: why no host may switch, which each host then tells; or ''.

        A first installation or a repair replaces no version. There the other hosts go on without a host that failed.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        here = variables["ansible_play_hosts"]
        lost = [host for host in variables["ansible_play_hosts_all"] if host not in here]
        if self._task.args.get("switched"):  # a host that was lost since then counts as it did before
            guarded = bool((variables.get("software_guard") or {}).get("guarded"))
        else:
            staged = [variables["hostvars"][host].get("software_staged") for host in here]
            guarded = not self._task.check_mode and any(map(replaces, staged))  # a check switches no link
        is_too_many = guarded and too_many(lost, str(self._task.args.get("may_lose", "")))
        words = f"{shortened(lost)} {'is' if len(lost) == 1 else 'are'} not ready for it; see the message there."
        refused = f"No link is switched, because {words}" if is_too_many else ""
        return {**result, "changed": False, "guarded": guarded, "too_many": is_too_many, "refused": refused}


def replaces(staged: Any) -> bool:
    """Whether a host leaves a version, by its result of M(clusterctl.hpc.software_stage), which may have any form."""
    return isinstance(staged, dict) and staged.get("replaces") is True


def too_many(lost: list[str], may_lose: str) -> bool:
    """Whether more hosts were lost than may be."""
    return may_lose != "" and len(lost) > int(may_lose)
