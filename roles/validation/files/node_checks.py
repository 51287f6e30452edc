"""Measure memory bandwidth and compute speed of every node alone, to tell a slow node from a slow link.

mpirun starts one process per node; ``rank_program.py`` and ``measure.py`` explain the lines that they print. All nodes
measure at the same time. Nodes that are containers of one machine take turns, because they share its cores.

``memory_bandwidth``  A thread on every core copies its part of an array that is larger than the caches. Bytes read and
                      written count, 16 for each number of 8, as in STREAM's "copy" (McCalpin, "Memory Bandwidth and
                      Machine Balance in Current High Performance Computers", 1995). Many processors also read what they
                      are about to overwrite; that does not count.
``compute``           A thread on every core multiplies matrices of 256 x 256 float64 that fit into its cache. Each of
                      the n x n results takes n additions and n multiplications, 2 n^3 in all.

A sample lasts longer than 200 ms. That is twice the period in which the kernel gives a control group its share of the
processors, so a limited node shows its limit in every sample. The nodes are measured several times, each time with a
part of the budget. A short disturbance then affects only a part of a node's samples.

On a node with a machine of its own, other load on the processors counts against the node. On a machine with several
nodes it does not: only the time counts in which threads had a processor or the node's own control group held them
back.
"""

from __future__ import annotations

import collections
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import gpu_state
import measure
import rank_program

CHECK = "node_speed"
PASSES = 3
WINDOW_S = (
    0.21  # length of a sample: two of the kernel's periods (cpu.cfs_period_us, cpu.max), so that samples are alike
)
AT_LEAST, AT_MOST = 2, 100  # samples of a pass; three passes make the six that an interval of 95 % takes
PATIENCE = 6.0  # budgets in which AT_LEAST samples may be taken
RESERVE = 0.85  # share of the deadline for the checks; the rest is for the start and the end
SHARE = 0.7  # share of that time for the planned measurements
MIB = 1 << 20
LEAST_ARRAY, MOST_ARRAY = 64 * MIB, 1024 * MIB  # bytes
CACHES = 4.0  # size of an array over the size of the largest cache
PART_OF_MEMORY = 1 / 16  # memory for each of the two arrays
PIECE = MIB // 8  # numbers that are copied at once
ORDER = 256  # of the matrices
MOST_THREADS = 256
SHORTEST_S = 0.001  # processor time in a window
CPUS = Path("/sys/devices/system/cpu")


