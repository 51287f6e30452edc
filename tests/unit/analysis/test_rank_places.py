"""Where a stack says that a rank is, and how a launcher tells of a dead one."""

from __future__ import annotations

import pytest
from clusterctl.analysis.rank_deaths import RankDeath, first_death
from clusterctl.analysis.rank_places import Place, place

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


TORCHRUN = """\
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
    assert first_death("epoch 3\n" + TORCHRUN) == RankDeath(5, "node3", 9)
    assert first_death(TORCHRUN.replace("-9", "1 ")) is None
    assert RankDeath(3, "node2", 9).words == "was ended by SIGKILL"
