#!/usr/bin/env python3
"""Prove that MPI gives right answers; every rank prints what it found, one JSON line a finding.

Started by mpirun, one process a rank; what the lines mean stands in ``rank_program.py``.

Answers are known beforehand: small integers, exact in every type used, so that comparisons need no tolerance. Buffers
are filled with another pattern before each operation, so that an operation that does nothing is found out.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Iterator

import rank_program

HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
ALL_PAIRS_UP_TO = 32  # ranks; beyond it point-to-point pairs at distances 1, 2, 4, ...

TYPES = ("u1", "i4", "i8", "f4", "f8", "c16")
NUMBER_TYPES = ("i4", "i8", "f4", "f8", "c16")
ORDERED_TYPES = ("i4", "i8", "f4", "f8")
COUNTS = (1, 3, 1001, 40009)  # one value, odd ones, one buffer beyond every eager limit


class Bench:
    """What every check works with: the communicator, numpy and the findings."""

    def __init__(self, mpi: Any, numpy: Any, rank: rank_program.Rank) -> None:
        """Keep them together."""
        self.mpi, self.numpy = mpi, numpy
        self.findings, self.doing = rank.findings, rank.doing
        self.comm = mpi.COMM_WORLD
        self.rank, self.size = rank.rank, rank.size

    def pattern(self, count: int, kind: str, scale: int) -> Any:
        """Return values that differ by position and by ``scale``, exact in every type."""
        values = (self.numpy.arange(count) % 7 + 1) * scale
        return (values % 251 if kind == "u1" else values).astype(kind)

    def blank(self, count: int, kind: str) -> Any:
        """Return a buffer of a value that is no right answer anywhere."""
        return self.numpy.full(count, 252 if kind == "u1" else -77, dtype=kind)

    def roots(self) -> list[int]:
        """Return the first, the last and two ranks in between."""
        return sorted({0, self.size // 3, self.size // 2, self.size - 1})

    def cases(self, kinds: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
        """Yield every type with every count, one root after the other in turn."""
        roots = self.roots()
        number = 0
        for kind in kinds:
            for count in COUNTS:
                yield kind, count, roots[number % len(roots)]
                number += 1


def point_to_point(bench: Bench) -> None:
    """Every rank sends a Python object to others and gets theirs."""

    def parcel(source: int, target: int) -> dict[str, Any]:
        nested = [source, [target, None]]
        return {"from": source, "to": target, "text": "Grüße", "bytes": bytes(range(256)), "list": nested}

    comm, rank, size = bench.comm, bench.rank, bench.size
    if size <= ALL_PAIRS_UP_TO:
        distances = range(1, size) if size > 1 else [0]
    else:
        distances = [2**power for power in range(size.bit_length() - 1)]
    for distance in distances:
        target, source = (rank + distance) % size, (rank - distance) % size
        what = bench.doing(f"object to rank {target} and from rank {source}")
        got = comm.sendrecv(parcel(rank, target), dest=target, sendtag=distance, source=source, recvtag=distance)
        bench.findings.value(what, got, parcel(source, rank))
    target, source = (rank + 1) % size, (rank - 1) % size
    for kind in TYPES:
        for count in COUNTS:
            what = bench.doing(f"{kind}[{count}] to rank {target} and from rank {source}")
            received = bench.blank(count, kind)
            comm.Sendrecv(bench.pattern(count, kind, rank + 1), target, 3, received, source, 3)
            bench.findings.array(what, received, bench.pattern(count, kind, source + 1))


def broadcast(bench: Bench) -> None:
    """One root's buffer, and one object, reach everybody."""
    for kind, count, root in bench.cases(TYPES):
        what = bench.doing(f"broadcast {kind}[{count}] from rank {root}")
        buffer = bench.pattern(count, kind, root + 3) if bench.rank == root else bench.blank(count, kind)
        bench.comm.Bcast(buffer, root)
        bench.findings.array(what, buffer, bench.pattern(count, kind, root + 3))
    for root in bench.roots():
        what = bench.doing(f"broadcast of an object from rank {root}")
        parcel = {"root": root, "list": list(range(root + 2))}
        bench.findings.value(what, bench.comm.bcast(parcel if bench.rank == root else None, root), parcel)