class Bench:
    """A node with its arrays and what the user wants."""

    def __init__(self, mpi: Any, numpy: Any, rank: rank_program.Rank, deadline: float) -> None:
        """Learn how many cores this process may use."""
        self.numpy, self.rank, self.comm = numpy, rank, mpi.COMM_WORLD
        self.options, self.deadline = rank.arguments, deadline
        self.budget_s = self.options.budget / PASSES
        self.threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))

    def wait_for_all(self, what: str) -> None:
        """Wait without keeping a core busy, because another process may measure on it."""
        self.rank.doing(what)
        measure.wait_quietly(self.comm.Ibarrier())

    def memory(self) -> tuple[Callable[[int], Callable[[], float]], Callable[[], None]]:
        """Return what makes each thread's work, and what proves it."""
        numpy = self.numpy
        count = array_bytes(CPUS, measure.available_bytes()) // 8
        source, target = numpy.empty(count), numpy.empty(count)
        block = numpy.arange(PIECE) % 1021 + 1.0
        edges = [count * number // self.threads for number in range(self.threads + 1)]

        def work(number: int) -> Callable[[], float]:
            first, last = edges[number], edges[number + 1]
            places = [(at, min(at + PIECE, last)) for at in range(first, last, PIECE)]
            for begin, end in places:  # first touched by the thread that copies it, so that its memory is near
                source[begin:end] = block[: end - begin]
                source[begin] = begin
                target[begin:end] = 0
            parts = itertools.cycle(places)

            def piece() -> float:
                begin, end = next(parts)
                numpy.copyto(target[begin:end], source[begin:end])
                return 16.0 * (end - begin)

            return piece

        def prove() -> None:
            for at in range(0, count, PIECE):
                part = slice(at, min(at + PIECE, count))
                if target[part].any():  # a thread had not come that far
                    self.rank.findings.array("a copy in memory", target[part], source[part])

        return work, prove

    def compute(self) -> tuple[Callable[[int], Callable[[], float]], Callable[[], None]]:
        """Return what makes each thread's work, and what proves it."""
        numpy = self.numpy
        values = numpy.arange(ORDER)
        left, right = (values[:, None] * 3 + values) % 7, (values[:, None] + values * 5) % 11
        exact = (left @ right).astype("f8")  # of whole numbers, which no library multiplies its own way
        products: dict[int, Any] = {}

        def work(number: int) -> Callable[[], float]:
            first, second, product = left.astype("f8"), right.astype("f8"), numpy.zeros((ORDER, ORDER))
            products[number] = product

            def piece() -> float:
                numpy.matmul(first, second, out=product)
                return 2.0 * ORDER**3

            return piece

        def prove() -> None:
            for number, product in products.items():
                self.rank.findings.array(f"a product of matrices, thread {number}", product, exact)

        return work, prove


class Crew:
    """Threads that work for a window of time, all at once."""

    def __init__(self, count: int, make: Callable[[int], Callable[[], float]], *, shared: bool = False) -> None:
        """Start the threads; each makes its own work, so that its memory lies beside its core.

        Args:
            count: of the threads.
            make: makes a thread's work, which returns how much it has done.
            shared: the processors are those of other nodes as well.
        """
        self.start, self.end = threading.Barrier(count + 1), threading.Barrier(count + 1)
        self.shared = shared
        self.done, self.seconds = [0.0] * count, [0.0] * count
        self.problem: Exception | None = None
        self.over = False
        for number in range(count):
            threading.Thread(target=self.toil, args=(number, make), daemon=True).start()
        self.wait(self.end)

    def toil(self, number: int, make: Callable[[int], Callable[[], float]]) -> None:
        """Do one thread's work, window by window."""
        try:
            piece = make(number)
            self.end.wait()
            while True:
                self.start.wait()
                if self.over:
                    return
                done, had_s = 0.0, time.thread_time()
                began = now = time.perf_counter()
                while now - began < WINDOW_S:
                    done += piece()
                    now = time.perf_counter()
                self.done[number] = done
                self.seconds[number] = time.thread_time() - had_s if self.shared else now - began
                self.end.wait()
        except threading.BrokenBarrierError:
            return
        except Exception as problem:  # noqa: BLE001 - the rank reports it as its own
            self.problem = problem
            self.start.abort()
            self.end.abort()

    def window(self) -> float:
        """Work for one window; what all threads did in a second."""
        held_s = throttled_s(measure.CGROUPS)
        self.wait(self.start)
        self.wait(self.end)
        held_s = (throttled_s(measure.CGROUPS) - held_s) / len(self.done) if self.shared else 0.0
        return sum(done / max(SHORTEST_S, s + held_s) for done, s in zip(self.done, self.seconds))  # noqa: B905 - 3.9

    def wait(self, barrier: threading.Barrier) -> None:
        """Wait for all threads; raise what one of them raised."""
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            raise self.problem or RuntimeError("a thread was lost") from None

    def dismiss(self) -> None:
        """Let the threads go."""
        self.over = True
        self.wait(self.start)


def throttled_s(groups: Path) -> float:
    """Return the seconds, over all processors, for which this control group was held back, of either version."""
    for name, key, unit_s in (
        ("cpu.stat", "throttled_usec", 1e-6),
        ("cpu/cpu.stat", "throttled_time", 1e-9),
        ("cpu,cpuacct/cpu.stat", "throttled_time", 1e-9),
    ):
        words = dict(line.split(maxsplit=1) for line in measure.read(groups / name).splitlines() if " " in line)
        if words.get(key, "").isdigit():
            return int(words[key]) * unit_s
    return 0.0


def array_bytes(cpus: Path, available: float) -> int:
    """Return how large an array has to be that no cache holds, and how large it may be."""
    caches: dict[str, float] = {}  # by the cores that share it
    for index in cpus.glob("cpu[0-9]*/cache/index3"):
        size = measure.read(index / "size")
        if size.endswith("K") and size[:-1].isdigit():
            caches[measure.read(index / "shared_cpu_list")] = 1024.0 * int(size[:-1])
    wanted = max(LEAST_ARRAY, min(MOST_ARRAY, CACHES * sum(caches.values())))
    return int(max(MIB, min(wanted, available * PART_OF_MEMORY)))


def go(bench: Bench) -> None:
    """Measure in turns, prove what was computed, and print what each node has measured."""
    comm, rank = bench.comm, bench.rank
    rank.doing("the machines of all")
    machines = comm.allgather(measure.machine())
    turn = machines[: rank.rank].count(machines[rank.rank])
    turns = max(collections.Counter(machines).values())
    left = SHARE * (bench.deadline - time.monotonic())
    bench.budget_s = min(bench.budget_s, max(0.0, left) / (turns * PASSES * 2))
    rank.facts["threads"] = str(bench.threads)
    processors = measure.CpuWatch()
    for quantity, unit, work in (
        ("memory_bandwidth", "B/s", bench.memory),
        ("compute", "FLOP/s", bench.compute),
    ):
        found: list[float] = []
        make, prove = work()
        crew: Crew | None = None
        for number in range(PASSES * turns):
            bench.wait_for_all(f"turn {number + 1} of {PASSES * turns} of {quantity}")
            if number % turns != turn:
                continue
            rank.doing(quantity)
            if crew is None:
                crew = Crew(bench.threads, make, shared=machines.count(machines[rank.rank]) > 1)
                crew.window()  # not kept: caches are cold, and clocks low
            found += samples_of(crew, bench).values
        if crew is not None:
            crew.dismiss()
        prove()
        if found:
            measure.say(rank.voice, found, quantity=quantity, unit=unit, better="higher")
    processors.report(rank)
    looks = gpu_state.quietly()
    gpu_state.report(rank, looks)
    rank.figures.update(gpu_state.clock_figures(looks))


def samples_of(crew: Crew, bench: Bench) -> measure.Samples:
    """Take a pass's samples."""
    return measure.until_sure(
        crew.window,
        warmup=0,
        at_least=AT_LEAST,
        at_most=AT_MOST,
        budget_s=bench.budget_s,
        confidence=bench.options.confidence,
        precision=bench.options.precision,
        deadline=bench.deadline,
        patience=PATIENCE,
    )


def work(rank: rank_program.Rank) -> int:
    deadline = rank.began + RESERVE * rank.arguments.deadline

    def body(mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        go(Bench(mpi, np, rank, deadline))

    return rank_program.with_mpi(rank, body)


def main() -> int:
    """Say that this rank is up, then measure."""
    parser = rank_program.parser("Measure every node by itself. Started by mpirun, one process a node.", [CHECK])
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each of the figures")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the interval of each median")
    parser.add_argument("--precision", type=float, default=0.02, help="half width of the interval that is enough")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
