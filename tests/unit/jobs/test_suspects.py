"""What is told of a rank that was killed, and of nodes that lacked memory."""

from __future__ import annotations

import pytest
from clusterctl.analysis.rank_deaths import RankDeath
from clusterctl.jobs import suspects


def test_counts_that_grew_are_those_that_were_known_before() -> None:
    now = {"node1": 3, "node2": 1, "node3": 0, "node4": -1, "node5": 2}
    assert suspects.grown(now, {"node1": 1, "node2": -1, "node3": 2, "node4": 0}) == {"node1": 2}


def test_a_node_that_lost_processes_is_told() -> None:
    assert (
        suspects.killed_words({"node3": 1})
        == "node3 lost 1 process to the kernel while the job ran, for lack of memory"
    )
    words = "node3 lost 1 process, node4 lost 2 processes to the kernel while the job ran, for lack of memory"
    assert suspects.killed_words({"node3": 1, "node4": 2}) == words


@pytest.mark.parametrize(
    ("node", "killed", "facts", "words"),
    [
        ("gpu-c", 0, (), "gpu-c rank 4 was ended by SIGKILL; who sent it is not known"),
        ("", 0, (), "host3 rank 4 was ended by SIGKILL; who sent it is not known"),
        ("gpu-c", 1, (), "gpu-c rank 4 was ended by SIGKILL: the kernel has killed 1 process of its control group "),
        (
            "gpu-c",
            1,
            ("gpu-c: python ran out of memory",),
            "gpu-c rank 4 was ended by SIGKILL: the kernel's log tells ",
        ),
    ],
)
def test_a_death_has_the_inventorys_name_and_its_reason(
    node: str, killed: int, facts: tuple[str, ...], words: str
) -> None:
    assert suspects.death_words(RankDeath(4, "host3", 9), node, killed, facts).startswith(words)
