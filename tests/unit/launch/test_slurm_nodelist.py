"""Slurm's folded lists that name too much."""

from __future__ import annotations

import tracemalloc

import pytest
from clusterctl.launch.scheduler_env import unfolded
from clusterctl.support.errors import ConfigError


@pytest.mark.parametrize(
    "nodelist",
    [
        "node[1-999999999]",
        "node[0-99998]" + "[0-99998]" * 3,
        f"node[{','.join(['0-99998'] * 1000)}]",
        "node[0-9]" + "[0-9]" * 40,
    ],
)
def test_a_list_of_too_many_nodes_is_refused_in_little_memory(nodelist: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="names more than"):
            unfolded(nodelist)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
