"""Measure a median: repeat until it is known well enough, keep every sample, and end in time.

The programs import this module by its bare name, because it lies in their folder. It needs Python 3.9 or newer.

A figure is a median with an interval from the order of its samples. Neither needs normal samples, because times on a
busy machine have a long tail. A measurement is one JSON line of the event ``measured``, or several lines for many
samples (``part`` of ``parts``). Only one rank writes a figure.
"""

from __future__ import annotations

import bisect
import functools
import math
import os
import socket
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

# Read the bytes that each interface and RDMA port of this node has carried, and which of them count the same bytes.
#
# Formats: Documentation/ABI/testing/sysfs-class-net-statistics and Documentation/ABI/stable/sysfs-class-infiniband of
# Linux. It needs the standard library only.

SYS = Path("/sys/class")
CGROUPS = Path("/sys/fs/cgroup")
UNKNOWN_BYTES = float(64 << 20)  # of memory, where the kernel does not tell
LOOPBACK = "772"  # ARPHRD_LOOPBACK of the kernel
MOST_CARRIERS = 12  # are told, so that a line stays below what a pipe writes in one piece


def told(before: dict[str, tuple[int, int]], root: Path = SYS) -> dict[str, list[object]]:
    """Return by how much the counters rose, received and sent, and what each lies on; the busiest come first."""
    related = relations(root)
    risen = {
        name: [now[0] - before[name][0], now[1] - before[name][1], related.get(name, "")]
        for name, now in counters(root).items()
        if name in before
    }
    order = sorted(risen, key=lambda name: -(int(risen[name][0]) + int(risen[name][1])))
    return {name: risen[name] for name in order[:MOST_CARRIERS]}


