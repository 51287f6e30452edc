from __future__ import annotations

from clusterctl.launch import mpirun


def test_the_launch_node_comes_first() -> None:
    slots = mpirun.ordered({"node1": 2, "node2": 1, "node3": 4}, "node2")
    assert mpirun.words(slots) == "node2:1,node1:2,node3:4"
    assert mpirun.placement(slots) == ("node2", "node1", "node1", "node3", "node3", "node3", "node3")
