"""Which node a job has lost, in the words of Open MPI 5.0.7 (help-mpi-btl-tcp.txt and PRRTE's help-prun.txt)."""

from __future__ import annotations

import pytest
from clusterctl.analysis import rank_deaths
from clusterctl.analysis.rank_deaths import MemoryBlame, NodeLoss, RankDeath, blame, first_death, losses, untold
from clusterctl.analysis.rank_places import Place, place
from clusterctl.model.job_outcome import LoggedKill, MemoryKills
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


# --- whose process the kernel has killed for lack of memory: the job's, or one of other work on the node ---


JOB_NAMES = {"node1": "node1", "node2": "node2", "node3": "node3", "host3": "node3", "10.0.0.3": "node3"}
# Open MPI 5.0.7 (help-mpi-btl-tcp.txt), and PyTorch 2 with Gloo.
HUNG_UP = "  Local host: node1\n  Local PID:  17467\n  Peer host:  {}\n"
CLOSED_BY = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [{}]:17280"
)
BY_SIGNAL = "mpirun noticed that process rank {} with PID 471 on node {} exited on\nsignal {} (Killed)."
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
        (NodeLoss(1), BY_SIGNAL.format(4, "host3", 9), "launcher"),
        (NodeLoss(1), BY_SIGNAL.format(4, "host3", 11), None),
        (NodeLoss(1), BY_SIGNAL.format(2, "node2", 9), None),
        (NodeLoss(1), HUNG_UP.format("host3"), "peers"),
        (NodeLoss(1), HUNG_UP.format("node2") + HUNG_UP.format("host3"), None),
        (NodeLoss(1), HUNG_UP.format("host3") + HUNG_UP.format("node2"), None),  # a follower's words may come first
        (NodeLoss(1), HUNG_UP.format("host3") + EXITED.format(2, 3), None),
        (NodeLoss(1, own=True), HUNG_UP.format("node2") + EXITED.format(2, 3), "group"),
        (NodeLoss(1), CLOSED_BY.format("10.0.0.3"), "peers"),
        (NodeLoss(1), WORKER + TORCHRUN, "worker"),
        (NodeLoss(1), TORCHRUN, None),
        (NodeLoss(1, own=True), BY_SIGNAL.format(2, "node2", 11), None),
        (NodeLoss(1), HUNG_UP.format("host3") + BY_SIGNAL.format(2, "node2", 11), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=1001),), uid=1001), "", "log"),
        (NodeLoss(1, own=True, log=(LoggedKill(number=1, pid=88, uid=0),), uid=1001), HUNG_UP.format("host3"), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=471, uid=0),), uid=0), "", "log"),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=0),), uid=0), HUNG_UP.format("host3"), None),
        (NodeLoss(1, log=(LoggedKill(number=1, pid=88),), uid=1001), HUNG_UP.format("host3"), "peers"),
    ],
)
def test_a_kill_is_the_jobs_where_something_ties_it_to_the_job(loss: NodeLoss, output: str, tie: str | None) -> None:
    found = blame({"node3": loss}, output, JOB_NAMES, {"node3": {471}})
    assert found == (MemoryBlame({"node3": tie}) if tie else MemoryBlame(others=("node3",)))  # type: ignore[dict-item]


def test_a_log_that_may_tell_of_roots_own_job_does_not_decide() -> None:
    loss = NodeLoss(1, log=(LoggedKill(number=1, pid=88, uid=0),), uid=0)
    assert blame({"node3": loss}, "", JOB_NAMES) == MemoryBlame(others=("node3",))
    assert blame({"node3": loss}, HUNG_UP.format("host3"), JOB_NAMES) == MemoryBlame({"node3": "peers"})


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


# --- where a stack says that a rank is, and how a launcher tells of a dead one ---


KERNEL = "python3: sleeping, waits in unix_stream_read_generic, system call 45\n\n"
SPINS = """\
Thread 20649 (active+gil): "MainThread"
    spin (train.py:3)
    <module> (train.py:10)
    0x7fc94124524a (libc.so.6)"""
MPI = """\
Thread 99 (idle): "MainThread"
    epoll_wait (libc.so.6)
    opal_progress (libopen-pal.so.80.0.5)
    PMPI_Allreduce (libmpi.so.40.40.7)
    __pyx_pw_6mpi4py_3MPI_4Comm_173allreduce (mpi4py/MPI.cpython-311-x86_64-linux-gnu.so)
    step (train.py:21)
    <module> (train.py:40)"""
TORCH = """\
Thread 7 (idle): "Thread-1"
    wait (threading.py:324)
Thread 5 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    wrapper (torch/distributed/c10d_logger.py:81)
    step (train.py:30)"""
HOROVOD = """\
Thread 5 (idle): "MainThread"
    synchronize (horovod/torch/mpi_ops.py:1282)
    allreduce (horovod/torch/mpi_ops.py:270)
    step (train.py:31)"""
LOADER = """\
Thread 5 (idle): "MainThread"
    __getitem__ (data.py:9)
    fetch (torch/utils/data/_utils/fetch.py:52)
    _next_data (torch/utils/data/dataloader.py:789)
    __next__ (torch/utils/data/dataloader.py:733)
    <module> (train.py:31)"""
BACKWARD = """\
Thread 5 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:829)
    backward (torch/autograd/__init__.py:347)
    <module> (train.py:33)"""
GDB = """\
Thread 1 (Thread 0x7f31d0 (LWP 20650) "solver"):
#0  0x00007f5 in epoll_wait (epfd=7) at ../sysdeps/unix/sysv/linux/epoll_wait.c:30
#1  0x00007f6 in opal_progress () from /usr/local/openmpi/lib/libopen-pal.so.80
#2  0x00007f7 in PMPI_Recv () from /usr/local/openmpi/lib/libmpi.so.40
#3  0x00005555 in main () at solver.c:12"""
EU_STACK = """\
TID 99:
#0  0x00007f8d5 clock_nanosleep
#1  0x00007f8d6 __nanosleep
#2  0x0000555d1 reload
#3  0x0000555d2 main"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KERNEL + SPINS, Place(where="spin (train.py:3)")),
        (KERNEL + MPI, Place("MPI_Allreduce", "step (train.py:21)")),
        (TORCH, Place("all_reduce", "step (train.py:30)")),
        (HOROVOD, Place("allreduce", "step (train.py:31)")),
        (LOADER, Place(where="DataLoader.__next__, __getitem__ (data.py:9)")),
        (BACKWARD, Place("backward", "<module> (train.py:33)", may_compute=True)),
        (GDB, Place("MPI_Recv", "main")),
        (EU_STACK, Place(where="reload")),
        (KERNEL, Place()),
        ("", Place()),
    ],
)
def test_a_stack_tells_the_call_and_the_place(text: str, found: Place) -> None:
    assert place(text) == found


TORCHRUN_SAYS = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_11:13:52
  host      : node3
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 6041)
  error_file: <N/A>
"""
PRTERUN = """\
--------------------------------------------------------------------------
prterun noticed that process rank 3 with PID 412 on node node2 exited on
signal 9 (Killed).
"""


def test_a_launcher_tells_of_the_rank_that_a_signal_ended() -> None:
    assert first_death(PRTERUN) == RankDeath(3, "node2", 9)
    assert first_death("epoch 3\n" + TORCHRUN_SAYS) == RankDeath(5, "node3", 9)
    assert first_death(TORCHRUN_SAYS.replace("-9", "1 ")) is None
    assert RankDeath(3, "node2", 9).words == "was ended by SIGKILL"
