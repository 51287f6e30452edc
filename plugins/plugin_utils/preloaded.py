# SPDX-License-Identifier: GPL-3.0-or-later
"""Load Jinja's filters and tests in Ansible's main process, so that its workers have them from the start.

It also has Ansible keep what it would make anew in each run, see :mod:`template_code` and :mod:`module_zips`. And it
has Ansible wait without using a processor (see :mod:`free_worker` too): while workers are at work, its main process
looks a thousand times a second whether one of them has ended.

Ansible forks a worker for each task of each host. A worker that needs a filter loads all files of filters, and compiles
those of a collection anew. The main process imports an action before it forks workers for it.
"""

from __future__ import annotations

import contextlib
import gc
import os

from ansible import constants  # type: ignore[import-untyped]
from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.loader import filter_loader, test_loader  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import (
    free_worker,
    module_zips,
    refused_keys,
    skipped_tasks,
    template_code,
)

_POLL_SETTING = "DEFAULT_INTERNAL_POLL_INTERVAL"


def load() -> None:
    """Load all filters of this collection, and all filters and tests of Ansible."""
    refused_keys.use()
    template_code.use()
    module_zips.use()
    free_worker.use()  # before the next one: a skipped task needs no worker
    skipped_tasks.use()
    _wait(os.environ.get(free_worker.VARIABLE, ""))
    for loader, name in ((filter_loader, "clusterctl.hpc.artifact_builder"), (test_loader, "ansible.builtin.match")):
        try:
            loader.get(name)
        except (AnsibleError, KeyError):  # the task that needs it says why
            break
    _share_memory()


def _share_memory() -> None:
    """Keep the garbage collector of each worker from writing into the memory that it shares with the main process."""
    if os.environ.get(free_worker.VARIABLE):
        gc.collect()
        gc.freeze()


def _wait(seconds: str) -> None:
    """Set how long Ansible waits between two looks, unless the user's configuration says it."""
    with contextlib.suppress(AnsibleError, AttributeError, ValueError):
        if seconds and constants.config.get_config_value_and_origin(_POLL_SETTING)[1] == "default":
            setattr(constants, _POLL_SETTING, float(seconds))
