"""The look at the ranks of a job on a node, at real processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from clusterctl.support import content

if TYPE_CHECKING:
    import pytest

sys.path.insert(0, str(content.role_files("validation")))
import rank_look


def test_every_rank_of_a_large_node_is_listed_and_only_some_stacks_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_look, "STACKS_S", 0.0)  # the kernel's view alone
    job, count = f"unit-look-{os.getpid()}", rank_look.MOST_STACKS + 2
    started = [
        subprocess.Popen(["sleep", "300"], env={**os.environ, "CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": str(rank)})
        for rank in range(count)
    ]
    try:
        found: dict[str, Any] = rank_look.answer(job, with_stacks=True)
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one["rank"] for one in found["ranks"]] == list(range(count))
    assert [one["rank"] for one in found["stacks"]] == list(range(rank_look.MOST_STACKS))
