"""Which node a job has lost, in the words of Open MPI 5.0.7 (help-mpi-btl-tcp.txt and PRRTE's help-prun.txt)."""

from __future__ import annotations

import pytest
from clusterctl.analysis import rank_deaths
from factory import DATA

NAMES = {"n5": "node5", "n7": "node7", "n9": "node9", "10.0.0.7": "node7"}
LOST = """
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: n5
  Local PID:  812
  Peer host:  {peer}
"""
SIGNALLED = "prterun noticed that process rank 4 with PID 815 on node {host} exited on\nsignal {by} (Name).\n"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [{address}]:17280\n"
ABORTED = """
prterun has exited due to process rank 4 with PID 0 on node {host} calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""


@pytest.mark.parametrize(
    ("output", "node"),
    [
        (LOST.format(peer="n7") + ABORTED.format(host="n5"), "node7"),
        (LOST.format(peer="n7") + LOST.format(peer="n5") + ABORTED.format(host="n5"), "node7"),
        (LOST.format(peer="n7") + ABORTED.format(host="n7"), ""),  # the lost rank aborted by itself
        (LOST.format(peer="n5") + LOST.format(peer="n7") + ABORTED.format(host="n5"), "node7"),  # followers came first
        (LOST.format(peer="n5") + LOST.format(peer="n7") + ABORTED.format(host="n9"), ""),  # either may be one
        (LOST.format(peer="n7") + SIGNALLED.format(host="n5", by=6), "node7"),
        (LOST.format(peer="n7") + SIGNALLED.format(host="n5", by=11), ""),
        (LOST.format(peer="n7"), ""),
        (LOST.format(peer="n7") + "mpirun detected that one or more processes exited with non-zero status", ""),
        (ABORTED.format(host="n5"), ""),
        (LOST.format(peer="stranger") + ABORTED.format(host="n5"), ""),
        (LOST.format(peer="n7") + ABORTED.format(host="stranger"), ""),
    ],
)
def test_a_rank_that_is_lost_before_another_aborts_is_on_the_node_that_is_named(output: str, node: str) -> None:
    assert rank_deaths.lost_before_abort(output, NAMES) == node


def launched(name: str) -> str:
    return (DATA / "launcher" / name / "high-ports-refused.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("release", "code"), [("4.1", 1), ("5.0", 14)])
def test_the_rank_that_mpirun_tells_of_has_its_exit_code(release: str, code: int) -> None:
    assert rank_deaths.first_exit(launched(release)) == rank_deaths.RankExit(4, code)
    assert rank_deaths.first_exit(ABORTED.format(host="n5")) is None


def test_peers_that_were_lost_are_told_in_the_order_of_the_output() -> None:
    output = LOST.format(peer="elsewhere") + CLOSED.format(address="10.0.0.7") + LOST.format(peer="n5")
    assert rank_deaths.lost_peers(f"{output}{LOST.format(peer='n7')}", NAMES) == ("node7", "node5")
    assert rank_deaths.lost_peer(output, NAMES) == ""
    assert rank_deaths.lost_peer(LOST.format(peer="elsewhere") + CLOSED.format(address="10.0.0.7"), NAMES) == "node7"
    assert rank_deaths.lost_peer("step 4", NAMES) == ""
