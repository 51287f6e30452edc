"""Measure latency and bandwidth between all pairs of nodes, in one job.

mpirun starts one process per node; ``rank_program.py`` and ``measure.py`` explain the lines that they print.

The pairs form a round-robin tournament. In each round every node has one partner, so N nodes take N-1 rounds. An odd N
takes N rounds, and one node rests in each. The pairs of a round are measured at the same time. Where several nodes are
containers of one machine, a round is played in waves, with as many pairs at once as the machine has cores. Otherwise
one pair's figures would include another pair's work.

A sample of latency is half of the median of several round trips, so a single trip with a sleeping rank does not count.
A sample of bandwidth is the bytes of both directions over the time of both. It moves 8 MiB or more in each direction if
the time allows, so it shows lost packets. First all messages go one way, then a byte comes back, then as many messages.
So the lower rank measures both directions apart, by one clock. The first byte of its messages says whether another
message follows. The tournament is played several times, each time with a part of the budget. A short disturbance then
affects only a part of a pair's samples.

The controller may ask for some pairs again (``--rounds``). Then these are played ``--repeats`` times. Each
time makes one sample, the median of as many measurements as a whole tournament takes of a pair.

For TCP, the kernel counts for each connection how many segments it sends and how many of them it sends again. It also
counts those that the receiver says it got twice; these were late and not lost. That tells lost packets from a slow
link, even where the median does not show them. Every rank prints the sums of its connections. It prints a peer's counts
where some segments were lost; the controller decides whether these are too many.
"""

from __future__ import annotations

import base64
import collections
import os
import random
import socket
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import measure
import rank_program

CHECK = "pairs"
TAG = 7
STOP, GO_ON, TURN = 0, 1, 2  # the first byte of a message: the end, more to come, and now your messages
WARMUP = 2
PASSES = 3
AT_LEAST, AT_MOST = 6, 20  # samples of a pass
LEAST_PART = 0.25  # share of a round's budget for a wave, at least
PATIENCE = 4.0  # budgets in which AT_LEAST samples may be taken
AT_A_TIME = 8 << 20  # bytes each way in a sample of bandwidth; with so many, every sample shows lost packets
MOST_TRIPS = 1000  # round trips in a sample
SMALL = 8192  # bytes; a message up to this size takes about as long as one byte
SHARE = 0.7  # share of the time until the deadline for the plan; slow links take more than their budget
RESERVE = 0.85  # share of the deadline for the checks; the rest is for the start and the end
TRIES = 200
# tcpi_total_retrans, tcpi_data_segs_in, tcpi_data_segs_out, tcpi_dsack_dups and tcpi_rcv_ooopack in Linux's struct
# tcp_info, 32 bits each
SENT_AGAIN_AT, RECEIVED_AT, SENT_AT, TWICE_AT, EARLY_AT = 100, 152, 156, 216, 224
FEWEST_LOST = 3  # segments; a link with fewer is not printed
LEAST_EARLY = 0.002  # of what came; a loss lets many segments come before the one that was lost
MOST_PLAN = 16 << 20  # bytes of rounds that are asked for
PERIOD = 251  # a prime, so a power of two of bytes is never whole periods


# --- who meets whom ---------------------------------------------------------------------------------------------------


