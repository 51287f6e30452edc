"""What is told of a machine that has too much to do."""

from __future__ import annotations

import os

import pytest
from clusterctl.support import machine_load


@pytest.mark.parametrize(("load", "words"), [(7.9, ""), (83.0, "this machine is busy (a load of 83 on 2 cores)")])
def test_a_machine_is_busy_with_many_processes_for_each_core(
    load: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert machine_load.busy_words() == words
