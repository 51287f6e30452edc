"""Measure MPI's collectives over message sizes, and prove once for each size that the data arrives right.

mpirun starts one process per rank; ``rank_program.py`` explains the lines that they print. NCCL (``nccl_sweep.py``) and
Horovod (``horovod_checks.py``) use the same sweep.

A size has nccl-tests' meaning (NVIDIA/nccl-tests, doc/PERFORMANCE.md). It is the bytes of the whole array, not of one
rank's share. Every rank has that array at the end (allreduce, broadcast, allgather) or at the start (reduce-scatter,
all-to-all). Values are float32. An operation that divides the array is left out at sizes that it cannot divide evenly
to within a hundredth.

A sample is the time of one operation. Ranks meet and start several operations one after the other. The time of the
slowest rank is divided by their number, which makes a sample long enough for the clock. The first rank decides how many
samples are taken, and when. Operations are called from Python, which adds one or two microseconds to the smallest
sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import measure
import rank_program

OPERATIONS = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall")
SHARED_OUT = ("allgather", "reduce_scatter", "alltoall")
VALUE_BYTES = 4  # float32
UNEVEN = 0.01  # share of an array that may be left over when it is divided

PERIOD = 251  # values repeat after so many; a sum over 60,000 ranks is still exact in float32
STRIDE = 17  # shift between the values of two neighbours
BLANK = -77.0  # never a right answer
ROOT = 0

SAMPLE_S = 0.002  # length of a sample of short operations
MOST_LAUNCHES = 50  # operations in a sample
WARM_UP = 1
AT_LEAST, AT_MOST = 6, 1000  # samples; an interval of 95 % takes six
PATIENCE = 6.0  # budgets in which AT_LEAST long samples may be taken
TURNS = 6  # operations that a point is expected to take, with a margin
LATENCY_BYTES = 65536  # below it an array takes about as long as a smaller one
ARRAYS = 8  # arrays of a point's size that a rank may need at once: two buffers, expected values, comparisons
MEASURE_SHARE = 0.8  # of the deadline
OWN_BUFFER = "its own send buffer"  # as the check on the controller knows it


class Point(NamedTuple):
    """One operation at one size."""

    operation: str
    size_bytes: int

    @property
    def words(self) -> str:
        return f"{self.operation.replace('_', '-')} of {self.size_bytes} bytes"


class Data:
    """What ranks send, and what must arrive: whole numbers that differ by position and by rank."""

    def __init__(self, numpy: Any, rank: int, size: int) -> None:
        """Know who this is, and how many there are."""
        self.numpy, self.rank, self.size = numpy, rank, size

    def of(self, rank: int, first: int, count: int) -> Any:
        """Return the values of a rank's array from position ``first`` on."""
        period = (self.numpy.arange(PERIOD) + first + STRIDE * rank) % PERIOD
        return self.numpy.resize(period.astype("f4"), count)

    def sums(self, first: int, count: int) -> Any:
        """Return the sums of all ranks' values."""
        numpy = self.numpy
        places = numpy.arange(PERIOD)[:, None] + first + STRIDE * numpy.arange(self.size)[None, :]
        return numpy.resize((places % PERIOD).sum(axis=1).astype("f4"), count)

    def sent(self, point: Point) -> Any:
        count = point.size_bytes // VALUE_BYTES
        share = count // self.size
        if point.operation == "allgather":
            return self.of(self.rank, 0, share)
        if point.operation in SHARED_OUT:
            return self.of(self.rank, 0, share * self.size)
        return self.of(self.rank, 0, count)

    def expected(self, point: Point) -> Any:
        numpy, rank, everybody = self.numpy, self.rank, range(self.size)
        count = point.size_bytes // VALUE_BYTES
        share = count // self.size
        if point.operation == "allreduce":
            return self.sums(0, count)
        if point.operation == "broadcast":
            return self.of(ROOT, 0, count)
        if point.operation == "allgather":
            return numpy.concatenate([self.of(other, 0, share) for other in everybody])
        if point.operation == "reduce_scatter":
            return self.sums(rank * share, share)
        return numpy.concatenate([self.of(other, rank * share, share) for other in everybody])

    def shares(self, point: Point) -> Callable[[Any], Any] | None:
        """Return what tells each rank's share of the sums at some places, None where nothing is summed."""
        if point.operation not in {"allreduce", "reduce_scatter"}:
            return None
        numpy, share = self.numpy, point.size_bytes // VALUE_BYTES // self.size
        first = self.rank * share if point.operation == "reduce_scatter" else 0
        return lambda places: ((places + first + STRIDE * numpy.arange(self.size)[:, None]) % PERIOD).tolist()

    def part(self, point: Point) -> int:
        """Return how many of the values that arrive come from each rank, where they do."""
        return point.size_bytes // VALUE_BYTES // self.size if point.operation in {"allgather", "alltoall"} else 0