def scatter(bench: Bench) -> None:
    """Everybody gets their own part of one root's buffer, equal parts and unequal ones."""
    numpy, rank, size = bench.numpy, bench.rank, bench.size
    for kind, count, root in bench.cases(TYPES):
        what = bench.doing(f"scatter {kind}[{count}] from rank {root}")
        parts = [bench.pattern(count, kind, part + 1) for part in range(size)] if rank == root else []
        received = bench.blank(count, kind)
        bench.comm.Scatter(numpy.concatenate(parts) if parts else None, received, root)
        bench.findings.array(what, received, bench.pattern(count, kind, rank + 1))
    counts = [part % 3 + 1 for part in range(size)]
    for root in bench.roots():
        what = bench.doing(f"scatter of unequal parts from rank {root}")
        parts = [bench.pattern(counts[part], "f8", part + 5) for part in range(size)] if rank == root else []
        received = bench.blank(counts[rank], "f8")
        bench.comm.Scatterv([numpy.concatenate(parts), counts] if parts else None, received, root)
        bench.findings.array(what, received, bench.pattern(counts[rank], "f8", rank + 5))


def gather(bench: Bench) -> None:
    """One root gets everybody's part in the order of ranks, equal parts and unequal ones."""
    numpy, rank, size = bench.numpy, bench.rank, bench.size
    for kind, count, root in bench.cases(TYPES):
        what = bench.doing(f"gather {kind}[{count}] to rank {root}")
        received = bench.blank(count * size, kind) if rank == root else None
        bench.comm.Gather(bench.pattern(count, kind, rank + 1), received, root)
        if received is not None:
            wanted = numpy.concatenate([bench.pattern(count, kind, part + 1) for part in range(size)])
            bench.findings.array(what, received, wanted, part=count)
        else:
            bench.findings.compared += 1  # taking part without an error is what this rank can prove
    counts = [part % 3 + 1 for part in range(size)]
    for root in bench.roots():
        what = bench.doing(f"gather of unequal parts to rank {root}")
        received = bench.blank(sum(counts), "f8") if rank == root else None
        target = [received, counts] if received is not None else None
        bench.comm.Gatherv(bench.pattern(counts[rank], "f8", rank + 5), target, root)
        if received is not None:
            wanted = numpy.concatenate([bench.pattern(counts[part], "f8", part + 5) for part in range(size)])
            bench.findings.array(what, received, wanted)


def reduce(bench: Bench) -> None:
    """Sums and maxima of everybody's numbers at one root."""
    mpi, rank, size = bench.mpi, bench.rank, bench.size
    for name, operation, scale, kinds in (
        ("sum", mpi.SUM, size * (size + 1) // 2, NUMBER_TYPES),
        ("max", mpi.MAX, size, ORDERED_TYPES),
    ):
        for kind, count, root in bench.cases(kinds):
            what = bench.doing(f"reduce {name} {kind}[{count}] to rank {root}")
            received = bench.blank(count, kind) if rank == root else None
            bench.comm.Reduce(bench.pattern(count, kind, rank + 1), received, op=operation, root=root)
            if received is not None:
                bench.findings.array(what, received, bench.pattern(count, kind, scale))
            else:
                bench.findings.compared += 1  # as in gather


def allreduce(bench: Bench) -> None:
    """Minima, maxima and sums of everybody's numbers at everybody."""
    mpi, rank, size = bench.mpi, bench.rank, bench.size
    for name, operation, scale, kinds in (
        ("min", mpi.MIN, 1, ORDERED_TYPES),
        ("max", mpi.MAX, size, ORDERED_TYPES),
        ("sum", mpi.SUM, size * (size + 1) // 2, NUMBER_TYPES),
    ):
        for kind, count, _ in bench.cases(kinds):
            what = bench.doing(f"allreduce {name} {kind}[{count}]")
            received = bench.blank(count, kind)
            bench.comm.Allreduce(bench.pattern(count, kind, rank + 1), received, op=operation)
            bench.findings.array(what, received, bench.pattern(count, kind, scale))
    what = bench.doing("allreduce sum in place")
    buffer = bench.pattern(1001, "f8", rank + 1)
    bench.comm.Allreduce(mpi.IN_PLACE, buffer, op=mpi.SUM)
    bench.findings.array(what, buffer, bench.pattern(1001, "f8", size * (size + 1) // 2))


CHECKS = {
    "point_to_point": point_to_point,
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "allreduce": allreduce,
}


def work(rank: rank_program.Rank) -> int:
    """Run one of the checks with mpi4py and report."""
    if rank.arguments.check == "hello":
        hello = rank.arguments.hello
        os.execv(hello, [hello])  # noqa: S606 - no shell is wanted

    def body(mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        CHECKS[rank.arguments.check](Bench(mpi, np, rank))

    return rank_program.with_mpi(rank, body)


def main() -> int:
    """Say that this rank is up, then run the check."""
    parser = rank_program.parser("Prove that MPI gives right answers. Started by mpirun.", ["hello", *CHECKS])
    parser.add_argument("--hello", default=HELLO, help="the C program of the check 'hello'")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
