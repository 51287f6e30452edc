"""Fixtures of all unit tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import program_forks
import pytest
from clusterctl.inventory import ansible_call

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _ansible_reads_inventories_in_forks() -> Iterator[None]:
    """Hundreds of tests read an inventory; those that start clusterctl itself start ansible-inventory too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ansible_call, "subprocess", SimpleNamespace(run=program_forks.run))
        yield
