"""NCCL's communicator of the ranks that take part: choose them, join them, wait for their GPUs, and leave."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from rank_program import CheckError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import rank_program
    from cuda_driver import Cuda
    from nccl_library import Nccl
    from rank_exchange import Mpi, Store


MIG = "MIG"  # begin of the name of an instance of a GPU in MIG mode


def crew(places: Sequence[str], most: int) -> list[int]:
    """Return the ranks that take part: the first ``most`` on each GPU; a rank without a GPU has an empty place.

    A place that names a MIG instance, or the GPU of one, takes one rank.
    """
    seen: dict[str, int] = {}
    members: list[int] = []
    for rank, place in enumerate(places):
        if place and seen.get(place, 0) < (1 if f" {MIG}" in place else most):
            seen[place] = seen.get(place, 0) + 1
            members.append(rank)
    return members


def show_what_nccl_printed() -> None:
    """Flush C's standard output: NCCL prints the report of its diagnostics there, and a killed rank would lose it."""
    ctypes.CDLL(None).fflush(None)


class Communicator:
    """The communicator, one GPU and the findings."""

    def __init__(self, nccl: Nccl, cuda: Cuda, ranks: Mpi | Store, report: rank_program.Rank) -> None:
        """Keep them together; :meth:`join` is next."""
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        self.numpy, self.nccl, self.cuda, self.ranks, self.report = np, nccl, cuda, ranks, report
        self.rank, self.size = ranks.rank, ranks.size
        self.handle = ctypes.c_void_p()

    def join(self) -> None:
        """Form the communicator of all ranks on this side."""
        self.report.doing("ncclCommInitRank")
        unique = self.ranks.first_says(self.nccl.unique_id().hex() if self.rank == 0 else "")
        self.handle = self.nccl.communicator(self.size, bytes.fromhex(unique), self.rank)
        show_what_nccl_printed()
        device = self.nccl.device_of(self.handle)
        if device != self.cuda.number:
            raise CheckError(f"NCCL uses GPU {device} where this rank has opened GPU {self.cuda.number}")

    def wait(self) -> None:
        """Wait for the GPU, and raise errors of the network meanwhile."""
        while not self.cuda.is_idle():
            self.nccl.look_for_trouble(self.handle)
            os.sched_yield()
        self.nccl.look_for_trouble(self.handle)

    def leave(self) -> None:
        """End the communicator when all ranks are done with it, and close the GPU."""
        self.disband()
        self.cuda.close()

    def disband(self) -> None:
        """End the communicator when all ranks are done with it."""
        self.ranks.gathered(0)
        self.nccl("ncclCommDestroy", self.handle)
        show_what_nccl_printed()

    def exchange(self, count: int, number: int, target: int, source: int) -> None:
        """Send and receive at once; one after the other would hang."""
        nccl, cuda = self.nccl, self.cuda
        nccl("ncclGroupStart")
        nccl("ncclSend", cuda.send, count, number, target, self.handle, cuda.stream)
        nccl("ncclRecv", cuda.receive, count, number, source, self.handle, cuda.stream)
        nccl("ncclGroupEnd")