def points(operations: Sequence[str], sizes: Sequence[int], ranks: int) -> Iterator[Point]:
    """Yield the points to measure, small sizes first; the module says which are left out."""
    for size_bytes in sorted(set(sizes)):
        count = size_bytes // VALUE_BYTES
        for operation in operations:
            if count and not (operation in SHARED_OUT and count % ranks > UNEVEN * count):
                yield Point(operation, size_bytes)


class Mpi:
    """The ranks among themselves, and MPI's collectives on arrays in main memory."""

    name = "mpi"

    def __init__(self, mpi: Any, numpy: Any) -> None:
        self.comm, self.numpy = mpi.COMM_WORLD, numpy
        self.rank, self.size = int(self.comm.Get_rank()), int(self.comm.Get_size())
        self.run: Callable[[], object] = self.comm.Barrier
        self.given: Any = None
        self.got: Any = None

    def gathered(self, value: float) -> list[float]:
        return list(self.comm.allgather(value))

    def first_says(self, value: float) -> float:
        """Return the first rank's number."""
        return float(self.comm.bcast(value, root=0))

    def meet(self) -> None:
        self.comm.Barrier()

    def wait(self) -> None:
        """Wait until all that was started is done: every call of MPI returns when it is."""

    def load(self, point: Point, given: Any, room: int) -> None:
        """Make :attr:`run` an operation on an array, with a buffer for so many values to come."""
        comm, got = self.comm, self.numpy.full(room, BLANK, dtype="f4")
        if point.operation == "broadcast" and self.rank == ROOT:
            got[:] = given
        self.given, self.got = given, got
        self.run = {
            "allreduce": lambda: comm.Allreduce(given, got),
            "broadcast": lambda: comm.Bcast(got, root=ROOT),
            "allgather": lambda: comm.Allgather(given, got),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(given, got),
            "alltoall": lambda: comm.Alltoall(given, got),
        }[point.operation]

    def sent(self) -> Any:
        """Return what the send buffer holds."""
        return self.given

    def received(self) -> Any:
        return self.got