def counters(root: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes that every interface and every RDMA port of a node has received and sent.

    Ports are named ``mlx5_0/1``; what InfiniBand calls data is counted in words of four bytes.
    """
    found = {}
    for interface in root.glob("net/*"):
        if read(interface / "type") != LOOPBACK:
            pair = [read(interface / "statistics" / name) for name in ("rx_bytes", "tx_bytes")]
            if all(text.isdigit() for text in pair):
                found[interface.name] = (int(pair[0]), int(pair[1]))
    for port in root.glob("infiniband/*/ports/*"):
        pair = [read(port / "counters" / name) for name in ("port_rcv_data", "port_xmit_data")]
        if all(text.isdigit() for text in pair):
            found[port_name(port)] = (4 * int(pair[0]), 4 * int(pair[1]))
    return found


def relations(root: Path) -> dict[str, str]:
    """Return what bytes of a carrier are counted on as well.

    For an interface these are those below it (a bond's or bridge's members, what a VLAN lies on): ``over eth1 eth2``;
    for an RDMA port the link layer and its network interfaces: ``InfiniBand ib0``.
    """
    found = {}
    for interface in root.glob("net/*"):
        below = sorted(entry.name.partition("_")[2] for entry in interface.glob("lower_*"))
        found[interface.name] = f"over {' '.join(below)}" if below else ""
    for port in root.glob("infiniband/*/ports/*"):
        names = {read(entry) for entry in port.glob("gid_attrs/ndevs/*")} - {""}
        names |= {entry.name for entry in (port.parent.parent / "device" / "net").glob("*")} if not names else set()
        found[port_name(port)] = " ".join([read(port / "link_layer"), *sorted(names)])
    return found


def active_ports(root: Path) -> list[str]:
    """Return the RDMA ports that can carry something."""
    return sorted(port_name(port) for port in root.glob("infiniband/*/ports/*") if "ACTIVE" in read(port / "state"))


def port_name(port: Path) -> str:
    """Return ``mlx5_0/1`` for a port's folder."""
    return f"{port.parent.parent.name}/{port.name}"


def read(path: Path) -> str:
    """Return a small file's text, empty where the kernel has none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def available_bytes() -> float:
    """Return how much memory of this node can still be had; a control group may allow less than the machine has."""
    found = [1024.0 * int(line.split()[1]) for line in read(Path("/proc/meminfo")).splitlines() if "Available" in line]
    limits = [read(CGROUPS / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([*found, *(float(limit) for limit in limits if limit.isdigit())], default=UNKNOWN_BYTES)


EXACT_UP_TO = 200  # samples; beyond it the normal distribution is as good as the binomial one
SAMPLES_A_LINE = 200  # at 13 characters each, a line stays below the 4 KiB that a pipe writes in one piece
DIGITS = 6
LONGEST_SLEEP_S = 0.002  # of a process that waits for its turn


@dataclass(frozen=True)
class Samples:
    """What was taken, in order, without the warm-up.

    ``ended`` says why no more was taken: ``sure`` (the interval is narrow enough), ``most`` (as many as were wanted),
    ``budget`` or ``deadline``. ``wanted`` is the confidence that the interval was to have.
    """

    values: tuple[float, ...]
    ended: str
    wanted: float

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The median's interval, None with too few samples for that confidence."""
        return median_interval(self.values, self.wanted)


class Sampling:
    """Decide after every sample whether there shall be another one.

    Where several ranks have to stop together, one of them has it and tells the others.
    """

    def __init__(
        self,
        *,
        at_least: int,
        at_most: int,
        budget_s: float,
        confidence: float,
        precision: float,
        deadline: float,
        warmup: int = 0,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; the budget counts from here.

        Args:
            at_least: fewer samples are taken only where the budget or the deadline ends it.
            at_most: with so many it ends.
            budget_s: seconds after which it ends, warm-up included.
            confidence: probability that the median's interval shall have.
            precision: it ends where no end of the interval is further from the median than this part of it.
            deadline: the clock's reading that is never passed: nothing is begun that would last beyond it, if it
                takes no longer than what took longest until then.
            warmup: so many first samples are not kept, unless they alone take the budget.
            patience: so many budgets it may take until there are as many samples as ``at_least``.
            clock: tells seconds.
        """
        self.at_least, self.at_most, self.budget_s = at_least, at_most, budget_s
        self.confidence, self.precision, self.deadline = confidence, precision, deadline
        self.patience, self.clock = patience, clock
        self.to_drop = warmup
        self.values: list[float] = []
        self.ordered: list[float] = []
        self.began = self.last = clock()
        self.longest = 0.0
        self.next_look = at_least
        self.ended = ""

    def add(self, value: float) -> None:
        """Take a sample, or drop it where it belongs to the warm-up."""
        now = self.clock()
        self.longest, self.last = max(self.longest, now - self.last), now
        if self.to_drop and now - self.began < self.budget_s:
            self.to_drop -= 1
            return
        self.to_drop = 0
        self.values.append(value)
        bisect.insort(self.ordered, value)

    def more(self) -> bool:
        """Whether another sample is to be taken."""
        now = self.clock()
        count = len(self.values)
        if now + self.longest > self.deadline:
            self.ended = "deadline"
        elif count >= self.at_most:
            self.ended = "most"
        elif count >= self.next_look and self.is_sure():
            self.ended = "sure"
        elif count and now - self.began + self.longest > self.budget_s * (
            1.0 if count >= self.at_least else self.patience
        ):
            self.ended = "budget"
        return not self.ended

    def is_sure(self) -> bool:
        """Whether the interval is narrow enough; looked at each time that a tenth more samples are there.

        Every look is another chance to stop by luck, and it takes time as well.
        """
        self.next_look = len(self.ordered) + max(1, len(self.ordered) // 10)
        interval = interval_of_ordered(self.ordered, self.confidence)
        if interval is None:
            return False
        middle = statistics.median(self.ordered)
        return max(middle - interval[0], interval[1] - middle) <= self.precision * abs(middle)

    @property
    def samples(self) -> Samples:
        return Samples(tuple(self.values), self.ended, self.confidence)


def until_sure(
    take: Callable[[], float],
    **how: Any,
) -> Samples:
    """Call ``take`` until the median of what it returns is known well enough; ``how`` is of :class:`Sampling`."""
    sampling = Sampling(**how)
    while sampling.more():
        sampling.add(take())
    return sampling.samples


def median(samples: Sequence[float]) -> float:
    """Return the median of the samples, not-a-number without samples."""
    return statistics.median(samples) if samples else math.nan


def mad(samples: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, not-a-number where there are no samples."""
    middle = median(samples)
    return median([abs(value - middle) for value in samples])


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the interval that contains the true median with at least this probability.

    Its ends are two of the samples, for any distribution. Each sample lies below the true median with a probability of
    one half, so the number of those is binomial (David and Nagaraja, "Order Statistics", 3rd edition, section 7.1).
    None with too few samples: 95 % takes six.
    """
    return interval_of_ordered(sorted(samples), confidence)


def interval_of_ordered(ordered: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the same of samples that are in order."""
    rank = interval_rank(len(ordered), confidence)
    return (ordered[rank - 1], ordered[-rank]) if rank else None


@functools.lru_cache(maxsize=4096)
def interval_rank(count: int, confidence: float) -> int:
    """Return k so that the k-th smallest and the k-th largest sample are the interval, 0 with too few samples."""
    tail = (1 - confidence) / 2
    if count > EXACT_UP_TO:
        return max(0, int((count - statistics.NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2))
    rank, below = 0, 0.0
    while rank < count // 2:
        below += math.comb(count, rank) * 0.5**count  # exactly ``rank`` samples lie below the true median
        if below > tail:
            break
        rank += 1
    return rank


def wait_quietly(request: Any) -> None:
    """Wait for a request of mpi4py without keeping a core busy, because another process may measure on it."""
    pause_s = LONGEST_SLEEP_S / 16
    while not request.Test():
        time.sleep(pause_s)
        pause_s = min(LONGEST_SLEEP_S, pause_s * 1.25)


def machine() -> str:
    """Return the id of the kernel's start, which is the same on all containers of one machine.

    Virtual machines of one host have different ids, and processors of their own.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class CpuWatch:
    """Tells how busy the machine's processors are with something other than this process."""

    def __init__(self) -> None:
        self.began, self.own_s, self.busy_s = time.monotonic(), time.process_time(), busy_s()

    def report(self, rank: Any) -> None:
        """Put what was counted into the figures of a rank: its own time, that of all processes, and that of all cores.

        The controller takes the time of all ranks of a machine off what its processors did.
        """
        own_s, all_busy_s = time.process_time() - self.own_s, busy_s() - self.busy_s
        all_s = (time.monotonic() - self.began) * (os.cpu_count() or 1)
        rank.figures.update(cpu_own_s=round(own_s, 3), cpu_busy_s=round(all_busy_s, 3), cpu_all_s=round(all_s, 3))
        rank.facts["machine"] = machine()


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Return the seconds for which the processors worked since the start, with those that the host took (steal).

    Interrupts are left out, because they are mostly the network's work for the ranks themselves.
    """
    try:
        user, nice, system, _unused, _unused, _unused, _unused, steal = (
            int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + steal) / float(os.sysconf("SC_CLK_TCK"))


def say(voice: Any, samples: Sequence[float], *, quantity: str, unit: str, better: str, **more: Any) -> None:
    """Print what was measured.

    Args:
        voice: of ``rank_program``.
        samples: all of them, in ``unit``, in order.
        quantity: what it is, such as ``latency``.
        unit: ``s``, ``us``, ``B/s``, ``FLOP/s``, ``Hz``, ``tokens/s`` or ``1``.
        better: ``higher``, ``lower`` or ``none``.
        more: ``operation``, ``backend``, ``algorithm``, ``bytes``, and ``peer``, the other end's host name.
    """
    short = [float(f"{value:.{DIGITS}g}") for value in samples]
    parts = [short[at : at + SAMPLES_A_LINE] for at in range(0, len(short), SAMPLES_A_LINE)] or [[]]
    for number, part in enumerate(parts):
        place = {"part": number, "parts": len(parts)} if len(parts) > 1 else {}
        what = {name: value for name, value in more.items() if value not in ("", None)}
        voice.say_in_turn("measured", quantity=quantity, unit=unit, better=better, **what, **place, samples=part)


if __name__ == "__main__":
    sys.exit("This is a module; start one of the programs beside it.")
