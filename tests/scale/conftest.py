"""One cluster of 256 nodes, never provisioned; it is made of namespaces, since as many containers are too many."""

from __future__ import annotations

import os
from collections.abc import Iterator

import netns_nodes
import pytest

NODES = 256


@pytest.fixture(scope="session")
def many() -> Iterator[netns_nodes.Nodes]:
    name = f"test-scale-{os.getpid()}"
    try:
        yield netns_nodes.up(name, NODES)
    finally:
        netns_nodes.down(name)