def tournament(size: int, most: int = 0) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs of ranks, lower rank first.

    All pairs without a limit; else at most ``most`` rounds in which every rank has the same number of partners.
    """
    every = even(size) - 1 if size > 1 else 0
    if not most or most >= every:
        return [pairs_of(number, size) for number in range(every)]
    return sampled(size, most)


def even(size: int) -> int:
    """Return the number of seats; with an odd number of ranks, the partner of the empty seat rests."""
    return size + size % 2


def pairs_of(number: int, size: int) -> list[tuple[int, int]]:
    """Return a round: the last seat stays, and on the circle of all others meet those whose numbers add up to it."""
    circle = even(size) - 1
    last = number * (circle + 1) // 2 % circle  # the one who would meet itself: twice its number is the round's
    pairs = [(seat, (number - seat) % circle) for seat in range(circle) if seat < (number - seat) % circle]
    return sorted(pair for pair in [*pairs, (last, circle)] if pair[1] < size)


def sampled(size: int, most: int) -> list[list[tuple[int, int]]]:
    """Return some of the rounds, always the same ones.

    Neighbouring rounds are among them where there are two: they alone connect all ranks by a chain of pairs, so that
    all can be compared. Where the ranks are odd, those who rested meet in a last round.
    """
    circle = even(size) - 1
    source = random.Random(size)  # noqa: S311 - no secret
    for _unused in range(TRIES):
        others = list(range(2, circle))
        source.shuffle(others)
        if size % 2 == 0 or most == 1:
            return [pairs_of(number, size) for number in [0, 1, *others][:most]]
        chosen = [0, 1, *others][: max(2, (most - 1) // 2 * 2)]
        rested = [number * (circle + 1) // 2 % circle for number in chosen]
        catching_up = matched(rested, {number % circle for number in chosen}, circle)
        if catching_up:
            return [*(pairs_of(number, size) for number in chosen), catching_up]
    return [pairs_of(number, size) for number in range(most)]


def matched(ranks: list[int], played: set[int], circle: int) -> list[tuple[int, int]]:
    """Pair all these ranks with such as they have not met in the rounds that were played; nothing where that fails."""
    if not ranks:
        return []
    first, *others = ranks
    for other in others:
        if (first + other) % circle not in played:
            rest = [rank for rank in others if rank != other]
            found = matched(rest, played, circle)
            if found or not rest:
                return sorted([(min(first, other), max(first, other)), *found])
    return []


def asked_for(text: str, size: int) -> list[list[tuple[int, int]]]:
    """Return the rounds that the controller asks for: ``0-1,2-3;0-2``, compressed and in base 64.

    Raises:
        ValueError: they are not rounds of disjoint pairs of this many ranks.
    """
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(base64.b64decode(text, validate=True), MOST_PLAN).decode("ascii")
    rounds = []
    for part in plain.split(";"):
        pairs = []
        for pair in part.split(","):
            first, second = (int(word) for word in pair.split("-"))
            pairs.append((first, second))
        ranks = [rank for pair in pairs for rank in pair]
        if any(not 0 <= first < second < size for first, second in pairs) or len(set(ranks)) < len(ranks):
            raise ValueError(f"--rounds asks for a round that {size} ranks cannot play: {part[:80]}")
        rounds.append(pairs)
    return rounds


def waves(pairs: Sequence[tuple[int, int]], cores: Mapping[str, int], machines: Sequence[str]) -> Iterator[Any]:
    """Split a round so that on a machine of several ranks no more are busy at once than it has cores.

    Args:
        pairs: of the round.
        cores: of the machines that have several ranks.
        machines: the machine of each rank.
    """
    waiting = list(pairs)
    while waiting:
        wave, later = [], []
        busy: collections.Counter[str] = collections.Counter()
        for pair in waiting:
            needed = collections.Counter(machines[rank] for rank in pair if machines[rank] in cores)
            if any(busy[name] and busy[name] + count > cores[name] for name, count in needed.items()):
                later.append(pair)
            else:
                wave.append(pair)
                busy.update(needed)
        yield wave
        waiting = later


# --- one pair ---------------------------------------------------------------------------------------------------------


class Bench:
    """A rank with its buffers and what the user wants."""

    def __init__(self, mpi: Any, numpy: Any, rank: rank_program.Rank, deadline: float) -> None:
        """Allocate and touch the buffers, so that no sample pays for it; nothing is begun after ``deadline``."""
        self.mpi, self.numpy, self.rank, self.comm = mpi, numpy, rank, mpi.COMM_WORLD
        self.options, self.deadline = rank.arguments, deadline
        self.passes = self.options.repeats or PASSES
        self.parts = 1 if self.options.repeats else PASSES  # of what is measured of a pair; a repeat measures all of it
        self.budget_s = self.options.budget / self.parts
        self.sizes = [("latency", size) for size in self.options.latency]
        self.sizes += [("bandwidth", size) for size in self.options.bandwidth]
        largest = max([1, *(size for _unused, size in self.sizes)])
        self.outgoing, self.incoming = pattern(numpy, rank.rank, largest), numpy.zeros(largest, dtype="u1")
        self.stop = numpy.full(1, STOP, dtype="u1")

    def plan(self, rounds: int, waves: int) -> None:
        """Share a round's budget among its waves, and make all fit into the time that there is."""
        part = max(LEAST_PART, rounds / max(1, waves))
        left = SHARE * (self.deadline - time.monotonic())
        self.budget_s = min(self.budget_s * part, max(0.0, left) / max(1, self.passes * waves * len(self.sizes)))

    def meet(self, pair: tuple[int, int], names: Sequence[str], turns: int) -> list[tuple[str, int, list[Any]]]:
        """Measure all sizes with a partner; what was found, on the lower rank alone.

        Args:
            pair: the two.
            names: of all.
            turns: how many there are until the end, this one included; they share the time that is left.
        """
        found = []
        trip_s = 0.0  # a round trip of the message before
        before = 0
        for quantity, size in self.sizes:
            self.rank.doing(f"pair {names[pair[0]]}-{names[pair[1]]}, {size_words(size)}")
            if self.rank.rank != pair[0]:
                self.follow(quantity, pair[0], size)
                continue
            share_s = (self.deadline - time.monotonic()) / turns
            trips: list[tuple[float, float]] = []
            if trip_s * max(1.0, size / max(before, SMALL)) <= share_s:  # else it would take the other pairs' time
                trips = self.lead(quantity, pair[1], size)
            self.comm.Send([self.stop, 1, self.mpi.BYTE], pair[1], TAG)
            if trips:
                trip_s, before = measure.median([there + back for there, back in trips]), size
                found.append((quantity, size, trips))
        return found

    def lead(self, quantity: str, peer: int, size: int) -> list[tuple[float, float]]:
        """Send and get back until it is enough; the seconds of a message there and of one back, sample by sample."""
        trips = 1
        taken: list[tuple[float, float]] = []
        take = self.round_trips if quantity == "latency" else self.streams
        sampling = measure.Sampling(
            warmup=WARMUP,
            at_least=AT_LEAST * PASSES // self.parts,
            at_most=AT_MOST * PASSES // self.parts,
            budget_s=self.budget_s,
            confidence=self.options.confidence,
            precision=self.options.precision,
            deadline=self.deadline,
            patience=PATIENCE,
        )
        while sampling.more():
            taken.append(take(peer, size, trips))
            trip_s = sum(taken[-1])
            sampling.add(trip_s)
            if not sampling.values:  # the first one opens the connection, the second one tells how long it takes
                wanted_s = self.budget_s / AT_MOST
                if quantity == "bandwidth":
                    wanted_s = max(wanted_s, min(self.budget_s, trip_s * AT_A_TIME / size))
                trips = max(1, min(MOST_TRIPS, round(wanted_s / max(trip_s, 1e-9))))
        if sampling.values:
            self.compare(peer, size)
        return taken[len(taken) - len(sampling.values) :]

    def round_trips(self, peer: int, size: int, trips: int) -> tuple[float, float]:
        """Send a message and get one back, several times; the seconds of half a round trip, for each way."""
        out, back = ([buffer, size, self.mpi.BYTE] for buffer in (self.outgoing, self.incoming))
        self.outgoing[0] = TURN
        ticks = [time.perf_counter()]
        for _unused in range(trips):
            self.comm.Send(out, peer, TAG)
            self.comm.Recv(back, peer, TAG)
            ticks.append(time.perf_counter())
        half_s = measure.median([after - before for before, after in zip(ticks, ticks[1:])]) / 2  # noqa: B905, RUF007 - 3.9
        return half_s, half_s

    def streams(self, peer: int, size: int, count: int) -> tuple[float, float]:
        """Send so many messages and then get as many back; the seconds of one of each."""
        out, back = ([buffer, size, self.mpi.BYTE] for buffer in (self.outgoing, self.incoming))
        began = time.perf_counter()
        for left in range(count, 0, -1):
            self.outgoing[0] = GO_ON if left > 1 else TURN
            self.comm.Send(out, peer, TAG)
        self.comm.Recv([self.incoming, 1, self.mpi.BYTE], peer, TAG)
        turned = time.perf_counter()
        for _unused in range(count):
            self.comm.Recv(back, peer, TAG)
        return (turned - began) / count, (time.perf_counter() - turned) / count

    def follow(self, quantity: str, peer: int, size: int) -> None:
        """Send back as many messages as came until the other one has enough."""
        comm, incoming, came, count = self.comm, self.incoming, False, 0
        out, back = ([buffer, size, self.mpi.BYTE] for buffer in (self.outgoing, self.incoming))
        while True:
            comm.Recv(back, peer, TAG)
            if incoming[0] == STOP:
                break
            count += 1
            if incoming[0] == TURN:
                if quantity == "bandwidth":  # it says when the last message was here
                    comm.Send([self.outgoing, 1, self.mpi.BYTE], peer, TAG)
                for _unused in range(count):
                    comm.Send(out, peer, TAG)
                came, count = True, 0
        if came:
            self.compare(peer, size)

    def compare(self, peer: int, size: int) -> None:
        """Compare what came with what the other one has; the first byte is a flag."""
        what = f"{size_words(size)} from rank {peer}"
        self.rank.findings.array(what, self.incoming[1:size], pattern(self.numpy, peer, size)[1:])

    def wait_for_all(self, what: str) -> None:
        """Wait without keeping a core busy, because another process may measure on it."""
        self.rank.doing(what)
        measure.wait_quietly(self.comm.Ibarrier())


