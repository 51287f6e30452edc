"""Copy much memory on every core of every node and compare every bit, to find a node that corrupts data silently.

mpirun starts one process per node; ``rank_program.py`` explains the lines that it prints. A thread on every core that
this process may use makes the copies. All nodes work at the same time.

A copy moves ``--size`` bytes from one of two buffers to a third. The second buffer holds the inverse of the first, and
both are copied in turn, so every copy has to change every bit. The patterns change: random bits, halves and stripes
of bits, and single bits that walk. ``memcmp`` compares the copy with its source. Where they differ, the finding names
the core, the number of the copy, the byte, and the bits that are wrong.

A copy that goes wrong with the probability r is missed in all of n copies with (1 - r)^n. So n = log(1 - chance) /
log(1 - r) copies of a core find a core at fault with this chance. Each core makes that many, or as many as the
budget allows; ``copies`` among the facts is the least number of any core.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from typing import Any

import rank_program

CHECK = "copies"
RESERVE = 0.85  # share of the deadline for the copies; the rest is for the start and the end
WORD = 8  # bytes
ALTERNATIONS = 128  # copies of each buffer before the pattern changes
BITS = 64
MOST_THREADS = 256
STRIPES = (0, 0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF)


def wanted(chance: float, one_in: float) -> int:
    """Return how many copies find a fault with this chance.

    Args:
        chance: the probability that the fault shows at least once, above 0 and below 1.
        one_in: one of so many copies goes wrong, more than 1.
    """
    return math.ceil(math.log1p(-chance) / math.log1p(-1 / one_in))


class Core:
    """The copies of one core."""

    def __init__(self, numpy: Any, core: int, size: int, seed: int) -> None:
        """Take the buffers; the thread of the core does it, so that its memory lies beside it."""
        self.numpy, self.core = numpy, core
        self.words = max(1, size // WORD)
        self.random = numpy.random.default_rng(seed)
        self.sources = (numpy.empty(self.words, "u8"), numpy.empty(self.words, "u8"))
        self.target = numpy.empty(self.words, "u8")
        self.addresses = [(source, source.ctypes.data) for source in self.sources]
        self.to, self.bytes = self.target.ctypes.data, self.target.nbytes
        self.compare = ctypes.CDLL(None).memcmp
        self.compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.made = self.patterns = 0

    def fill(self) -> None:
        """Have the next pattern in the first buffer, and its inverse in the second."""
        first, second = self.sources
        kind = self.patterns % (len(STRIPES) + 2)
        if kind == 0:
            first[:] = self.random.integers(0, 1 << BITS, self.words, dtype="u8", endpoint=False)
        elif kind <= len(STRIPES):
            first[:] = STRIPES[kind - 1]
        else:
            first[:] = self.numpy.left_shift(self.numpy.uint64(1), self.numpy.arange(self.words, dtype="u8") % BITS)
        self.numpy.invert(first, out=second)
        self.patterns += 1

    def copy(self, number: int) -> bool:
        """Copy one of the buffers; whether every bit is as in it."""
        source, address = self.addresses[number % 2]
        self.numpy.copyto(self.target, source)
        self.made += 1
        return self.compare(self.to, address, self.bytes) == 0  # both calls let the other threads go on

    def difference(self, number: int) -> dict[str, Any]:
        """Describe what is wrong with the copy just made, by its first wrong word."""
        source = self.sources[number % 2]
        wrong = self.target != source
        places = wrong.nonzero()[0]
        if not places.size:
            return {"words": 0, "byte": 0, "expected": "the same bytes twice", "got": "other bytes at the first look"}
        at = int(places[0])
        expected, got = int(source[at]), int(self.target[at])
        return {
            "words": int(places.size),
            "byte": at * WORD,
            "expected": f"{expected:#018x}",
            "got": f"{got:#018x} (wrong bits {expected ^ got:#x})",
        }

    def is_whole(self) -> bool:
        """Whether the buffers are still the inverse of each other."""
        first, second = self.sources
        return bool((self.numpy.bitwise_xor(first, second) == self.numpy.uint64((1 << BITS) - 1)).all())


class Crew:
    """A thread on every core."""

    def __init__(self, numpy: Any, rank: rank_program.Rank, until: float) -> None:
        """Learn the cores and the number of copies."""
        options = rank.arguments
        self.numpy, self.rank, self.until = numpy, rank, until
        self.size = options.size
        self.wanted = wanted(options.chance, options.one_in)
        self.cores = sorted(os.sched_getaffinity(0))[:MOST_THREADS]
        self.made = dict.fromkeys(self.cores, 0)
        self.lock = threading.Lock()
        self.problem: Exception | None = None

    def work(self) -> None:
        """Have all cores make their copies; raise what one of the threads raised."""
        threads = [threading.Thread(target=self.toil, args=(core,), daemon=True) for core in self.cores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.problem is not None:
            raise self.problem

    def toil(self, core: int) -> None:
        try:
            os.sched_setaffinity(0, {core})  # of this thread alone
            self.copies(Core(self.numpy, core, self.size, seed=self.rank.rank * MOST_THREADS + core))
        except Exception as problem:  # noqa: BLE001 - the rank reports it as its own
            self.problem = problem

    def copies(self, own: Core) -> None:
        """Copy until there are as many copies as wanted, or until the time is up."""
        while own.made < self.wanted and time.monotonic() < self.until:
            own.fill()
            for number in range(min(2 * ALTERNATIONS, self.wanted - own.made)):
                if not own.copy(number):
                    self.note(own, own.difference(number))
                if time.monotonic() >= self.until:
                    break
            if not own.is_whole():
                what = f"a pattern and its inverse on core {own.core}, after {own.made:,} copies"
                with self.lock:
                    self.rank.findings.value(what, "each bit in one of them", "a bit in both or in none")
            self.made[own.core] = own.made
        with self.lock:
            self.rank.findings.compared += own.made * own.words

    def note(self, own: Core, found: dict[str, Any]) -> None:
        where = f"copy {own.made:,} of {own.words * WORD:,} bytes on core {own.core}, byte {found['byte']:,}"
        count = f"({found['words']} of {own.words:,} words wrong)"
        with self.lock:
            self.rank.findings.note(f"{where} {count}", found["expected"], found["got"])


def work(rank: rank_program.Rank) -> int:
    """Make this node's copies and report."""
    ends = rank.began + RESERVE * rank.arguments.deadline

    def body(_mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        rank.doing("copies of memory")
        crew = Crew(np, rank, min(ends, time.monotonic() + rank.arguments.budget))
        crew.work()
        rank.facts.update({"copies": str(min(crew.made.values())), "cores": str(len(crew.cores))})

    return rank_program.with_mpi(rank, body)


def main() -> int:
    """Say that this rank is up, then copy."""
    parser = rank_program.parser("Copy memory on every core. Started by mpirun, one process a node.", [CHECK])
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of a copy, a multiple of 8")
    parser.add_argument("--one-in", type=float, default=1e4, help="one of so many copies of a core at fault is wrong")
    parser.add_argument("--chance", type=float, default=0.95, help="of finding such a core")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for all copies")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
