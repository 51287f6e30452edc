"""Who plays which hosts, where several controllers share a run."""

from __future__ import annotations

import pytest
from clusterctl.provisioning import controllers
from clusterctl.provisioning.controllers import OWN
from hypothesis import given
from hypothesis import strategies as st

HOSTS = ("node1", "node2", "node3", "node4", "node5")


def test_the_first_controller_keeps_what_no_worker_names() -> None:
    found = controllers.by_pattern(HOSTS, {"ops2": {"node4", "node2", "elsewhere"}, "ops3": {"node5"}})
    assert found == {OWN: ("node1", "node3"), "ops2": ("node2", "node4"), "ops3": ("node5",)}
    assert controllers.words(found) == "this controller: node[1,3]; ops2: node[2,4]; ops3: node5"


def test_a_host_of_two_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ops2 and ops3 both name node4; leave each host to one of the workers\.$"):
        controllers.by_pattern(HOSTS, {"ops2": {"node4"}, "ops3": {"node4", "node5"}})


@given(st.integers(0, 40), st.integers(1, 5), st.sets(st.integers(0, 40)))
def test_equal_parts_have_every_host_once(count: int, workers: int, here: set[int]) -> None:
    hosts = [f"node{number}" for number in range(count)]
    names = [f"ops{number}" for number in range(workers)]
    only_here = {f"node{number}" for number in here} & set(hosts)
    found = controllers.equal(hosts, names, only_here)
    assert list(found) == [OWN, *names]
    assert sorted(name for its in found.values() for name in its) == sorted(hosts)
    assert only_here <= set(found[OWN])
    sizes = [len(its) for its in found.values()]
    if not only_here:
        assert max(sizes) - min(sizes) <= 1


def test_hosts_that_are_done_leave_the_shares() -> None:
    assert controllers.without({OWN: ("node1",), "ops2": ("node2", "node3")}, {"node1", "node3"}) == {
        OWN: (),
        "ops2": ("node2",),
    }
