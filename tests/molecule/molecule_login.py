"""A fixture for every scenario's verifier: what a plain ssh session of the login user sees, no sudo in between."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach


@pytest.fixture(scope="session")
def login() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return ``login(node, *argv)``: a fresh, non-interactive session, as mpirun and ansible open them."""
    cluster = ansible_inventory.load(Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "inventory" / "sandbox.ini")

    def run(node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        command = reach.ssh_command(cluster.host(node), argv)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run
