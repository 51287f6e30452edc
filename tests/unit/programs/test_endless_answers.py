"""What another node or a tool prints without an end is cut off, so that it fills no memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_programs
import pytest

gpu_state, job_members, nccl_checks, rank_stacks = (
    node_programs.load(name) for name in ("gpu_state", "job_members", "nccl_checks", "rank_stacks")
)
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


@pytest.fixture(params=["", " >&2"], ids=["output", "errors"])
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "tool"
    path.write_text(f"#!/bin/sh\nhead -c 300000000 /dev/zero{request.param}\nexit 9\n")
    path.chmod(0o755)
    return str(path)


def test_a_tool_for_gpus_that_prints_without_end_is_no_answer(tool: str) -> None:
    with pytest.raises(gpu_state.StateError, match=r"tool (printed more than 16 MiB|ended with an error)"):
        gpu_state.look(tool)


def test_a_tool_for_stacks_that_prints_without_end_gives_none(tool: str) -> None:
    assert rank_stacks.with_tool("gdb", tool, 1, time.monotonic() + 20) == ""


def test_a_proof_of_nccl_that_prints_without_end_is_a_problem(tool: str) -> None:
    with pytest.raises(nccl_checks.CheckError, match="tool"):
        nccl_checks.proof(tool)
