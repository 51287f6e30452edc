from __future__ import annotations

from clusterctl.launch import hostfile


def test_the_hostfile_has_the_launch_node_first() -> None:
    slots = hostfile.ordered({"node1": 2, "node2": 1, "node3": 4}, "node2")
    assert hostfile.render(slots) == "node2 slots=1\nnode1 slots=2\nnode3 slots=4\n"
    assert hostfile.placement(slots) == ("node2", "node1", "node1", "node3", "node3", "node3", "node3")
