"""Prove that MPI sends and reduces buffers in the memory of GPUs, where the cluster's Open MPI says that it can.

mpirun starts the ranks; ``rank_program.py`` explains the lines that they print. The buffers are tensors of PyTorch,
which mpi4py takes by their ``__cuda_array_interface__``. ``MPIX_Query_cuda_support`` of libmpi is the word of Open MPI.
Where a rank's Open MPI was built without CUDA, no rank gives it such a buffer, since it would read the address as one
of main memory. The fact ``mpi_cuda`` is ``yes`` or ``no``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import rank_program

CHECK = "gpu_mpi"
STEP = "GPU buffers in MPI"  # how the name of a step begins that a build with a fault does not survive
COUNTS = (1, 1001, 1 << 20)  # values: messages at once, and in pieces
KINDS = ("int32", "float32", "float64")
BEFORE = 99  # in a buffer before a call, so that a call without effect is found


def says_cuda(path: str) -> bool:
    """Whether libmpi says that it takes buffers of GPUs; one without the question does not."""
    query = getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None) if path else None
    return bool(query is not None and query())


class Bench:
    """A rank with its GPU."""

    def __init__(self, comm: Any, sum_of: Any, torch: Any, numpy: Any, rank: rank_program.Rank) -> None:
        """Take the rank's GPU."""
        self.comm, self.sum, self.torch, self.numpy, self.rank = comm, sum_of, torch, numpy, rank
        local = [
            int(os.environ.get(f"OMPI_COMM_WORLD_LOCAL_{word}", text)) for word, text in (("RANK", "0"), ("SIZE", "1"))
        ]
        self.device = rank_program.take_gpu(torch, *local)
        rank.facts["gpu"] = str(torch.cuda.get_device_properties(self.device.index).name)

    def tensor(self, values: Any) -> Any:
        """Return values in the GPU's memory; MPI does not wait for the stream that brings them."""
        there = self.torch.from_numpy(values).to(self.device)
        self.torch.cuda.synchronize()
        return there

    def values(self, kind: str, count: int, rank: int) -> Any:
        """Return what a rank gives: 1 to 7 in turn times its number from 1 on."""
        return (self.numpy.arange(count) % 7 + 1).astype(kind) * (rank + 1)

    def compare(self, what: str, got: Any, expected: Any) -> None:
        """Compare what lies in the GPU's memory."""
        self.torch.cuda.synchronize()
        self.rank.findings.array(f"{what} of {expected.dtype}[{expected.size}]", got.cpu().numpy(), expected)

    def go(self, kind: str, count: int) -> None:
        """Send to the next rank, broadcast from the last, and add up over all."""
        comm, rank = self.comm, self.rank
        me, size = rank.rank, rank.size
        own = self.tensor(self.values(kind, count, me))
        before = self.numpy.full(count, BEFORE, kind)
        rank.doing(f"{STEP}: send and receive")
        got = self.tensor(before)
        comm.Sendrecv(own, dest=(me + 1) % size, recvbuf=got, source=(me - 1) % size)
        self.compare(f"{STEP}: receive from rank {(me - 1) % size}", got, self.values(kind, count, (me - 1) % size))
        rank.doing(f"{STEP}: broadcast")
        last = self.values(kind, count, size - 1)
        got = self.tensor(last if me == size - 1 else before)
        comm.Bcast(got, root=size - 1)
        self.compare(f"{STEP}: broadcast from rank {size - 1}", got, last)
        rank.doing(f"{STEP}: allreduce")
        got = self.tensor(before)
        comm.Allreduce(own, got, op=self.sum)
        self.compare(f"{STEP}: allreduce", got, self.values(kind, count, 0) * (size * (size + 1) // 2))


def prove(rank: rank_program.Rank, mpi: Any) -> None:
    """Ask every rank what its Open MPI says, and give it GPU buffers where all say yes."""
    rank.doing("what Open MPI says of CUDA")
    said = says_cuda(rank_program.mapped_library("libmpi"))
    rank.facts["mpi_cuda"] = "yes" if said else "no"
    rank.findings.compared += 1
    if not all(mpi.COMM_WORLD.allgather(said)):
        return
    rank.doing("import torch")
    import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail
    import torch  # noqa: PLC0415 - the same

    bench = Bench(mpi.COMM_WORLD, mpi.SUM, torch, np, rank)
    for kind in KINDS:
        for count in COUNTS:
            bench.go(kind, count)


def work(rank: rank_program.Rank) -> int:
    """Run the check with mpi4py and report."""
    return rank_program.with_mpi(rank, lambda mpi: prove(rank, mpi))


def main() -> int:
    """Say that this rank is up, then work."""
    parser = rank_program.parser("Prove that MPI takes buffers of GPUs. Started by mpirun.", [CHECK])
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
