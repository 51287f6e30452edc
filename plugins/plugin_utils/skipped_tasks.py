# SPDX-License-Identifier: GPL-3.0-or-later
"""Find in Ansible's main process that a task is skipped on a host, so that no worker is forked to find it.

Ansible forks a worker for each task of each host, and the worker then looks at the conditions of the task. Two fifths
of the tasks of a first provision end there. This looks at them before the fork, with the variables that the worker
would have. A task that is not certainly skipped goes its usual way, and so does each task of a user's own playbook.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import kept_folder

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "CLUSTERCTL_SKIP_EARLY"  # of the environment; without it, nothing changes


def use() -> bool:
    """Look at conditions in the main process; tells whether it does.

    It works with ansible-core 2.19 and 2.20. With any other, nothing changes.
    """
    if not os.environ.get(VARIABLE):
        return False
    try:
        origin = kept_folder.origin_reader()
        from ansible.executor.task_result import _RawTaskResult  # noqa: F401, PLC0415 - not in 2.21
        from ansible.plugins.strategy import StrategyBase  # noqa: PLC0415 - read by the main process alone

        queue = StrategyBase._queue_task  # noqa: SLF001
        if queue.__module__ != StrategyBase.__module__:  # used already
            return False
    except (ImportError, AttributeError):
        return False

    def queue_task(strategy: Any, host: Any, task: Any, task_vars: dict[str, Any], play_context: Any) -> None:
        if may_be_looked_at(task, origin):
            try:
                result = _skipped(strategy, task, task_vars, play_context)
                if result is not None:
                    _tell(strategy, host, task, task_vars, play_context, result)
                    return
            except Exception:  # noqa: BLE001, S110 - a worker meets it again, and reports it
                pass
        queue(strategy, host, task, task_vars, play_context)

    StrategyBase._queue_task = queue_task  # noqa: SLF001
    return True


def may_be_looked_at(task: Any, origin: Callable[[object], str]) -> bool:
    """Tell whether the conditions are the collection's own, and decide alone whether the task is skipped.

    Args:
        task: Ansible's task.
        origin: returns the path of the file that a text stands in, '' where that is unknown.
    """
    conditions = task.when
    return (
        bool(conditions)
        and task.loop is None
        and not task.loop_with
        and task.delegate_to is None
        and not task.no_log
        and all(isinstance(condition, bool) or kept_folder.holds(origin(condition)) for condition in conditions)
    )


def _skipped(strategy: Any, task: Any, variables: dict[str, Any], play_context: Any) -> dict[str, Any] | None:
    """Return the result of a task that is skipped for certain, as a worker would; None of any other."""
    from ansible._internal._display_utils import DeferredWarningContext  # noqa: PLC0415 - not in 2.18
    from ansible._internal._task import TaskContext  # noqa: PLC0415 - as above
    from ansible._internal._templating._engine import TemplateEngine  # noqa: PLC0415 - as above

    known = {**variables, "ansible_search_path": task.get_search_path()}
    templar = TemplateEngine(loader=strategy._loader, variables=known)  # noqa: SLF001
    with TaskContext(task), DeferredWarningContext(variables=known) as warned:
        context = play_context.set_task_and_variable_override(task=task, variables=known, templar=templar)
        context.update_vars(known)
        why: dict[str, Any] = {}
        goes_on = task._resolve_conditional(task.when, known, result_context=why)  # noqa: SLF001
        if goes_on or warned.get_warnings() or warned.get_deprecation_warnings():
            return None
    return {"changed": False, "skipped": True, "skip_reason": "Conditional result was False", **why}


def _tell(
    strategy: Any, host: Any, task: Any, variables: dict[str, Any], play_context: Any, result: dict[str, Any]
) -> None:
    """Give the strategy the result, as a worker would, and count it."""
    from ansible.executor.task_result import _RawTaskResult  # noqa: PLC0415 - not in 2.18

    told = _RawTaskResult(host=host, task=task, return_data=result, task_fields=task.dump_attrs())
    strategy._queued_task_cache[(host.name, task._uuid)] = {  # noqa: SLF001
        "host": host,
        "task": task,
        "task_vars": variables,
        "play_context": play_context,
    }
    strategy._tqm.send_callback("v2_runner_on_start", host, task)  # noqa: SLF001
    strategy._final_q.send_task_result(told)  # noqa: SLF001
    strategy._pending_results += 1  # noqa: SLF001 - the main process looks for it after this alone
