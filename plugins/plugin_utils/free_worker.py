# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a free worker of Ansible without using a processor.

Where more hosts take part than Ansible has workers (``forks``), its main process looks thousands of times a second
whether a worker has ended. It takes the time from the workers.
"""

from __future__ import annotations

import functools
import os
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

VARIABLE = "CLUSTERCTL_POLL_S"  # of the environment: seconds between two looks; without it, nothing changes
_MOST_S = 1.0  # then Ansible looks itself


def use() -> bool:
    """Have Ansible's main process wait so; tells whether it does."""
    if not os.environ.get(VARIABLE):
        return False
    try:
        from ansible.plugins.strategy import StrategyBase  # noqa: PLC0415 - read by the main process alone

        queue = StrategyBase._queue_task  # noqa: SLF001
    except (ImportError, AttributeError):
        return False

    @functools.wraps(queue)
    def queue_task(strategy: Any, *args: Any) -> None:
        wait_for_one(getattr(strategy, "_workers", ()))
        queue(strategy, *args)

    StrategyBase._queue_task = queue_task  # noqa: SLF001
    return True


def wait_for_one(workers: Sequence[BaseProcess | None]) -> None:
    """Wait until one of the workers has ended, for a second at most; at once where one is missing or has ended."""
    running = [worker for worker in workers if worker is not None]
    try:
        if 0 < len(running) == len(workers) and all(worker.is_alive() for worker in running):
            connection.wait([worker.sentinel for worker in running], _MOST_S)
    except ValueError:  # closed by its strategy
        return
