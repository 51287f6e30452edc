"""Whose process the kernel has killed for lack of memory: the job's, or one of other work on the node."""

from __future__ import annotations

import pytest
from clusterctl.analysis.rank_deaths import MemoryBlame, NodeLoss, blame, losses, untold
from clusterctl.model.job_outcome import LoggedKill, MemoryKills

NAMES = {"node1": "node1", "node2": "node2", "node3": "node3", "host3": "node3", "10.0.0.3": "node3"}
# Open MPI 5.0.7 (help-mpi-btl-tcp.txt), and PyTorch 2 with Gloo.
HUNG_UP = "  Local host: node1\n  Local PID:  17467\n  Peer host:  {}\n"
CLOSED = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [{}]:17280"
SIGNALLED = "mpirun noticed that process rank {} with PID 471 on node {} exited on\nsignal {} (Killed)."
EXITED = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-node1-1382@1,{}]
   Exit code:    {}
"""
WORKER = "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. "
TORCHRUN = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_10:00:00
  host      : host3
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 8127)
"""


def kills(count: int, own: int = -1, log: tuple[LoggedKill, ...] | None = None) -> MemoryKills:
    return MemoryKills(all=count, own=own, log=log, uid=1001)


def test_what_grew_between_two_looks_was_lost() -> None:
    before = {"node1": kills(1), "node2": kills(-1), "node3": kills(2), "node4": kills(0), "node5": kills(3, own=-1)}
    now = {"node1": kills(3), "node2": kills(1), "node3": kills(0), "node4": kills(-1), "node5": kills(4, own=1)}
    found = losses(before, now)
    assert found == {"node1": NodeLoss(2, uid=1001), "node5": NodeLoss(1, own=True, uid=1001)}


def test_only_new_kills_of_the_log_count() -> None:
    old, new = LoggedKill(number=7, pid=1, uid=5), LoggedKill(number=9, pid=2, uid=5)
    found = losses({"node1": kills(-1, log=(old,))}, {"node1": kills(-1, log=(old, new))})
    assert found == {"node1": NodeLoss(1, log=(new,), uid=1001)}
    assert losses({"node1": kills(-1, log=(old,))}, {"node1": kills(-1, log=(old,))}) == {}


@pytest.mark.parametrize(
    ("loss", "output", "tie"),
    [
        (NodeLoss(1), "", None),
        (NodeLoss(1), "ValueError: no such file", None),
        (NodeLoss(1, own=True), "", "group"),
        (NodeLoss(1), SIGNALLED.format(4, "host3", 9), "launcher"),
        (NodeLoss(1), SIGNALLED.format(4, "host3", 11), None),
        (NodeLoss(1), SIGNALLED.format(2, "node2", 9), None),
        (NodeLoss(1), HUNG_UP.format("host3"), "peers"),
        (NodeLoss(1), HUNG_UP.format("node2") + HUNG_UP.format("host3"), None),
        (NodeLoss(1), HUNG_UP.format("host3") + HUNG_UP.format("node2"), None),  # a follower's words may come first
        (NodeLoss(1), HUNG_UP.format("host3") + EXITED.format(2, 3), None),
        (NodeLoss(1, own=True), HUNG_UP.format("node2") + EXITED.format(2, 3), "group"),
        (NodeLoss(1), CLOSED.format("10.0.0.3"), "peers"),
        (NodeLoss(1), WORKER + TORCHRUN, "worker"),
        (NodeLoss(1), TORCHRUN, None),
        (NodeLoss(1, own=True), SIGNALLED.format(2, "node2", 11), None),
        (NodeLoss(1), HUNG_UP.format("host3") + SIGNALLED.format(2, "node2", 11), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=1001),), uid=1001), "", "log"),
        (NodeLoss(1, own=True, log=(LoggedKill(number=1, pid=88, uid=0),), uid=1001), HUNG_UP.format("host3"), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=471, uid=0),), uid=0), "", "log"),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=0),), uid=0), HUNG_UP.format("host3"), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88),), uid=1001), HUNG_UP.format("host3"), "peers"),
    ],
)
def test_a_kill_is_the_jobs_where_something_ties_it_to_the_job(loss: NodeLoss, output: str, tie: str | None) -> None:
    found = blame({"node3": loss}, output, NAMES, {"node3": {471}})
    assert found == (MemoryBlame({"node3": tie}) if tie else MemoryBlame(others=("node3",)))  # type: ignore[dict-item]


def test_a_log_that_may_tell_of_roots_own_job_does_not_decide() -> None:
    loss = NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=0),), uid=0)
    assert blame({"node3": loss}, "", NAMES) == MemoryBlame(others=("node3",))
    assert blame({"node3": loss}, HUNG_UP.format("host3"), NAMES) == MemoryBlame({"node3": "peers"})


def test_a_node_whose_kills_before_and_after_cannot_be_compared_is_untold() -> None:
    before = {
        "node1": kills(1),
        "node2": kills(-1),
        "node3": kills(2),
        "node4": kills(-1, log=()),
        "node5": kills(-1, 0),
    }
    now = dict.fromkeys(before, kills(1, 1, ())) | {"node6": kills(1)}
    assert untold(before, now) == ("node2", "node3", "node6")