def pattern(numpy: Any, rank: int, size: int) -> Any:
    """Return bytes that differ by position and by rank, the first of which says that another message follows."""
    values = ((numpy.arange(size, dtype="u4") + 17 * rank) % PERIOD).astype("u1")
    values[0] = GO_ON
    return values


def size_words(size: int) -> str:
    """Return ``64 KiB``, and bytes where it is no round number."""
    for name, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {name}"
    return f"{size} B"


# --- all of them ------------------------------------------------------------------------------------------------------


def play(bench: Bench) -> None:
    """Play the tournament and print what each pair has measured."""
    comm, rank, options = bench.comm, bench.rank, bench.options
    bench.rank.findings.compared += 1  # a single node has no partner
    rank.doing("the names of all")
    about = comm.allgather((rank.voice.host, measure.machine(), os.cpu_count() or 1))
    names = [name for name, _unused, _unused in about]
    machines = [place for _unused, place, _unused in about]
    shared = {place for place, count in collections.Counter(machines).items() if count > 1}
    cores = {place: 2 * options.at_once or count for _unused, place, count in about if place in shared}
    asked = asked_for(options.rounds, rank.size) if options.rounds else tournament(rank.size, options.max_rounds)
    rounds = comm.bcast(asked if rank.rank == 0 else None)
    once = [(number, wave) for number, pairs in enumerate(rounds, 1) for wave in waves(pairs, cores, machines)]
    turns = once * bench.passes
    bench.plan(len(rounds), len(once))
    bench.wait_for_all("the start")
    began, processors = time.monotonic(), measure.CpuWatch()
    found: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for turn, (number, wave) in enumerate(turns):
        for pair in wave:
            if rank.rank in pair:
                for quantity, size, taken in bench.meet(pair, names, len(turns) - turn):
                    trips = taken if bench.parts == PASSES else [middle(taken)]
                    found.setdefault((pair[1], quantity, size), []).extend(trips)
                if turn >= len(turns) - len(once):
                    tell(rank, names[pair[1]], {key[1:]: found[key] for key in found if key[0] == pair[1]})
        bench.wait_for_all(f"the end of round {number} of {len(rounds)}")
    measuring_s = round(time.monotonic() - began, 6)
    processors.report(rank)
    tell_losses(bench, names)
    rank.figures.update(measuring_s=measuring_s, rounds=len(rounds), waves=len(once), passes=bench.passes)


