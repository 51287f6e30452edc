"""Ansible's main process waits for a free worker."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import preloaded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess


@pytest.fixture
def workers() -> Iterator[list[BaseProcess]]:
    started = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _unused in range(3)]
    for worker in started:
        worker.start()
    yield started
    for worker in started:
        worker.kill()
        worker.join()


def test_it_waits_for_the_first_that_ends(workers: list[BaseProcess]) -> None:
    workers[1].terminate()
    while all(worker.is_alive() for worker in workers):
        preloaded.wait_for_one(workers)
    assert [worker.is_alive() for worker in workers] == [True, False, True]


def test_it_does_not_wait_where_a_worker_is_free(workers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded.connection, "wait", lambda *_unused: pytest.fail("it waited"))
    preloaded.wait_for_one([*workers, None])
    preloaded.wait_for_one([])
    workers[0].terminate()
    workers[0].join()
    preloaded.wait_for_one(workers)
    workers.pop(0).close()
