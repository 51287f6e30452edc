# SPDX-License-Identifier: GPL-3.0-or-later
"""Load Jinja's filters and tests in Ansible's main process, so that its workers have them from the start.

Ansible forks a worker for each task of each host. A worker that needs a filter loads all files of filters, and compiles
those of a collection anew. The main process imports an action before it forks workers for it.
"""

from __future__ import annotations

from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.loader import filter_loader, test_loader  # type: ignore[import-untyped]


def load() -> None:
    """Load all filters of this collection, and all filters and tests of Ansible."""
    for loader, name in ((filter_loader, "clusterctl.hpc.artifact_builder"), (test_loader, "ansible.builtin.match")):
        try:
            loader.get(name)
        except (AnsibleError, KeyError):  # the task that needs it says why
            return
