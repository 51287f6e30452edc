"""What another node prints without an end is cut off, so that it fills no memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import node_programs
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

job_members = node_programs.load("job_members")
pytestmark = pytest.mark.programs
_ENDLESS = "head -c 300000000 /dev/zero; exec sleep 20"
_MOST = 100 << 20  # bytes of this process


def _peer(program: str) -> dict[str, Any]:
    return {"name": "node2", "whole": True, "argv": ["sh", "-c", program]}


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < _MOST


def test_an_endless_answer_to_a_sweep_is_a_problem_of_the_peer() -> None:
    began = time.monotonic()
    answer = job_members.sweep_peer(_peer(_ENDLESS), [])
    assert "MiB" in answer["problem"]
    assert time.monotonic() - began < 10


def test_a_peer_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_members, "PEER_WAIT_S", 0.5)
    began = time.monotonic()
    assert "0.5 s" in job_members.sweep_peer(_peer("sleep 20"), [])["problem"]
    assert time.monotonic() - began < 10


def test_the_answer_of_a_peer_is_its_own() -> None:
    answer = job_members.sweep_peer(_peer("""echo '{"host": "node9", "killed": 2}'"""), [])
    assert answer == {"event": "swept", "host": "node2", "killed": 2}
