"""Prove that MPI gives right answers; every rank prints its findings as JSON lines.

mpirun starts one process per rank; ``rank_program.py`` explains the lines that they print.

Answers are known: small integers, exact in every type used, so comparisons need no tolerance. Buffers are filled with
another pattern before each operation, so an operation that does nothing is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

import contents
import measure
import rail_rates
import rank_program

PREFIX = Path(__file__).absolute().parents[2]  # this lies in its libexec/clusterctl
HELLO = f"{PREFIX}/openmpi/libexec/clusterctl-hello"
ALL_PAIRS_UP_TO = 32  # ranks; beyond it point-to-point pairs at distances 1, 2, 4, ...

TYPES = ("u1", "i4", "i8", "f4", "f8", "c16")
NUMBER_TYPES = ("i4", "i8", "f4", "f8", "c16")
ORDERED_TYPES = ("i4", "i8", "f4", "f8")
COUNTS = (1, 3, 1001, 40009)  # one value, odd ones, one buffer beyond every eager limit

PIECE = 32768  # values of eight bytes: messages of 256 KiB
PIECES = 256  # pieces that a node's ranks send together: 64 MiB, half a second at 1 Gbit/s
AT_ONCE = 16  # pieces that a rank has under way
COUNTED = 0.9  # share of the bytes after which the counters are not waited for any more
LAG_S = 2.0  # some cards renew their counters once a second
MOST_LOG = 1 << 20  # bytes
MOST_CARRIERS = 10  # a node may have hundreds of interfaces; the ones with the most traffic are reported


class Contents:
    """Tells once what a rank has mapped, as soon as its loader is done."""

    def __init__(self, say: Callable[..., None]) -> None:
        self.say = say
        self.before: set[str] = set()

    def look(self, worker: int) -> bool:
        """Look at the working process of a rank; whether there is nothing more to do."""
        text = contents.maps(worker)
        is_there = "/libmpi.so" in text  # this is asked often, until the library is there
        found = contents.mapped(text) if is_there else set()
        is_complete = bool(found) and found == self.before
        self.before = found
        if is_complete:
            self.say("mapped", **contents.compared(found | contents.mapped(contents.maps(os.getppid()))))
        return is_complete


class Bench:
    """What every check works with: the communicator, numpy and the findings."""

    def __init__(self, mpi: Any, numpy: Any, rank: rank_program.Rank) -> None:
        self.mpi, self.numpy = mpi, numpy
        self.findings, self.doing = rank.findings, rank.doing
        self.facts, self.figures = rank.facts, rank.figures
        self.host = rank.voice.host
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
        for turn, kind in enumerate(kinds):
            for count in COUNTS:
                yield kind, count, roots[(number + turn) % len(roots)]  # no root always has the same count
                number += 1

    def sum(self, what: str, got: Any, kind: str) -> None:
        """Compare the sum of all ranks' patterns."""
        expected = self.pattern(len(got), kind, self.size * (self.size + 1) // 2)
        self.findings.array(what, got, expected, shares=rank_program.shares_of_seven(self.size))

    def object(self, what: str, expected: object, take: Callable[[], object]) -> None:
        """Compare a Python object; bytes that arrive wrong may not be one."""
        try:
            got = take()
        except self.mpi.Exception:
            raise
        except Exception as problem:  # noqa: BLE001 - pickle raises what the bytes make it raise
            got = f"{type(problem).__name__}: {problem}"
        self.findings.value(what, got, expected)


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
        sent = partial(comm.sendrecv, parcel(rank, target), target, distance, source=source, recvtag=distance)
        bench.object(what, parcel(source, rank), sent)
    target, source = (rank + 1) % size, (rank - 1) % size
    for kind in TYPES:
        for count in COUNTS:
            what = bench.doing(f"{kind}[{count}] to rank {target} and from rank {source}")
            received = bench.blank(count, kind)
            comm.Sendrecv(bench.pattern(count, kind, rank + 1), target, 3, received, source, 3)
            bench.findings.array(what, received, bench.pattern(count, kind, source + 1))


def broadcast(bench: Bench) -> None:
    """One root's buffer, and one object, reach all ranks."""
    for kind, count, root in bench.cases(TYPES):
        what = bench.doing(f"broadcast {kind}[{count}] from rank {root}")
        buffer = bench.pattern(count, kind, root + 3) if bench.rank == root else bench.blank(count, kind)
        bench.comm.Bcast(buffer, root)
        bench.findings.array(what, buffer, bench.pattern(count, kind, root + 3))
    for root in bench.roots():
        what = bench.doing(f"broadcast of an object from rank {root}")
        parcel = {"root": root, "list": list(range(root + 2))}
        bench.object(what, parcel, partial(bench.comm.bcast, parcel if bench.rank == root else None, root))


def scatter(bench: Bench) -> None:
    """Every rank gets its own part of one root's buffer, equal parts and unequal ones."""
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
    """One root gets the parts of all ranks in the order of ranks, equal parts and unequal ones."""
    numpy, rank, size = bench.numpy, bench.rank, bench.size
    for kind, count, root in bench.cases(TYPES):
        what = bench.doing(f"gather {kind}[{count}] to rank {root}")
        received = bench.blank(count * size, kind) if rank == root else None
        bench.comm.Gather(bench.pattern(count, kind, rank + 1), received, root)
        if received is not None:
            wanted = numpy.concatenate([bench.pattern(count, kind, part + 1) for part in range(size)])
            bench.findings.array(what, received, wanted, count)
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
            bench.findings.array(what, received, wanted, counts)


def reduce(bench: Bench) -> None:
    """Sums and maxima of all ranks' numbers at one root."""
    mpi, rank, size = bench.mpi, bench.rank, bench.size
    for name, operation, kinds in (("sum", mpi.SUM, NUMBER_TYPES), ("max", mpi.MAX, ORDERED_TYPES)):
        for kind, count, root in bench.cases(kinds):
            what = bench.doing(f"reduce {name} {kind}[{count}] to rank {root}")
            received = bench.blank(count, kind) if rank == root else None
            bench.comm.Reduce(bench.pattern(count, kind, rank + 1), received, op=operation, root=root)
            if received is None:
                bench.findings.compared += 1  # as in gather
            elif name == "sum":
                bench.sum(what, received, kind)
            else:
                bench.findings.array(what, received, bench.pattern(count, kind, size))


def allreduce(bench: Bench) -> None:
    """Sums, minima and maxima of all ranks' numbers on all ranks; a wrong sum tells the most, so sums come first."""
    mpi, rank, size = bench.mpi, bench.rank, bench.size
    for name, operation, scale, kinds in (
        ("sum", mpi.SUM, 0, NUMBER_TYPES),
        ("min", mpi.MIN, 1, ORDERED_TYPES),
        ("max", mpi.MAX, size, ORDERED_TYPES),
    ):
        for kind, count, _unused in bench.cases(kinds):
            what = bench.doing(f"allreduce {name} {kind}[{count}]")
            received = bench.blank(count, kind)
            bench.comm.Allreduce(bench.pattern(count, kind, rank + 1), received, op=operation)
            if name == "sum":
                bench.sum(what, received, kind)
            else:
                bench.findings.array(what, received, bench.pattern(count, kind, scale))
    what = bench.doing("allreduce sum in place")
    buffer = bench.pattern(1001, "f8", rank + 1)
    bench.comm.Allreduce(mpi.IN_PLACE, buffer, op=mpi.SUM)
    bench.sum(what, buffer, "f8")


def network(bench: Bench) -> None:
    """Ranks send known numbers to those of the next node, and each node's counters tell what carried them.

    A node's first rank reports: ``sent_bytes`` and ``received_bytes`` that its ranks had to send and get, and by how
    much the counters of every carrier rose meanwhile (``eth0_rx_bytes``, ``mlx5_0/1_tx_bytes``). Where the node has
    rails, it tells how fast each took what two other nodes sent, at most and as a median (``rail0_from_2_bytes_per_s``
    and ``rail0_from_2_usual_bytes_per_s``, with the sender's rank). Where it has cables, it tells so of each
    (``cable10000_from_2_bytes_per_s``, with the speed in Mb/s).
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(bench.comm.allgather(bench.host)):
        nodes.setdefault(host, []).append(rank)
    bench.findings.compared += 1  # on one node there is nothing to send
    if len(nodes) == 1:
        return
    routes = routes_of(list(nodes.values()))
    exchange(bench, [(source, target, 1) for source, target, _unused in routes])  # opens the connections
    here = nodes[bench.host]
    if try_carriers(bench, [ranks[0] for ranks in nodes.values()]):
        return
    speaks = bench.rank == here[0]
    before = measure.counters(measure.SYS) if speaks else {}
    bench.doing("the barrier before the exchange")
    bench.comm.Barrier()
    exchange(bench, routes)
    bench.doing("the barrier after the exchange")
    bench.comm.Barrier()
    if not speaks:
        return
    sent, received = (sum(pieces for *ends, pieces in routes if ends[end] in here) * PIECE * 8 for end in (0, 1))
    bench.doing("the counters of the interfaces")
    risen = settled(before, sent, received)
    bench.figures.update(sent_bytes=sent, received_bytes=received)
    related = measure.relations(measure.SYS)
    for name in worth_telling(risen, related):
        bench.figures[f"{name}_rx_bytes"], bench.figures[f"{name}_tx_bytes"] = risen[name]
        if related.get(name):
            bench.facts[name] = related[name]
    bench.facts["rdma"] = " ".join(measure.active_ports(measure.SYS))
    bench.facts["pml"] = pml()
    if UCX_LOG.handle >= 0 and bench.facts["pml"] == "ucx":
        bench.facts["ucx"] = " ".join(ucx_transports(UCX_LOG.text()))


def try_carriers(bench: Bench, first: list[int]) -> bool:
    """Let the first ranks of the nodes send to each other over one rail or cable after the other.

    Returns:
        Whether one is too slow for the exchange.
    """
    has_cables, own = rail_rates.carriers() if bench.rank in first else (False, [])
    with contextlib.ExitStack() as stack:
        listeners = []
        with contextlib.suppress(OSError):
            listeners = [stack.enter_context(rail_rates.listener(one.address)) for one in own]
        mine = [(*one, its.getsockname()[1]) for one, its in zip(own, listeners)]  # noqa: B905 - strict= came with Python 3.10
        speeds = [(one.cidr, rail_rates.speed(one.interface)) for one in own[: len(mine)]]
        told = bench.comm.allgather((mine, (has_cables, speeds)))
        table = {rank: ends for rank, (ends, _unused) in enumerate(told) if rank in first}
        rounds = rail_rates.rounds(first, {rank: told[rank][1] for rank in first})
        if not rounds:
            return False
        samples: dict[int, dict[int, list[float]]] = {}
        end, passes = time.monotonic() + rail_rates.MORE_S, 0
        while passes < rail_rates.PASSES or any(
            bench.comm.allgather(rail_rates.doubtful(samples) and time.monotonic() < end)
        ):
            passes += 1
            for number, ways in enumerate(rounds):
                bench.doing(f"{'cables' if has_cables else 'rails'} between nodes, round {number + 1}")
                wait_idly(bench)
                if bench.rank in first:
                    sends = next(way for way in ways if way.source == bench.rank)
                    hears = next(way for way in ways if way.target == bench.rank)
                    rate = try_carrier(table, listeners[hears.at_target], hears, sends)
                    samples.setdefault(hears.group, {}).setdefault(hears.number, []).append(rate)
            wait_idly(bench)
    ends = {way.source: way.at_target for ways in rounds for way in ways if way.target == bench.rank}
    tell_rates(bench, samples, ends if has_cables else {}, own)
    slowest = min((max(rates) for its in samples.values() for rates in its.values()), default=rail_rates.LEAST)
    return any(bench.comm.allgather(slowest < rail_rates.LEAST))


def tell_rates(
    bench: Bench, samples: dict[int, dict[int, list[float]]], cables: dict[int, int], own: list[Any]
) -> None:
    """Tell what each rail or cable took; ``cables`` has the place of the cable from each rank, {} of rails."""
    for group, its in samples.items():
        for number, rates in its.items():
            name = f"cable{group}_from_{number}" if cables else f"rail{number}_from_{group}"
            bench.figures[f"{name}_bytes_per_s"] = max(rates)
            bench.figures[f"{name}_usual_bytes_per_s"] = statistics.median(rates)
    for rail, one in enumerate(own):
        if samples and not cables:
            bench.facts[f"rail{rail}"] = f"{one.interface} {one.cidr}"
    for source, place in cables.items():
        bench.facts[f"cable_from_{source}"] = f"{own[place].interface} {own[place].cidr}"


def try_carrier(table: Any, listens: Any, hears: Any, sends: Any) -> float:
    """Receive by one way and send by another at a time, and return how much arrives in bytes per second."""
    arrival = rail_rates.Arrival(listens, table[hears.source][hears.at_source][2])
    arrival.start()
    rail_rates.send(table[sends.source][sends.at_source][2], *table[sends.target][sends.at_target][2:])
    arrival.join()
    return arrival.rate


def wait_idly(bench: Bench) -> None:
    """Wait for all ranks without work for the processor, which the trials of other ranks need."""
    request = bench.comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


class UcxLog:
    """UCX's log of one rank, in memory; UCX reads its variables when its library is loaded."""

    def __init__(self) -> None:
        """Nothing is logged yet."""
        self.handle = -1

    def begin(self) -> None:
        """Have UCX log the transports that it takes, unless somebody else wants its log."""
        if "UCX_LOG_LEVEL" not in os.environ and "UCX_LOG_FILE" not in os.environ:
            self.handle = os.memfd_create("clusterctl_ucx", 0)
            os.environ.update(UCX_LOG_LEVEL="info", UCX_LOG_FILE=f"file:/proc/self/fd/{self.handle}")

    def text(self) -> str:
        """Return what UCX has written until now; it leaves its log in a buffer of libc."""
        ctypes.CDLL(None).fflush(None)
        return os.pread(self.handle, MOST_LOG, 0).decode("utf-8", "replace")


UCX_LOG = UcxLog()


def ucx_transports(log: str) -> list[str]:
    """Return the transports that UCX took for messages, such as ``tcp/eth0`` and ``rc_mlx5/mlx5_0:1``.

    Formats: UCX 1.13 ``ep_cfg[1]: tag(tcp/eth0)``, and newer ones ``inter-node cfg#1 tag(tcp/eth0)``.
    """
    found = (word for words in re.findall(r"\btag\(([^()\n]{1,500})\)", log) for word in words.split())
    return list(dict.fromkeys(word for word in found if re.fullmatch(r"[\w/:.-]{1,80}", word)))[:MOST_CARRIERS]


def routes_of(nodes: list[list[int]]) -> list[tuple[int, int, int]]:
    """Return who sends to whom, and how many pieces: every node's ranks to those of the next node."""
    routes = []
    for number, ranks in enumerate(nodes):
        others = nodes[(number + 1) % len(nodes)]
        pieces = max(1, PIECES // len(ranks))
        routes += [(rank, others[place % len(others)], pieces) for place, rank in enumerate(ranks)]
    return routes


def exchange(bench: Bench, routes: list[tuple[int, int, int]]) -> None:
    """Send and receive what the routes say, a few pieces at a time, and compare every value."""
    numpy, comm = bench.numpy, bench.comm
    numbers = numpy.arange(PIECE, dtype="i8")
    outgoing = [(target, pieces) for source, target, pieces in routes if source == bench.rank]
    incoming = [(source, pieces) for source, target, pieces in routes if target == bench.rank]
    for first in range(0, max(pieces for _unused, _unused, pieces in routes), AT_ONCE):
        requests, arrived = [], []
        for source, pieces in incoming:
            for piece in range(first, min(first + AT_ONCE, pieces)):
                buffer = numpy.full(PIECE, -77, dtype="i8")
                requests.append(comm.Irecv(buffer, source, piece))
                arrived.append((source, piece, buffer))
        bench.doing(f"{PIECE * 8} bytes each to ranks {outgoing} and from ranks {incoming} (rank, pieces)")
        requests += [
            comm.Isend(numbers + (bench.rank * PIECES + piece), target, piece)
            for target, pieces in outgoing
            for piece in range(first, min(first + AT_ONCE, pieces))
        ]
        bench.mpi.Request.Waitall(requests)
        for source, piece, buffer in arrived:
            bench.findings.array(f"piece {piece} from rank {source}", buffer, numbers + (source * PIECES + piece))


def settled(before: dict[str, tuple[int, int]], sent: int, received: int) -> dict[str, tuple[int, int]]:
    """Return by how much the counters rose, as soon as all together show the exchange, or after a while."""
    end = time.monotonic() + LAG_S
    while True:
        now = measure.counters(measure.SYS)
        risen = {name: (now[name][0] - old[0], now[name][1] - old[1]) for name, old in before.items() if name in now}
        rx, tx = (sum(pair[way] for pair in risen.values()) for way in (0, 1))
        if (rx >= COUNTED * received and tx >= COUNTED * sent) or time.monotonic() > end:
            return risen
        time.sleep(0.05)


def worth_telling(risen: dict[str, tuple[int, int]], related: dict[str, str]) -> list[str]:
    """Return what has a relation to others (a bond, a port), and what counted something."""
    order = sorted(risen, key=lambda name: -sum(risen[name]))
    knotted = [name for name in order if related.get(name)]
    plain = [name for name in order if not related.get(name) and sum(risen[name])]
    return [*knotted[:MOST_CARRIERS], *plain[:MOST_CARRIERS]]


def pml() -> str:
    """Return which of Open MPI's message layers was chosen (``ob1``, ``ucx``), nothing where it does not tell.

    The chosen component's description stands in a variable of libmpi: numbers, and the names of project, type and
    component.
    """
    try:
        library = ctypes.CDLL(rank_program.mapped_library("libmpi"))
        chosen = ctypes.c_char.in_dll(library, "mca_pml_base_selected_component")
    except (OSError, ValueError):
        return ""
    words = re.findall(rb"[a-z][a-z0-9_]+", ctypes.string_at(ctypes.addressof(chosen), 256))
    return words[words.index(b"pml") + 1].decode() if b"pml" in words[:-1] else ""


CHECKS = {
    "point_to_point": point_to_point,
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "allreduce": allreduce,
    "network": network,
}


def work(rank: rank_program.Rank) -> int:
    """Run one of the checks with mpi4py and report."""
    if rank.arguments.check == "hello":
        hello = rank.arguments.hello
        os.execv(hello, [hello])  # noqa: S606 - no shell is wanted

    def body(mpi: Any) -> None:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        CHECKS[rank.arguments.check](Bench(mpi, np, rank))

    if rank.arguments.check == "network":
        UCX_LOG.begin()
    return rank_program.with_mpi(rank, body)


def main() -> int:
    """Say that this rank is up, then run the check."""
    parser = rank_program.parser("Prove that MPI gives right answers. Started by mpirun.", ["hello", *CHECKS])
    parser.add_argument("--hello", default=HELLO, help="the C program of the check 'hello'")
    arguments = parser.parse_args()
    if arguments.check != "hello" or not rank_program.is_first_of_node():
        return rank_program.run(arguments, work)
    voice = rank_program.Voice(arguments.check)
    return rank_program.run(arguments, work, voice, Contents(voice.say).look)


if __name__ == "__main__":
    sys.exit(main())
