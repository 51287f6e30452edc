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

import contextlib
import functools
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events

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
    "timedout",
    "told",
    "trees",
    "warnings",
    "watch",
)


_PROBLEM = "its answer is larger or more deeply nested than that of any module"
_CURE = "find out who changed its Python, or leave it out of the inventory"
_NO_ANSWER = {
    "failed": True,
    "msg": f"{_PROBLEM}; {_CURE}",
    "problems": [{"check": "answer", "problem": _PROBLEM, "cure": _CURE, "kind": "host"}],
}
_MOST_BYTES = 1 << 24  # of an event
_MOST_BYTES_OF_ALL = 1 << 29  # of one about the whole cluster
# Ansible keeps all that a module prints in memory. Beyond this limit the task fails, with the name of its host.
_MOST_MEMORY_OF_WORKER = 2 << 30  # bytes, beyond what it has of Ansible's main process
_LEAST_MEMORY = 4 << 30  # bytes, for Ansible's main process; it may have half of the machine's


_END_S = 5
_WITHOUT_MEMORY = (
    "Ansible needs more than half of this machine's memory; look at the hosts whose answers are too large, or run with "
    "fewer hosts (--limit)."
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
            _bound_memory(max(_LEAST_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2))
            threading.excepthook = _end_without_memory  # Ansible would wait for its thread of results without an end
            os.register_at_fork(after_in_child=functools.partial(_bound_memory, _MOST_MEMORY_OF_WORKER))
        self._play = ""
        self._began: dict[tuple[str, str], float] = {}
        self._unreadable: set[str] = set()

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
        unreadable = dict.fromkeys(self._unreadable, 1)
        data = {"failures": {**unreadable, **stats.failures}, "dark": dict(stats.dark)}
        run_events.write({"event": "playbook_on_stats", "created": _now(), "event_data": data})

    def _result(self, event: str, result: Any, **more: Any) -> None:
        task, host = result._task, str(result._host.get_name())  # noqa: SLF001 - the only names in all releases
        began = self._began.pop((host, _id(task)), None)
        duration = 0.0 if began is None else round(time.monotonic() - began, 6)
        try:
            res = {} if event == "runner_on_skipped" else _kept(result._result)  # noqa: SLF001 - as above
            self._tell(event, task, host=host, duration=duration, res=res, **more)
        except (RecursionError, run_events.SizeError):  # Ansible goes on with the host
            self._unreadable.add(host)
            self._tell("runner_on_failed", task, host=host, duration=duration, res=_NO_ANSWER)
        except MemoryError:
            _end_run()

    def _tell(self, event: str, task: Any, **more: Any) -> None:
        role = getattr(task, "_role", None)
        data = {
            "play": self._play,
            "role": str(role.get_name()) if role else "",
            "task": str(task.name or task.action),
            "task_action": str(getattr(task, "resolved_action", None) or task.action),
            **more,
        }
        most = _MOST_BYTES_OF_ALL if getattr(task, "run_once", False) else _MOST_BYTES
        run_events.write({"event": event, "created": _now(), "event_data": data}, most)


def _bound_memory(more: int) -> None:
    """Let this process take so many bytes more than it has; a kernel that does not tell of its memory sets no limit."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        has = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = has + more
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _end_without_memory(failure: threading.ExceptHookArgs) -> None:
    """End the run where a thread of Ansible ran out of memory; tell of another error as Python does."""
    if issubclass(failure.exc_type, MemoryError):
        _end_run()
    else:
        threading.__excepthook__(failure)


def _end_run() -> None:
    sys.stderr.write(f"[ERROR]: {_WITHOUT_MEMORY}\n\n")
    sys.stderr.flush()
    signal.alarm(_END_S)  # Ansible may wait for a lock that the thread had
    os.kill(os.getpid(), signal.SIGINT)


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
