"""Where a stack says that a rank is, and how a launcher tells of a dead one."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.analysis.rank_deaths import RankDeath, first_death
from clusterctl.analysis.rank_evidence import Behind, Place, behind, behind_by_ras, place
from clusterctl.analysis.stall import RankSight, judge
from clusterctl.model.job_outcome import FlightGroup
from factory import captured_ras

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


# --- Which rank the others wait for, by the numbers of the calls ------------------------------------------------------

WAITS = FlightGroup(group="0", last=1042, waits=1042, call="all_reduce", sizes="[[4]]")
GONE_ON = FlightGroup(group="0", last=1041)


def group(**more: object) -> FlightGroup:
    return WAITS.model_copy(update=more)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({2: GONE_ON}, "has not called all_reduce #1042"),
        ({2: group(last=1042, waits=1040)}, "is still in a call before all_reduce #1042"),
        ({2: group(call="broadcast")}, "has called something else than all_reduce #1042"),
        ({2: group(sizes="[[8]]")}, "has called something else than all_reduce #1042"),
        ({}, None),
        (dict.fromkeys(range(1, 6), GONE_ON), None),
        ({2: group(last=1050, waits=1042)}, None),
    ],
)
def test_a_rank_that_is_set_apart_is_named(odd: dict[int, FlightGroup], words: str | None) -> None:
    found = behind({rank: (odd.get(rank, WAITS),) for rank in range(8)})
    assert found == (None if words is None else Behind((2,), words, "all_reduce #1042"))


def test_two_groups_that_tell_of_different_ranks_tell_nothing() -> None:
    other = group(group="1")
    late = GONE_ON.model_copy(update={"group": "1"})
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 5 else late) for rank in range(8)}
    assert behind(flights) is None
    flights = {rank: (WAITS if rank != 2 else GONE_ON, other if rank != 2 else late) for rank in range(8)}
    found = behind(flights)
    assert found is not None
    assert found.ranks == (2,)


@pytest.mark.parametrize(
    ("flights", "ranks"),
    [
        ({0: [WAITS], 1: [GONE_ON]}, (1,)),
        ({0: [WAITS], 1: [group(last=1050, waits=1050)]}, (0,)),
        ({rank: [WAITS if rank < 4 else GONE_ON] for rank in range(8)}, (4, 5, 6, 7)),
        ({0: [WAITS], 1: [group(call="broadcast")]}, None),  # which of the two is wrong?
        # Each has a culprit of its own.
        (
            {
                rank: [(GONE_ON if rank in (1, 6) else WAITS).model_copy(update={"group": str(rank // 4)})]
                for rank in range(8)
            },
            (1, 6),
        ),
        # Rank 1 waits for rank 2 in another group, or to receive from it.
        ({0: [WAITS], 1: [GONE_ON, group(group="1")], 2: [GONE_ON.model_copy(update={"group": "1"})]}, (2,)),
        (
            {
                0: [WAITS],
                1: [GONE_ON.model_copy(update={"peers": (2,)})],
                2: [GONE_ON.model_copy(update={"group": "1"})],
                3: [group(group="1")],
            },
            (2,),
        ),
    ],
)
def test_culprits_are_of_all_groups(flights: dict[int, list[FlightGroup]], ranks: tuple[int, ...] | None) -> None:
    found = behind(flights)
    assert (found and found.ranks) == ranks


def test_the_sentence_has_the_number_of_the_call_and_the_place_of_the_rank() -> None:
    place = Place("torch.cuda.synchronize", "train (train.py:30)")
    ranks = [RankSight(rank, f"node{rank // 2 + 1}", now=place, before=place) for rank in range(8)]
    found = judge(ranks, behind=behind({rank: (WAITS if rank != 5 else GONE_ON,) for rank in range(8)}))
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == ("behind", ("node3",), (5,))
    assert found.sentence == (
        "node3 rank 5 has not called all_reduce #1042 and is in train (train.py:30), 7 others wait in all_reduce #1042"
    )


# --- What NCCL's RAS tells of a job that stands still: answers of one GPU's ranks, and a composed one -----------------

COMPOSED = Path(__file__).parents[2] / "data" / "nccl_ras" / "two_behind.txt"
RANKS = {("10.0.0.1" if rank < 4 else "10.0.0.2", 100 + rank): rank for rank in range(8)}


def late() -> list[str]:
    """Return the answer of a job whose rank 2 stays away; it becomes the process of rank 1 among eight."""
    (answer,) = captured_ras("late").answers
    return answer.replace("process 1095", "process 101").splitlines()


def lines() -> list[str]:
    return COMPOSED.read_text(encoding="utf-8").splitlines()


def rank_of(node: str, pid: int) -> int | None:
    return RANKS.get((node, pid))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("late", [Behind((2,), "has not launched AllReduce #9, by NCCL's RAS", "AllReduce #9")]),
        ("stopped", [None, Behind((0,), "does not answer NCCL's RAS", "")]),
    ],
)
def test_the_rank_that_nccl_itself_told_of_on_a_gpu_is_named(name: str, found: list[Behind | None]) -> None:
    """Before a rank was stopped nothing was wrong, so none is named then."""
    captured = captured_ras(name)
    told = [
        behind_by_ras(answer.splitlines(), lambda node, pid: captured.ranks.get(pid) if node == "10.0.0.1" else None, 3)
        for answer in captured.answers
    ]
    assert told == found
    assert told[-1] is not None
    assert told[-1].ranks == (captured.culprit,)


@pytest.mark.parametrize(("node", "rank"), [("10.0.0.1", 1), ("10.0.0.2", 5)])
def test_a_process_is_known_by_its_number_and_its_node(node: str, rank: int) -> None:
    text = captured_ras("stopped").answers[1].replace("rocess 924 on node 10.0.0.1", f"rocess 924 on node {node}")
    told = behind_by_ras(text.splitlines(), lambda place, _pid: {"10.0.0.1": 1, "10.0.0.2": 5}[place], 8)
    assert told == Behind((rank,), "does not answer NCCL's RAS", "")


def test_two_that_lag_in_two_communicators_are_named() -> None:
    told = behind_by_ras(lines(), rank_of, 8)
    assert told is not None
    assert told.ranks == (2, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: [line.replace("process 101", "process 999") for line in one],
        lambda one: [line.replace("2 ranks", "1 ranks") for line in one if "Rank 2 has" not in line],
        lambda one: [line.replace("operation 8", "operation 10") for line in one],
        lambda _one: ["No communicator data collected!", "  Rank 1 has launched up to operation 3 -- GPU 1"],
        lambda _one: ["ERROR: internal error", "", "\0" * 40],
        lambda _one: [],
    ],
)
def test_an_answer_that_sets_no_known_rank_apart_names_none(change: object) -> None:
    assert behind_by_ras(change(late()), rank_of, 8) is None  # type: ignore[operator]


def test_more_than_half_of_the_ranks_are_not_the_few() -> None:
    assert behind_by_ras(lines(), rank_of, 4) is None


def test_two_communicators_that_name_different_ranks_name_none() -> None:
    text = "\n".join(lines()).rpartition("  Rank 3 -- GPU 3")
    other = f"{text[0]}  Rank 4 -- GPU 0 managed by process 104 on node 10.0.0.2\n"
    assert behind_by_ras(other.splitlines(), rank_of, 8) is None
