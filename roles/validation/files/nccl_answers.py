"""Prove that NCCL's operations give right answers, for every type and several counts.

Answers are compared with those known beforehand: small integers, exact in every type used, so there is no tolerance.
Buffers are filled with another pattern before each operation. A margin behind each buffer must keep that pattern.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from nccl_library import FLOAT32, MAX, MIN, SUM
from rank_program import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nccl_communicator import Communicator

COUNTS = (1, 3, 1001, 40009, 1048583)  # values; the largest is beyond every switch of protocol. See Answers.counts
MARGIN = 64  # values behind the end of every receive buffer
ALL_PAIRS_UP_TO = 32  # ranks; beyond it send and receive go at distances 1, 2, 4, ...
ANSWERS_SHARE = 0.5  # of the deadline; later answers are left out, and the record says so


class Kind(NamedTuple):
    """A type of values: its number in ncclDataType_t, how it is stored, and up to where every integer is exact."""

    name: str
    number: int
    storage: str
    exact_to: int


KINDS = (
    Kind("u1", 1, "u1", 254),  # 255 fills the buffers before
    Kind("i4", 2, "i4", 2**31 - 1),
    Kind("i8", 4, "i8", 2**53),
    Kind("f2", 6, "f2", 2**11),
    Kind("bf16", 9, "u2", 2**8),
    Kind("f4", FLOAT32, "f4", 2**24),
    Kind("f8", 8, "f8", 2**53),
)


def distances(size: int) -> list[int]:
    """Return the distances between ranks that send to each other; up to 32 ranks, all of them."""
    if size == 1:
        return [0]
    return list(range(1, size)) if size <= ALL_PAIRS_UP_TO else [2**power for power in range(size.bit_length() - 1)]


class Answers:
    """Run every operation with known values, and note each wrong answer."""

    def __init__(self, team: Communicator) -> None:
        """Take a communicator that the ranks have joined."""
        self.team, self.numpy, self.nccl, self.cuda = team, team.numpy, team.nccl, team.cuda
        self.ranks, self.report, self.rank, self.size = team.ranks, team.report, team.rank, team.size

    def values(self, count: int, rank: int) -> Any:
        """Return the numbers that a rank contributes; they differ by position and by rank."""
        return self.numpy.arange(count, dtype="i8") % 7 + 1 + rank

    def stored(self, numbers: Any, kind: Kind) -> Any:
        """Return integers as the bytes of a type; bf16 is the upper half of f4."""
        if kind.name == "bf16":
            return (numbers.astype("f4").view("u4") >> 16).astype("u2")
        return numbers.astype(kind.storage)

    def read(self, stored: Any, kind: Kind) -> Any:
        """Return the numbers of stored bytes."""
        return (stored.astype("u4") << 16).view("f4") if kind.name == "bf16" else stored

    def counts(self) -> Iterator[int]:
        """Yield how many values; the largest is less per rank where many ranks gather, for a host must hold it all."""
        for count in COUNTS:
            yield min(count, max(COUNTS[-2], COUNTS[-1] * 8 // self.size))

    def fits(self, kind: Kind, highest: int) -> bool:
        """Whether every number up to here is exact in a type."""
        return highest <= kind.exact_to

    def prove(self, what: str, kind: Kind, sent: Any, expected: Any, launch: Callable[[], None], part: int = 0) -> None:
        """Run one operation and compare what arrived.

        Args:
            what: words for the report.
            kind: type of the values.
            sent: the numbers in the send buffer.
            expected: the numbers that must be in the receive buffer; None for a rank that receives nothing.
            launch: calls NCCL.
            part: number of values of the answer that come from each rank, 0 otherwise.
        """
        numpy, cuda = self.numpy, self.cuda
        what = self.report.doing(f"{what} {kind.name}[{len(sent)}]")
        blank = kind.exact_to + 1 if kind.name == "u1" else -77
        room = (0 if expected is None else len(expected)) + MARGIN
        received = self.stored(numpy.full(room, blank, dtype="i8"), kind)
        content = self.stored(sent, kind)
        cuda.reserve(max(content.nbytes, received.nbytes))
        cuda.upload(cuda.send, content)
        cuda.upload(cuda.receive, received)
        launch()
        self.team.wait()
        if expected is None:
            self.report.findings.compared += 1  # taking part without an error is what this rank can prove
            return
        cuda.download(received, cuda.receive)
        got, wanted = self.read(received, kind), self.read(self.stored(expected, kind), kind)
        self.report.findings.array(what, got[: len(wanted)], wanted, part)
        margin = self.read(self.stored(numpy.full(MARGIN, blank, dtype="i8"), kind), kind)
        self.report.findings.array(f"{what}: the margin behind the buffer", got[len(wanted) :], margin)

    def prove_all(self, until: float) -> None:
        """Prove every operation with every type, small counts first; the first rank decides when it has been enough."""
        done = 0
        for count in self.counts():
            if not self.ranks.first_says(time.monotonic() < until):
                break
            for number, kind in enumerate(KINDS):
                self._reductions(kind, count, number % self.size)
                self._copies(kind, count, (number + self.size // 2) % self.size)
            done = count
        self.report.facts["largest"] = f"{done} values a rank"
        if done < COUNTS[-2]:
            raise CheckError(f"too slow: only {done} values a rank were proved in {ANSWERS_SHARE:.0%} of the deadline")

    def _reductions(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.team.handle, self.size, self.cuda.stream
        mine, position = self.values(count, self.rank), self.values(count, 0)
        ranks_sum = size * (size - 1) // 2
        for name, operation, expected in (
            ("sum", SUM, position * size + ranks_sum),
            ("max", MAX, position + size - 1),
            ("min", MIN, position),
        ):
            if not self.fits(kind, int(expected.max())):
                continue

            def allreduce(operation: int = operation) -> None:
                nccl("ncclAllReduce", cuda.send, cuda.receive, count, kind.number, operation, comm, stream)

            self.prove(f"allreduce {name}", kind, mine, expected, allreduce)
        if not self.fits(kind, 7 * size + ranks_sum):
            return
        total = position * size + ranks_sum

        def reduce() -> None:
            nccl("ncclReduce", cuda.send, cuda.receive, count, kind.number, SUM, root, comm, stream)

        self.prove(f"reduce to rank {root}", kind, mine, total if self.rank == root else None, reduce)

        def reduce_scatter() -> None:
            nccl("ncclReduceScatter", cuda.send, cuda.receive, count, kind.number, SUM, comm, stream)

        whole = self.values(count * size, 0)
        share = whole[self.rank * count : (self.rank + 1) * count] * size + ranks_sum
        self.prove("reduce-scatter", kind, whole + self.rank, share, reduce_scatter)

    def _copies(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.team.handle, self.size, self.cuda.stream
        limit = min(kind.exact_to, 251)

        def from_rank(rank: int) -> Any:
            return self.values(count, rank) % limit

        mine = from_rank(self.rank)

        def broadcast() -> None:
            nccl("ncclBroadcast", cuda.send, cuda.receive, count, kind.number, root, comm, stream)

        self.prove(f"broadcast from rank {root}", kind, mine, from_rank(root), broadcast)

        def allgather() -> None:
            nccl("ncclAllGather", cuda.send, cuda.receive, count, kind.number, comm, stream)

        everybody = self.numpy.concatenate([from_rank(rank) for rank in range(size)])
        self.prove("allgather", kind, mine, everybody, allgather, part=count)
        for distance in distances(size):
            target, source = (self.rank + distance) % size, (self.rank - distance) % size

            def exchange(target: int = target, source: int = source) -> None:
                self.team.exchange(count, kind.number, target, source)

            self.prove(f"send to rank {target}, receive from rank {source}", kind, mine, from_rank(source), exchange)
