"""Fixtures of all unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import program_forks
import pytest
from clusterctl.inventory import ansible_call


@pytest.fixture(scope="session", autouse=True)
def _a_state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each inventory that is read enters the index of the state folder, which is not to be that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ansible_reads_inventories_in_forks() -> Iterator[None]:
    """Hundreds of tests read an inventory; those that start clusterctl itself start ansible-inventory too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ansible_call, "subprocess", SimpleNamespace(run=program_forks.run))
        yield
