"""Sandboxes for tests that need real nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl import sandbox as sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Callable[..., sandboxes.Sandbox]]:
    """Return ``start(label, **specification)``: a sandbox of this test run's own, removed when the run ends.

    The label tells the run's sandboxes apart; starting the same label again mends or grows that sandbox.
    """
    started: set[str] = set()

    def start(label: str, **specification: Any) -> sandboxes.Sandbox:
        name = f"test-{label}-{os.getpid()}"
        if name not in started:
            sandboxes.down(name)  # of a killed run whose process number has come round again
            started.add(name)
        return sandboxes.up(sandboxes.SandboxSpec(name=name, **specification))

    yield start
    for name in started:
        sandboxes.down(name)
