"""The calls of mpi4py that the check ``gpu_mpi`` makes, between processes that write files.

FAKE_MPI_FAULT: "wrong@1" makes rank 1's allreduce wrong, "killed@1" kills it there, as a build does that reads the
address of a GPU as one of main memory.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

SUM = "sum"
RANK, SIZE, STORE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(os.environ["STORE"])
ctypes.CDLL(os.environ["FAKE_LIBMPI"])
_calls = 0


def Get_library_version() -> str:
    return "Open MPI v5.0.7, a stand-in"


def _everybodys(value: Any) -> list[Any]:
    global _calls
    _calls += 1
    half = STORE / f"{_calls}.{RANK}.half"
    half.write_bytes(pickle.dumps(value))
    half.rename(STORE / f"{_calls}.{RANK}.done")
    found, until = [], time.monotonic() + 30
    for rank in range(SIZE):
        file = STORE / f"{_calls}.{rank}.done"
        while not file.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"rank {rank} is gone")
            time.sleep(0.001)
        found.append(pickle.loads(file.read_bytes()))
    return found


def _fault(kind: str) -> bool:
    return os.environ.get("FAKE_MPI_FAULT") == f"{kind}@{RANK}"


def _sendrecv(own: Any, dest: int, recvbuf: Any, source: int) -> None:
    recvbuf.array[...] = _everybodys((dest, own.array))[source][1]


def _bcast(buffer: Any, root: int) -> None:
    buffer.array[...] = _everybodys(buffer.array)[root]


def _allreduce(own: Any, got: Any, op: str) -> None:
    if _fault("killed"):
        os.kill(os.getpid(), signal.SIGSEGV)
    got.array[...] = np.sum(_everybodys(own.array), axis=0) + _fault("wrong")


def _abort(code: int) -> None:
    os._exit(code)


COMM_WORLD = SimpleNamespace(
    Get_rank=lambda: RANK,
    Get_size=lambda: SIZE,
    Barrier=lambda: None,
    Abort=_abort,
    allgather=_everybodys,
    Sendrecv=_sendrecv,
    Bcast=_bcast,
    Allreduce=_allreduce,
)
