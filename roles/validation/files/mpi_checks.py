#!/usr/bin/env python3
"""Prove that MPI gives right answers; every rank prints what it found, one JSON line a finding.

Started by mpirun, one process a rank. Every line carries ``"clusterctl": 1`` and an ``event``:

``started``  before MPI is touched, so that a rank that hangs in its start is told from one that never came up.
``waiting``  every ``--heartbeat`` seconds: what the rank is busy with. A rank that stops printing this before it has a
             result is itself stuck (stopped, or its node is); those that go on are waiting for somebody.
``result``   the verdict of this rank: ``ok``, how many values were compared, the wrong ones with expected and got, and
             the libmpi that is really mapped.

Answers are known beforehand: small integers, exact in every type used, so that comparisons need no tolerance. Buffers
are filled with another pattern before each operation, so that an operation that does nothing is found out.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Iterator

HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
MOST_PROBLEMS = 4  # a line stays below what a pipe writes in one piece
TEXT_LIMIT = 160
POLL_S = 0.02
ALARM_GRACE_S = 30  # a rank that nobody ends (its node was frozen) ends itself this long after the deadline
ALL_PAIRS_UP_TO = 32  # ranks; beyond it point-to-point pairs at distances 1, 2, 4, ...

TYPES = ("u1", "i4", "i8", "f4", "f8", "c16")
NUMBER_TYPES = ("i4", "i8", "f4", "f8", "c16")
ORDERED_TYPES = ("i4", "i8", "f4", "f8")
COUNTS = (1, 3, 1001, 40009)  # one value, odd ones, one buffer beyond every eager limit


class Voice:
    """Print this rank's lines, each in a single write."""

    def __init__(self, check: str) -> None:
        """Learn from mpirun's environment who this rank is."""
        environment = os.environ
        self.rank = int(environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMIX_RANK", "0")))
        self.size = int(environment.get("OMPI_COMM_WORLD_SIZE", "1"))
        self.check = check
        self.host = socket.gethostname()

    def say(self, event: str, **figures: Any) -> None:
        """Print one line."""
        head = {"clusterctl": 1, "event": event, "check": self.check, "rank": self.rank, "host": self.host}
        os.write(1, (json.dumps({**head, **figures}) + "\n").encode())


def shortened(value: object) -> str:
    """Return a value as text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def mapped_libmpi() -> str:
    """Return the real path of the libmpi that this process has mapped, empty when there is none."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        place = line.find("/")
        if "/libmpi.so" in line[place:]:
            return str(Path(line[place:]).resolve())
    return ""


class Board:
    """Where the working process writes what it is busy with, and its watcher reads it."""

    def __init__(self) -> None:
        """Map a page that a child shares."""
        self.page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def step(self) -> str:
        """What the worker is busy with."""
        return self.page[1:].rstrip(b"\0").decode("utf-8", "replace")

    @step.setter
    def step(self, text: str) -> None:
        room = len(self.page) - 1
        self.page[1:] = text[:TEXT_LIMIT].encode()[:room].ljust(room, b"\0")

    @property
    def spoken(self) -> bool:
        """Whether the worker has printed its result."""
        return self.page[0] != 0

    def set_spoken(self) -> None:
        """Note that the result is out."""
        self.page[0] = 1


class Findings:
    """Compare answers with what they must be."""

    def __init__(self) -> None:
        """Begin with nothing compared."""
        self.compared = 0
        self.wrong = 0
        self.problems: list[dict[str, str]] = []

    def array(self, what: str, got: Any, expected: Any, part: int = 0) -> None:
        """Compare two arrays value by value; ``part`` values each came from one rank."""
        self.compared += int(expected.size)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            self.note(what, [list(expected.shape), str(expected.dtype)], [list(got.shape), str(got.dtype)])
            return
        different = (got != expected).nonzero()[0]
        if different.size:
            first = int(different[0])
            place = f"value {first % part} from rank {first // part}" if part else f"value {first}"
            where = f"{what}, {place} ({different.size} of {expected.size} wrong)"
            self.note(where, expected[first].item(), got[first].item())

    def value(self, what: str, got: object, expected: object) -> None:
        """Compare two Python objects."""
        self.compared += 1
        if got != expected:
            self.note(what, expected, got)

    def note(self, what: str, expected: object, got: object) -> None:
        """Keep the first few wrong answers and count the rest."""
        self.wrong += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"what": what, "expected": shortened(expected), "got": shortened(got)})


