# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0 or later (see COPYING).
"""Tell clusterctl what happens in a run, over a channel that no text of a node can enter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: run_events
type: notification
short_description: Write the events of a run into a file for clusterctl
description:
  - Writes one JSON document for each event into the file that E(CLUSTERCTL_EVENTS) names. Without that variable it does
    nothing.
  - C(clusterctl) enables it. It is internal.
author: The clusterctl authors (!UNKNOWN)
version_added: "0.1.0"
"""

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events

if TYPE_CHECKING:
    from collections.abc import Mapping

# What clusterctl reads of a result; everything else (arguments, output) may hold a secret.
_KEPT = (
    "argument_errors",
    "assertion",
    "censored",
    "changed",
    "changes",
    "diff",
    "failed",
    "members",
    "module_stderr",
    "msg",
    "next_host_key",
    "planned_trees",
    "problems",
    "stderr",
    "told",
    "trees",
    "warnings",
    "watch",
)


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core carries no types
    """Runs in Ansible's main process, which knows the task and the host of each result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "clusterctl.hpc.run_events"

    def __init__(self) -> None:
        """Be silent in a run that clusterctl did not start."""
        super().__init__()
        self.disabled = not run_events.path()
        if not self.disabled:
            run_events.refuse_keys()
            run_events.look_less_often()
        self._play = ""
        self._began: dict[tuple[str, str], float] = {}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember the play: tasks outside roles bear its name."""
        self._play = str(play.get_name())

    def v2_playbook_on_task_start(self, task: Any, is_conditional: Any) -> None:  # noqa: ARG002 - Ansible's signature
        """Tell that a task begins."""
        self._tell("playbook_on_task_start", task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Tell that a handler begins."""
        self._tell("playbook_on_task_start", task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Tell that a host begins a task."""
        name = str(host.get_name())
        self._began[name, _id(task)] = time.monotonic()
        self._tell("runner_on_start", task, host=name)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Tell a result."""
        self._result("runner_on_ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Tell a failure."""
        self._result("runner_on_failed", result, ignore_errors=bool(ignore_errors))

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Tell that a host skips a task."""
        self._result("runner_on_skipped", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Tell that a host is lost."""
        self._result("runner_on_unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Tell how the hosts ended, by Ansible's own count."""
        data = {"failures": dict(stats.failures), "dark": dict(stats.dark)}
        run_events.write({"event": "playbook_on_stats", "created": _now(), "event_data": data})

    def _result(self, event: str, result: Any, **more: Any) -> None:
        task, host = result._task, str(result._host.get_name())  # noqa: SLF001 - the only names in all releases
        began = self._began.pop((host, _id(task)), None)
        duration = 0.0 if began is None else round(time.monotonic() - began, 6)
        res = {} if event == "runner_on_skipped" else _kept(result._result)  # noqa: SLF001 - as above
        self._tell(event, task, host=host, duration=duration, res=res, **more)

    def _tell(self, event: str, task: Any, **more: Any) -> None:
        role = getattr(task, "_role", None)
        data = {
            "play": self._play,
            "role": str(role.get_name()) if role else "",
            "task": str(task.name or task.action),
            "task_action": str(getattr(task, "resolved_action", None) or task.action),
            **more,
        }
        run_events.write({"event": event, "created": _now(), "event_data": data})


def _id(task: Any) -> str:
    return str(task._uuid)  # noqa: SLF001 - Ansible has no other name for it


def _kept(res: Mapping[str, Any]) -> dict[str, Any]:
    """Return what clusterctl reads of a result and of the items of its loop."""
    found = {key: res[key] for key in _KEPT if key in res}
    if "_ansible_delegated_vars" in res:
        found["_ansible_delegated_vars"] = True
    artifacts = res.get("artifacts")
    if isinstance(artifacts, dict):  # of all else that is said of them, the whole result has the sum
        failed = {name: one for name, one in artifacts.items() if isinstance(one, dict) and one.get("failed")}
        found["artifacts"] = {name: {"role": one.get("role"), "failed": True} for name, one in failed.items()}
    items = res.get("results")
    if isinstance(items, (list, tuple)):
        found["results"] = [
            {key: item[key] for key in _KEPT if key in item} for item in items if isinstance(item, dict)
        ]
    return found


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
