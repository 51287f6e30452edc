"""A training loop that one rank leaves in the middle: STACK is mpi, torch or horovod, FAULT what it does at step AT.

With UNTIL, it waits with that until its node has the file. With a FAULT "in silence", all ranks go on without a word.
"""

import fcntl
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

STACK, FAULT, CULPRIT = os.environ["STACK"], os.environ["FAULT"], int(os.environ["CULPRIT"])
AT = int(os.environ.get("AT", "8"))
SILENT_S = 45.0
UNTIL = os.environ.get("UNTIL", "")

if STACK == "mpi":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.rank

    def all_reduce() -> None:
        world.allreduce(1.0)
        if FAULT == "large packets":  # which are lost from a step on
            world.allgather(bytes(1 << 18))

    def broadcast() -> None:
        world.bcast(None, root=0)

    def any_of(flag: bool) -> bool:
        return any(one for one, _data in world.allgather((flag, bytes(1 << 20))))
else:
    import torch
    import torch.utils.data

    if STACK == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()

        def all_reduce() -> None:
            dist.all_reduce(torch.ones(1 << 10))

        def broadcast() -> None:
            dist.broadcast(torch.ones(1 << 10), 0)

        def any_of(flag: bool) -> bool:
            given = torch.full((1 << 20,), float(flag))
            dist.all_reduce(given)
            return bool(given[0] > 0)
    else:
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()

        def all_reduce() -> None:
            hvd.allreduce(torch.ones(1 << 10), name="gradient")

        def broadcast() -> None:
            hvd.broadcast(torch.ones(1 << 10), 0, name="weights")

        def any_of(flag: bool) -> bool:
            return bool(hvd.allreduce(torch.full((1 << 20,), float(flag)), name="flags")[0] > 0)


def endless_loop() -> None:
    while True:
        pass


def read_file() -> None:
    Path("/dead/data.bin").read_bytes()


def fill_memory() -> None:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    raise SystemExit(3)  # mpi4py's MPI_Finalize then waits for the others


def wait_for_lock() -> None:
    """Wait for a lock that another process of the node holds, as a second job with the same cache does."""
    with tempfile.TemporaryFile() as file:
        if os.fork() == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(900)
        time.sleep(1)
        fcntl.flock(os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR), fcntl.LOCK_EX)


def exit_at_once() -> None:
    os._exit(3)


def exit_without_a_word() -> None:
    os._exit(0)


def write_file() -> None:
    """Try again and again to write to a full disk, as a checkpoint that is to be kept does."""
    while True:
        try:
            Path("/full/checkpoint").write_bytes(bytes(1 << 20))
        except OSError:
            time.sleep(0.5)
        else:
            raise AssertionError


def read_input() -> None:
    """Wait for input that nobody gives."""
    os.read(os.pipe()[0], 1)


def receive() -> None:
    world.recv(source=(rank + 1) % world.size, tag=99)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def load_batch() -> None:
    if STACK == "mpi":
        time.sleep(900)
        return

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, _index: int) -> float:
            time.sleep(900)
            return 1.0

    next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1 if FAULT == "slow loader's worker" else 0)))


def compute() -> None:
    end = time.monotonic() + SILENT_S
    while time.monotonic() < end:
        sum(range(1 << 16))


def exchange() -> None:
    end = time.monotonic() + SILENT_S
    while any_of(time.monotonic() < end):
        pass


HEALTHY = {"computes in silence": compute, "exchanges in silence": exchange}
FAULTS = HEALTHY | {
    "endless loop": endless_loop,
    "dead file": read_file,
    "out of memory": fill_memory,
    "SIGSTOP": stop,
    "another collective": broadcast,
    "slow loader": load_batch,
    "lock": wait_for_lock,
    "exit": exit_at_once,
    "silent exit": exit_without_a_word,
    "full disk": write_file,
    "input": read_input,
    "message": receive,
    "exception": leave,
    "crash": crash,
}

is_due = FAULT in HEALTHY or (rank == CULPRIT and FAULT in FAULTS)
for step in range(100000):
    if is_due and step >= AT and (not UNTIL or Path(UNTIL).exists()):
        is_due = False
        FAULTS[FAULT]()
    all_reduce()
    if rank == 0:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
    time.sleep(0.1)