class Bench:
    """What every check works with: the communicator, numpy and the findings."""

    def __init__(self, mpi: Any, numpy: Any, findings: Findings, board: Board) -> None:
        """Keep them together."""
        self.mpi, self.numpy, self.findings, self.board = mpi, numpy, findings, board
        self.comm = mpi.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

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

    def doing(self, what: str) -> str:
        """Say what the rank is about to do, for whoever has to explain why it hangs."""
        self.board.step = what
        return what


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


def work(voice: Voice, check: str, board: Board) -> int:
    """Run one of the checks with mpi4py and report."""
    began = time.monotonic()
    findings = Findings()
    figures: dict[str, Any] = {"size": voice.size, "init_s": 0.0, "library_version": "", "library_path": ""}
    bench: Bench | None = None
    broken_off = False
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread per core in every rank
    board.step = "MPI_Init"
    try:
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail
        from mpi4py import MPI  # noqa: PLC0415 - the import calls MPI_Init

        figures["init_s"] = round(time.monotonic() - began, 6)
        figures["library_version"] = MPI.Get_library_version().strip("\0\n ")[:TEXT_LIMIT]
        figures["library_path"] = mapped_libmpi()
        began = time.monotonic()
        bench = Bench(MPI, np, findings, board)
        CHECKS[check](bench)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the report has to name it with rank and host
        broken_off = True
        place = traceback.extract_tb(problem.__traceback__)[-1]
        findings.note(board.step, "an answer", f"{type(problem).__name__}: {problem} (line {place.lineno})")
    result(voice, findings, seconds=round(time.monotonic() - began, 6), **figures)
    board.set_spoken()
    if bench is None:
        return 1
    if broken_off:
        bench.comm.Abort(1)  # the others would wait for this rank until the deadline
    board.step = "the barrier at the end"
    bench.comm.Barrier()  # mpirun ends the other ranks as soon as one leaves with an error; all have spoken now
    return 0 if findings.wrong == 0 else 1


def result(voice: Voice, findings: Findings, **figures: Any) -> None:
    """Print this rank's verdict."""
    voice.say(
        "result",
        ok=findings.wrong == 0 and findings.compared > 0,
        compared=findings.compared,
        wrong=findings.wrong,
        problems=findings.problems,
        **figures,
    )


def watch(voice: Voice, worker: int, board: Board, heartbeat_s: float) -> int:
    """Wait for the working process, and speak for it where it cannot.

    MPI_Init holds the interpreter's lock, so a thread of the worker would be as silent as the worker itself.
    """
    beat_at = time.monotonic() + heartbeat_s
    while True:
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            return farewell(voice, status, board)
        if time.monotonic() >= beat_at:
            beat_at += heartbeat_s
            state = (
                Path(f"/proc/{worker}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
            if state[0] not in {"T", "t"}:  # a stopped worker gives no sign of life
                voice.say("waiting", step=board.step)
        time.sleep(POLL_S)


def farewell(voice: Voice, status: int, board: Board) -> int:
    """Return the worker's exit code; report for a worker that ended without a word."""
    code = os.waitstatus_to_exitcode(status)
    if code != 0 and not board.spoken:
        findings = Findings()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        findings.note(board.step, "an answer", how)
        result(voice, findings)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Say that this rank is up, then run the check."""
    parser = argparse.ArgumentParser(description="Prove that MPI gives right answers. Started by mpirun.")
    parser.add_argument("--check", required=True, choices=["hello", *CHECKS])
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds after which the job is ended from outside"
    )
    parser.add_argument("--heartbeat", type=float, default=5.0, help="seconds between two signs of life")
    parser.add_argument("--hello", default=HELLO, help="the C program of the check 'hello'")
    arguments = parser.parse_args()
    voice = Voice(arguments.check)
    board = Board()
    board.step = "the start of the program"
    voice.say("started", pid=os.getpid())
    worker = os.fork()
    signal.alarm(int(arguments.deadline + ALARM_GRACE_S))  # in both, and it survives the exec
    if worker:
        return watch(voice, worker, board, arguments.heartbeat)
    if arguments.check == "hello":
        os.execv(arguments.hello, [arguments.hello])  # noqa: S606 - no shell is wanted
    return work(voice, arguments.check, board)


if __name__ == "__main__":
    sys.exit(main())