class Sweep:
    """Go through all points: prove each, and measure it as long as it is worth it."""

    def __init__(self, report: rank_program.Rank, backend: Any, numpy: Any) -> None:
        """Take the options from the report's arguments.

        Args:
            report: what this rank finds goes there.
            backend: what moves arrays; :class:`Mpi` shows what one has to have.
            numpy: the module.
        """
        self.report, self.backend, self.options = report, backend, report.arguments
        self.data = Data(numpy, backend.rank, backend.size)
        self.is_first = backend.rank == 0

    def go(self, room_bytes: float = float("inf")) -> None:
        """Do it; the first rank prints the figures.

        Args:
            room_bytes: the largest array for which there is memory everywhere.
        """
        until = self.report.began + MEASURE_SHARE * self.options.deadline
        offered = getattr(self.backend, "offers", OPERATIONS)
        operations = [name for name in self.options.operations if name in offered]
        plan = list(points(operations, self.options.sizes, self.backend.size))
        last: dict[str, tuple[int, float]] = {}  # size and seconds of an operation's last point
        left_out: list[Point] = []
        processors = measure.CpuWatch()
        for point in plan:
            size_bytes, seconds = last.get(point.operation, (point.size_bytes, 0.0))
            growth = max(point.size_bytes, LATENCY_BYTES) / max(size_bytes, LATENCY_BYTES)
            wanted_s = seconds * growth * TURNS
            fits = point.size_bytes <= room_bytes and time.monotonic() + wanted_s < until
            if not self.backend.first_says(float(fits)):
                left_out.append(point)
                continue
            last[point.operation] = point.size_bytes, self._point(point, until)
        processors.report(self.report)
        self.report.facts["points"] = f"{len(plan) - len(left_out)} of {len(plan)}"
        if left_out:
            self.report.facts["left_out"] = _listed(left_out)

    def _point(self, point: Point, until: float) -> float:
        """Prove and measure one point; return the seconds of one operation."""
        self.prove(point)
        if max(self.backend.gathered(float(self.report.findings.wrong))) > 0:
            return 0.0  # the speed of wrong answers is of no use
        self.report.doing(f"measuring {point.words}")
        first_s = max(self.backend.gathered(self._timed(1)))
        launches = int(self.backend.first_says(max(1, min(MOST_LAUNCHES, int(SAMPLE_S / max(first_s, 1e-7))))))
        sampling = measure.Sampling(
            warmup=WARM_UP if launches > 1 else 0,  # one alone has run twice
            at_least=AT_LEAST,
            at_most=AT_MOST,
            budget_s=self.options.budget,
            patience=PATIENCE,
            confidence=self.options.confidence,
            precision=self.options.precision,
            deadline=until,
        )
        while self.backend.first_says(float(self.is_first and sampling.more())):
            times = self.backend.gathered(self._timed(launches) / launches)
            if self.is_first:
                sampling.add(max(times))
        if not self.is_first or not sampling.values:
            return first_s
        self.tell(point, sampling.values)
        return sampling.samples.median

    def tell(self, point: Point, samples: Sequence[float]) -> None:
        """Print the figures of a point; ``samples`` are the seconds of one operation."""
        measure.say(
            self.report.voice,
            samples,
            quantity="time",
            unit="s",
            better="lower",
            operation=point.operation,
            backend=self.backend.name,
            bytes=point.size_bytes,
        )

    def prove(self, point: Point) -> None:
        """Run an operation once and compare what arrived; it opens the connections, too."""
        findings, data = self.report.findings, self.data
        what = self.report.doing(point.words)
        expected = data.expected(point)
        self.backend.load(point, data.sent(point), len(expected))
        self.backend.meet()
        self.backend.run()
        self.backend.wait()
        findings.array(f"{OWN_BUFFER} after {what}", self.backend.sent(), data.sent(point))
        source = f" from rank {ROOT}" if point.operation == "broadcast" else ""
        more = {"parts": data.part(point), "shares": data.shares(point)}
        findings.array(f"{what}{source}", self.backend.received(), expected, **more)

    def _timed(self, count: int) -> float:
        """Return the seconds that so many operations took here."""
        backend = self.backend
        backend.meet()
        began = time.perf_counter()
        for _unused in range(count):
            backend.run()
        backend.wait()
        return time.perf_counter() - began


def _listed(left_out: Sequence[Point]) -> str:
    """Return from which size on an operation was left out."""
    smallest: dict[str, int] = {}
    for point in left_out:
        smallest.setdefault(point.operation, point.size_bytes)
    return ", ".join(f"{operation} from {size} bytes on" for operation, size in smallest.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", type=_words, default=OPERATIONS, help="joined by commas")
    parser.add_argument("--sizes", type=_numbers, default=[8, 1024, 65536, 1048576], help="bytes, joined by commas")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for one operation and size")
    parser.add_argument("--confidence", type=float, default=0.95, help="probability of a median's interval")
    parser.add_argument(
        "--precision", type=float, default=0.05, help="how narrow it has to be, as a part of the median"
    )


def _words(text: str) -> list[str]:
    found = text.split(",")
    unknown = [word for word in found if word not in OPERATIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no operations: {', '.join(unknown)}")
    return found


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def work(rank: rank_program.Rank) -> int:
    def body(mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        backend = Mpi(mpi, np)
        local_size = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
        Sweep(rank, backend, np).go(min(backend.gathered(measure.available_bytes() / local_size / ARRAYS)))

    return rank_program.with_mpi(rank, body)


def main() -> int:
    """Say that this rank is up, then measure."""
    parser = rank_program.parser("Measure MPI's collectives over message sizes. Started by mpirun.", ["collectives"])
    add_options(parser)
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
