"""What is started again after a run that a node has stopped."""

from __future__ import annotations

from clusterctl.jobs.relaunch import RelaunchOptions, relaunched
from clusterctl.jobs.run import TIMED_OUT, RunOptions
from clusterctl.jobs.watched_run import RunEnd
from clusterctl.launch.compose import Wish
from clusterctl.model.hosts import InventoryOptions

NODES = tuple(f"node{number}" for number in range(1, 9))
OPTIONS = RunOptions(Wish(("true",)), InventoryOptions(), ends_at_stall=True)


class Cluster:
    """Nodes of which one stops every job that it is part of."""

    def __init__(self, bad: str, *, named: bool) -> None:
        self.bad, self.named = bad, named
        self.limits: list[str | None] = []
        self.told: list[str] = []

    def start(self, options: RunOptions) -> RunEnd:
        limit = options.inventory.limit
        self.limits.append(limit)
        words = (limit or "all").split(",")
        hosts = [name for name in (NODES if "all" in words else words) if f"!{name}" not in words]
        if self.bad in hosts:
            return RunEnd(TIMED_OUT, tuple(hosts), (self.bad,) if self.named else (), stood_still=True)
        return RunEnd(0, tuple(hosts))

    def run(self, **asked: object) -> int:
        return relaunched(self.start, OPTIONS, RelaunchOptions(**asked), self.told.append)  # type: ignore[arg-type]


def test_a_named_node_is_left_out_and_the_job_ends_well() -> None:
    cluster = Cluster("node7", named=True)
    assert cluster.run(restarts=2) == 0
    assert cluster.limits == [None, "all,!node7"]
    assert cluster.told == ["Starting again without node7; 1 more restarts are allowed."]


def test_without_a_suspect_nothing_is_started_again() -> None:
    cluster = Cluster("node7", named=False)
    assert cluster.run(restarts=2) == TIMED_OUT
    assert cluster.limits == [None]


def test_a_search_finds_the_node_by_halves() -> None:
    cluster = Cluster("node7", named=False)
    assert cluster.run(search=True) == TIMED_OUT
    assert len(cluster.limits) == 7
    assert cluster.told[-1] == "Search: the program stops on node7. To run without it: --exclude node7."
    cluster = Cluster("node7", named=False)
    assert cluster.run(search=True, restarts=1) == 0
    assert cluster.limits[-1] == "all,!node7"


def test_the_last_restart_keeps_the_code_of_the_job() -> None:
    cluster = Cluster("node7", named=True)
    assert cluster.run(restarts=0) == TIMED_OUT
    assert cluster.limits == [None]
