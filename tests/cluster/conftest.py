"""Sandboxes for tests that need real nodes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl import sandbox as sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WITHOUT_STACK = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Callable[..., sandboxes.Sandbox]]:
    """Return ``start(label, **specification)``: a sandbox of this test run's own, removed when the run ends.

    The label tells the run's sandboxes apart; starting the same label again mends or grows that sandbox. Its nodes get
    MPI alone: NCCL, a framework and Horovod are gigabytes that only the tests about them need, with ``stack=True``.
    """
    started: set[str] = set()

    def start(label: str, *, stack: bool = False, **specification: Any) -> sandboxes.Sandbox:
        name = f"test-{label}-{os.getpid()}"
        if name not in started:
            sandboxes.down(name)  # of a killed run whose process number has come round again
            started.add(name)
        box = sandboxes.up(sandboxes.SandboxSpec(name=name, **specification))
        if not stack:
            variables = box.inventory.parent / "group_vars" / "all.yml"
            variables.parent.mkdir(exist_ok=True)
            variables.write_text(json.dumps(WITHOUT_STACK), encoding="utf-8")
        return box

    yield start
    for name in started:
        sandboxes.down(name)
