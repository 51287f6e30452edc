"""What is started again after a run that a node has stopped."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.jobs.relaunch import RelaunchOptions, most_runs, relaunched
from clusterctl.jobs.run import RunOptions
from clusterctl.jobs.watched_run import RunEnd
from clusterctl.launch.compose import JobOptions
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.job_outcome import TIMED_OUT

NODES = tuple(f"node{number}" for number in range(1, 9))
OPTIONS = RunOptions(JobOptions(("true",)), InventoryOptions(), ends_at_stall=True)


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


def test_a_restart_has_its_share_of_the_ranks_and_a_launch_node_that_is_left() -> None:
    cluster = Cluster("node7", named=True)
    for launch_node, expected in (("node7", None), ("node2", "node2")):
        started: list[RunOptions] = []

        def start(options: RunOptions, started: list[RunOptions] = started) -> RunEnd:
            started.append(options)
            return cluster.start(options)

        options = replace(OPTIONS, wish=JobOptions(("true",), ranks=16), launch_node=launch_node)
        assert relaunched(start, options, RelaunchOptions(restarts=1), cluster.told.append) == 0
        assert [(one.wish.ranks, one.launch_node) for one in started] == [(16, launch_node), (14, expected)]
    assert cluster.told[-1] == "Starting again without node7, with 14 ranks; 0 more restarts are allowed."


class Boundary(Cluster):
    """Nodes that stop a job with two given ones together, or on too few nodes for it."""

    def __init__(self, pair: tuple[str, str], *, fails_below: int = 0) -> None:
        super().__init__("", named=False)
        self.pair, self.fails_below = set(pair), fails_below
        self.deadlines: list[float | None] = []
        self.ranks: list[int | None] = []

    def start(self, options: RunOptions) -> RunEnd:
        hosts = super().start(options).hosts
        self.deadlines.append(options.timeout_s)
        self.ranks.append(options.wish.ranks)
        if len(hosts) < self.fails_below:
            return RunEnd(3, hosts)
        if self.pair <= set(hosts):
            return RunEnd(TIMED_OUT, hosts, stood_still=True)
        return RunEnd(TIMED_OUT, hosts)


def test_a_group_that_stops_while_its_halves_go_on_is_told_with_its_two_halves() -> None:
    cluster = Boundary(("node2", "node3"))
    assert cluster.run(search=True, restarts=1) == TIMED_OUT
    assert cluster.limits == [None, "node1,node2,node3,node4", "node5,node6,node7,node8", "node1,node2", "node3,node4"]
    (boundary,) = [words for words in cluster.told if "together" in words]
    assert "stops on node[1-2] and node[3-4] together, and on neither alone" in boundary
    assert "a switch or a firewall" in boundary
    assert cluster.told[-1] == "Search: no node stops the program by itself; the cause is not known."


def test_a_program_that_fails_on_half_of_the_nodes_tells_nothing_of_them() -> None:
    cluster = Boundary(("node1", "node8"), fails_below=8)
    cluster.run(search=True)
    assert len(cluster.limits) == 3, "not a run on each half of each half"
    assert any("the program fails with code 3 on node[1-4]" in words for words in cluster.told)
    assert any("it may not run on so few nodes, so nothing is known of" in words for words in cluster.told)


class Sick(Cluster):
    """Nodes all of which stop a job."""

    def start(self, options: RunOptions) -> RunEnd:
        hosts = super().start(options).hosts
        return RunEnd(TIMED_OUT, hosts, stood_still=True)


def test_a_search_takes_a_bounded_number_of_runs() -> None:
    cluster = Sick("", named=False)
    assert cluster.run(search=True) == TIMED_OUT
    assert len(cluster.limits) - 1 == most_runs(len(NODES)) == 10
    assert any(
        words.startswith("Search: ended after 10 runs; it was not searched further among") for words in cluster.told
    )
    assert most_runs(64) == 22
    assert most_runs(2) == 2


def test_a_half_has_its_share_of_the_ranks_and_a_deadline_of_its_own() -> None:
    cluster = Boundary(("node2", "node3"))
    options = replace(OPTIONS, wish=JobOptions(("true",), ranks=16), timeout_s=400, stall_after_s=300)
    relaunched(cluster.start, options, RelaunchOptions(search=True), cluster.told.append)
    assert cluster.ranks == [16, 8, 8, 4, 4]
    assert cluster.deadlines == [400, 900, 900, 900, 900], "the user's would end a half before a stall is noticed"
