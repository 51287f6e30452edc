"""Measure the time and the bus bandwidth of NCCL's operations as nccl-tests does."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Callable

from nccl_library import FLOAT32, FLOAT32_BYTES, SUM

if TYPE_CHECKING:
    from nccl_communicator import Communicator

SIZES = (4096, 1 << 20, 1 << 26, 1 << 29)  # bytes, as nccl-tests counts them
SHARED_SIZES = (4096, 1 << 20)
REPETITIONS = 5
REPETITION_S = 0.05  # a repetition launches as many operations as fit into this
MOST_LAUNCHES = 50
SLOWEST_S = 2.0  # an operation that is expected to take longer is not measured
MEASURE_SHARE = 0.75  # of the deadline


def bus_factor(operation: str, size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    Algorithm bandwidth is bytes over seconds. The bytes of allgather, reduce-scatter and all-to-all are those of the
    whole array (NVIDIA/nccl-tests, doc/PERFORMANCE.md; send and receive: src/sendrecv.cu). With one rank nothing
    crosses a bus, so the caller leaves the figure out.
    """
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in {"allgather", "reduce_scatter", "alltoall"}:
        return (size - 1) / size
    return 1.0


def size_words(size_bytes: int) -> str:
    """Return 4KiB, 64MiB or 1GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes}B"


def launches(seconds_per_operation: float) -> int:
    """Return how many operations make one repetition."""
    return max(1, min(MOST_LAUNCHES, int(REPETITION_S / max(seconds_per_operation, 1e-6))))


class Timing:
    """Time every operation at every size."""

    def __init__(self, team: Communicator) -> None:
        """Take a communicator that the ranks have joined."""
        self.team, self.numpy, self.nccl, self.cuda = team, team.numpy, team.nccl, team.cuda
        self.ranks, self.report, self.rank, self.size = team.ranks, team.report, team.rank, team.size

    def operations(self, size_bytes: int) -> dict[str, Callable[[], None]]:
        """Return the operations to measure: f4 values, out of place, ``size_bytes`` as nccl-tests counts them."""
        nccl, cuda, comm, stream = self.nccl, self.cuda, self.team.handle, self.cuda.stream
        count = size_bytes // FLOAT32_BYTES
        share = max(1, count // self.size)
        send, receive = cuda.send, cuda.receive
        following, preceding = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return {
            "allreduce": lambda: nccl("ncclAllReduce", send, receive, count, FLOAT32, SUM, comm, stream),
            "broadcast": lambda: nccl("ncclBroadcast", send, receive, count, FLOAT32, 0, comm, stream),
            "reduce": lambda: nccl("ncclReduce", send, receive, count, FLOAT32, SUM, 0, comm, stream),
            "allgather": lambda: nccl("ncclAllGather", send, receive, share, FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl("ncclReduceScatter", send, receive, share, FLOAT32, SUM, comm, stream),
            "send_receive": lambda: self.team.exchange(count, FLOAT32, following, preceding),
        }

    def measure(self, until: float, *, shared: bool) -> None:
        """Measure every operation and size; the first rank notes the figures and skips what would take too long.

        A repetition launches several operations one after the other and waits for the last. Its time is the average
        over the ranks, as in nccl-tests. The figure is the median of the repetitions. The calls come from Python, which
        adds a few microseconds to the smallest size. Ranks that share a GPU have no bus between them, so only times are
        noted.
        """
        with_bus = self.size > 1 and not shared
        last: dict[str, float] = {}  # the seconds that the last size took
        room = min(self.ranks.gathered(self.cuda.free_bytes())) // 4  # two buffers, and as much again left free
        sizes = [size for size in (SHARED_SIZES if shared else SIZES) if size <= room]
        for index, size_bytes in enumerate(sizes):
            growth = size_bytes / sizes[index - 1] if index else 0.0
            self.cuda.reserve(max(size_bytes, FLOAT32_BYTES * self.size))
            for name, operation in self.operations(size_bytes).items():
                expected_s = last.get(name, SLOWEST_S if index else 0.0) * growth
                if not self.ranks.first_says(expected_s < SLOWEST_S and time.monotonic() < until):
                    continue
                self.report.doing(f"measuring {name} of {size_bytes} bytes")
                seconds = self._seconds(operation)
                last[name] = seconds
                if self.rank == 0:
                    figures = self.report.figures
                    figures[f"{name}_{size_words(size_bytes)}_us"] = round(seconds * 1e6, 2)
                    if with_bus:
                        bus = size_bytes / seconds * bus_factor(name, self.size)
                        figures[f"{name}_{size_words(size_bytes)}_bus_bytes_per_s"] = float(f"{bus:.4g}")

    def _seconds(self, operation: Callable[[], None]) -> float:
        """Return the median time of one operation in seconds."""
        operation()  # connections are made at the first use
        self.team.wait()
        first = max(self.ranks.gathered(self._timed(operation, 1)))
        count = launches(first)
        repetitions = [self._timed(operation, count) / count for _unused in range(REPETITIONS)]
        everybody = self.ranks.gathered(repetitions)
        return statistics.median(statistics.fmean(times[turn] for times in everybody) for turn in range(REPETITIONS))

    def _timed(self, operation: Callable[[], None], count: int) -> float:
        self.ranks.gathered(0)
        operation()  # the ranks meet here more closely than at any barrier of the hosts
        self.team.wait()
        began = time.perf_counter()
        for _unused in range(count):
            operation()
        self.team.wait()
        return time.perf_counter() - began