def middle(trips: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians there and back."""
    return measure.median([there for there, _unused in trips]), measure.median([back for _unused, back in trips])


def tell(rank: rank_program.Rank, peer: str, found: Mapping[tuple[str, int], Sequence[tuple[float, float]]]) -> None:
    """Print what was measured with a partner: the samples, and of a bandwidth the medians there and back."""
    for (quantity, size), trips in found.items():
        link = {"backend": "mpi", "bytes": size, "peer": peer}
        if quantity == "latency":
            values = [there * 1e6 for there, _unused in trips]
            measure.say(rank.voice, values, quantity=quantity, unit="us", better="lower", **link)
        else:
            values = [2 * size / (there + back) for there, back in trips]
            ways = [float(f"{measure.median([size / trip[way] for trip in trips]):.6g}") for way in (0, 1)]
            measure.say(rank.voice, values, quantity=quantity, unit="B/s", better="higher", ways=ways, **link)


def tell_losses(bench: Bench, names: Sequence[str]) -> None:
    """Print how many segments this rank sent and how many were lost: to all, and to peers where some were lost.

    The receiver prints those that came before an earlier one, as they do after a loss.
    """
    mine = list(connections())
    bench.rank.doing("the addresses of all")
    addresses = bench.comm.allgather(sorted({local for local, *_unused in mine}))
    often = collections.Counter(address for of_one in addresses for address in of_one)
    others = {
        address: names[rank]
        for rank, of_one in enumerate(addresses)
        for address in of_one
        if rank != bench.rank.rank and often[address] == 1
    }
    sent_to: collections.Counter[str] = collections.Counter()
    lost_to: collections.Counter[str] = collections.Counter()
    received_from: collections.Counter[str] = collections.Counter()
    early_from: collections.Counter[str] = collections.Counter()
    for _unused, peer, sent, lost, received, early in mine:
        if peer in others:
            sent_to[others[peer]] += sent
            lost_to[others[peer]] += lost
            received_from[others[peer]] += received
            early_from[others[peer]] += early
    about = {"unit": "1", "better": "none", "backend": "tcp"}
    if sent_to:
        counts = [sum(sent_to.values()), sum(lost_to.values()), len(sent_to)]
        measure.say(bench.rank.voice, counts, quantity="segments_to_all", **about)
    for peer, lost in lost_to.items():
        if lost >= FEWEST_LOST:
            measure.say(bench.rank.voice, [sent_to[peer], lost], quantity="segments", **about, peer=peer)
    for peer, early in early_from.items():
        if early >= max(FEWEST_LOST, LEAST_EARLY * received_from[peer]):
            measure.say(bench.rank.voice, [early], quantity="segments_early", **about, peer=peer)


def connections() -> Iterator[tuple[str, str, int, int, int, int]]:
    """Yield both addresses of each TCP connection of this process, and its segments with data.

    These are the segments that were sent and lost, and those that came and that came before an earlier one.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, EARLY_AT + 4).ljust(EARLY_AT + 4, b"\0")
                ends = [end()[0].replace("::ffff:", "") for end in (one.getsockname, one.getpeername)]
            places = (SENT_AT, SENT_AGAIN_AT, TWICE_AT, RECEIVED_AT, EARLY_AT)
            sent, again, twice, received, early = (struct.unpack_from("=I", told, place)[0] for place in places)
        except (OSError, struct.error):  # it is closed, only listens, or is of an older kernel
            continue
        yield ends[0], ends[1], sent, max(0, again - twice), received, early


