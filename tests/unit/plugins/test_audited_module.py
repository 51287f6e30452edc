"""Which results of a module become a line of the audit file."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_claim import audit_file


class Module(audited_module.AuditedModule):
    """A module that is not started by Ansible."""

    def __init__(self) -> None:
        self.check_mode = False
        self._name = "test"

    def log(self, msg: str, log_args: Any = None) -> None:
        """Log nothing."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root audits")
@pytest.mark.parametrize(
    ("result", "is_told"),
    [
        ({"changed": True, "changes": ["installed openmpi 5.0.7"]}, True),
        ({"changed": False, "changes": ["installed openmpi 5.0.7"]}, False),  # a look at what is to be done
        ({"changed": True, "changes": []}, False),
        ({"changes": ["changed /etc/hosts"]}, True),  # of a module that failed behind it
    ],
)
def test_a_change_is_told_once_it_is_made(
    result: dict[str, Any], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(audit_file, "append", lines.append)
    Module()._audit(result)  # noqa: SLF001 - what both ends of a module call
    assert bool(lines) is is_told
