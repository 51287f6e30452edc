"""Which node a job has lost, in the words of Open MPI 5.0.7 (help-mpi-btl-tcp.txt and PRRTE's help-prun.txt)."""

from __future__ import annotations

import pytest
from clusterctl.analysis import rank_deaths

NAMES = {"n5": "node5", "n7": "node7", "10.0.0.7": "node7"}
LOST = """
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: n5
  Local PID:  812
  Peer host:  {peer}
"""
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
        (LOST.format(peer="n7"), ""),
        (LOST.format(peer="n7") + "mpirun detected that one or more processes exited with non-zero status", ""),
        (ABORTED.format(host="n5"), ""),
        (LOST.format(peer="stranger") + ABORTED.format(host="n5"), ""),
        (LOST.format(peer="n7") + ABORTED.format(host="stranger"), ""),
    ],
)
def test_a_rank_that_is_lost_before_another_aborts_is_on_the_node_that_is_named(output: str, node: str) -> None:
    assert rank_deaths.lost_before_abort(output, NAMES) == node