def work(rank: rank_program.Rank) -> int:
    """Run the tournament with mpi4py and report."""
    deadline = rank.began + RESERVE * rank.arguments.deadline

    def body(mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        play(Bench(mpi, np, rank, deadline))

    return rank_program.with_mpi(rank, body)


def sizes(text: str) -> list[int]:
    """Return the numbers of a list such as ``1,64,4096``."""
    return [int(word) for word in text.split(",") if word]


def main() -> int:
    """Say that this rank is up, then play."""
    parser = rank_program.parser("Measure between all pairs of nodes. Started by mpirun, one process a node.", [CHECK])
    parser.add_argument("--latency", type=sizes, default=[], help="bytes of the messages whose latency is measured")
    parser.add_argument("--bandwidth", type=sizes, default=[], help="bytes of those whose bandwidth is measured")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for a pair and a size")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the interval of each median")
    parser.add_argument("--precision", type=float, default=0.02, help="half width of the interval that is enough")
    parser.add_argument("--max-rounds", type=int, default=0, help="so many of the tournament's rounds; 0 for all")
    parser.add_argument(
        "--rounds", default="", help="the rounds that the controller asks for, instead of the tournament"
    )
    parser.add_argument("--repeats", type=int, default=0, help="how often these are played")
    parser.add_argument("--at-once", type=int, default=0, help="pairs at once where nodes share a machine; 0 by cores")
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
