"""One sandbox of as many nodes as it can have, never provisioned."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox.model import MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def many() -> Iterator[sandboxes.Sandbox]:
    name = f"test-scale-{os.getpid()}"
    sandboxes.down(name)
    try:
        yield sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=MAX_NODES))
    finally:
        sandboxes.down(name)
