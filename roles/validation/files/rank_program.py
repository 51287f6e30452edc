"""Common to the ranks of all checks: the lines that a rank prints, its signs of life, and the comparison of answers.

Every rank is two processes. The process that mpirun (or torchrun) starts watches, and its child works. Both print JSON
lines, each with ``"clusterctl": 1`` and an ``event``:

``started``  The rank is up. It is printed before anything that may hang, to tell a rank that hangs from a rank that did
             not start.
``waiting``  The rank's present step, every ``--heartbeat`` seconds, with the seconds ``s`` since its start, and the
             load of the machine with its number of CPUs. A rank that
             stops printing it without a result is stuck itself (it or its node is stopped). Ranks that continue wait
             for another rank.
``held_back`` For how long this node's control group held it back since the rank's start, by the kernel's count: at
             every sign of life and at the end, from the first rank of a node, if it was held back at all.
``nccl_path`` What NCCL's log says of the way that the rank's connections take (``nccl_log.py``), where NCCL is used.
``carried``  By how much the node's counters of interfaces and RDMA ports rose during the check (``measure.py``),
             and the settings that choose an interface; from the first rank of a node, in programs that ask for it.
``mapped``   The sha256 of MPI's libraries that the rank has mapped, and which files of artifacts that it uses are not
             as installed; from the first rank of a node, in ``hello`` and the checks of ``HASHING``.
``measured`` A measurement with every sample; see ``measure.py``.
``result``   The verdict of this rank. ``ok``, the number of compared values, and the wrong ones with expected and got.
             ``libraries`` are the library files that are really mapped, ``facts`` are texts, and ``figures`` are
             numbers whose names end in their unit.

The programs import this module by its bare name, because it lies in their folder. It needs Python 3.9 or newer.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import fcntl
import json
import mmap
import os
import re
import signal
import socket
import sys
import tempfile
import termios
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Sequence

import bounded_run
import contents
import control_group
import measure
import nccl_log

# Compare a rank's answers with what they must be, and keep the first wrong ones.
#
# It needs the standard library only; arrays are numpy's.

MOST_PROBLEMS = 4  # a line stays below what a pipe writes in one piece
MOST_SHARES = 16  # wrong sums of which it is asked whose share they lack
TEXT_LIMIT = 160


class Findings:
    """Compare answers with what they must be."""

    def __init__(self) -> None:
        """Begin with nothing compared."""
        self.compared = 0
        self.wrong = 0
        self.problems: list[dict[str, str]] = []

    def array(
        self,
        what: str,
        got: Any,
        expected: Any,
        parts: int | Sequence[int] = 0,
        tolerance: float = 0.0,
        shares: Callable[[Any], Any] | None = None,
    ) -> None:
        """Compare two numpy arrays value by value.

        Args:
            what: the operation, in words.
            got: what came.
            expected: what had to come.
            parts: so many values each came from one rank; a number for each rank where they differ.
            tolerance: by so much times the expected value it may be missed; not-a-number always is.
            shares: of a sum, returns what each rank (a row) had to give at some places (the columns).
        """
        self.compared += int(expected.size)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            self.note(what, [list(expected.shape), str(expected.dtype)], [list(got.shape), str(got.dtype)])
            return
        right = abs(got - expected) <= tolerance * abs(expected) if tolerance else got == expected
        different = (~right).reshape(-1).nonzero()[0]
        if different.size:
            first = int(different[0])
            came, wanted = got.reshape(-1), expected.reshape(-1)
            some = different[:MOST_SHARES]
            missing = [a - b for a, b in zip(wanted[some].tolist(), came[some].tolist())]  # noqa: B905 - 3.9
            lost = lost_share(missing, shares(some)) if shares else ""
            where = f"{what}, {place_of(first, parts)} ({different.size} of {expected.size} wrong{lost})"
            self.note(where, wanted[first].item(), came[first].item())

    def value(self, what: str, got: object, expected: object) -> None:
        """Compare two Python objects."""
        self.compared += 1
        if got != expected:
            self.note(what, expected, got)

    def near(self, what: str, got: float, expected: float, tolerance: float) -> None:
        """Compare two numbers that may differ by ``tolerance`` times the expected one; not-a-number is near nothing."""
        self.compared += 1
        if not abs(got - expected) <= tolerance * abs(expected):
            self.note(what, f"{expected!r} within {tolerance:g} of it", got)

    def note(self, what: str, expected: object, got: object) -> None:
        """Keep the first few wrong answers and count the rest."""
        self.wrong += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"what": what, "expected": shortened(expected), "got": shortened(got)})


def place_of(at: int, parts: int | Sequence[int]) -> str:
    """Return the place of a value in words, with the rank that it came from where each rank gave a part."""
    if isinstance(parts, int):
        return f"value {at % parts} from rank {at // parts}" if parts else f"value {at}"
    rank = 0
    while at >= parts[rank]:
        at -= parts[rank]
        rank += 1
    return f"value {at} from rank {rank}"


def shares_of_seven(ranks: int) -> Callable[[Any], Any]:
    """Return what tells each rank's share of a sum, where it gave 1 to 7 in turn times its number from 1 on."""
    return lambda places: [[value * (rank + 1) for value in (places % 7 + 1).tolist()] for rank in range(ranks)]


def lost_share(missing: Sequence[float], shares: Sequence[Sequence[float]]) -> str:
    """Return which rank's share alone explains wrong sums, in words; nothing where none or several ranks do.

    A flipped bit makes one value wrong, or all by as much. So a share is told only where it explains several values
    that miss by different amounts.

    Args:
        missing: by how much each wrong sum is too small.
        shares: what each rank had to give to these sums.
    """
    if len(set(missing)) > 1:
        for words, sign in (("without the share", 1), ("with twice the share", -1)):
            wanted = [sign * value for value in missing]
            ranks = [rank for rank, its in enumerate(shares) if list(its) == wanted]
            if len(ranks) == 1:
                return f", {words} from rank {ranks[0]}"
    return ""


def shortened(value: object) -> str:
    """Return a value as text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


CHOOSE_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
MIG = "MIG-"  # begin of the name of an instance of a GPU in MIG mode
HASHING = ("point_to_point", "nccl", "torchrun", "horovod")  # checks that together use all artifacts
HASHING_S = 1.0  # small files come first, so that a changed one is seen; a library of a gigabyte may be left out
POLL_S = 0.02
ALARM_GRACE_S = 30  # a rank that is still left (its node was frozen) ends itself this long after the deadline
PR_SET_PDEATHSIG = 1
STACK_FILE = "clusterctl_stack"  # name of the memory file into which a rank writes its stack
STACK_SIGNAL = signal.SIGRTMIN + 6  # asks for it; the libraries of a rank do not use this number
TURN_S = 0.0002
LISTENED_S = 1.0  # longest wait for a busy daemon
OWN_GRADIENT = "its own first gradient"  # a mistake of one rank, before the average spreads it to all ranks
tempfile.tempdir = bounded_run.scratch_folder()  # no library of a rank tries it out with a file
# One thread, for numpy and torch would start one per core in every rank; and no folder in /tmp for a compiler's cache
# that no check uses.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": tempfile.gettempdir(),
}


WORLD = "number of ranks in MPI's world"


class CheckError(Exception):
    """A library refused a call; the message names the function and repeats the library's own words."""


class Voice:
    """Print the lines of a rank, each in a single write."""

    def __init__(self, check: str, rank: int | None = None, size: int | None = None) -> None:
        """Learn who this rank is: from the caller, else from mpirun's environment."""
        environment = os.environ
        found = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMIX_RANK", "0"))
        self.rank = int(found) if rank is None else rank
        self.size = int(environment.get("OMPI_COMM_WORLD_SIZE", "1")) if size is None else size
        self.check = check
        self.host = socket.gethostname()
        self.began = time.monotonic()

    def say(self, event: str, **figures: Any) -> None:
        os.write(1, self.line(event, figures))

    def beat(self, step: str) -> None:
        """Print a sign of life."""
        load = {"load_processes": round(os.getloadavg()[0], 2), "load_cpus": os.cpu_count() or 1}
        self.say("waiting", s=round(time.monotonic() - self.began, 3), step=step, **load)

    def say_in_turn(self, event: str, **figures: Any) -> None:
        """Print one of many lines, and wait until mpirun's daemon has read it.

        The daemon passes on up to 4 KiB at once. It would cut a line in two where several wait, and another rank's
        output might come between. The ranks' stdout is a terminal, which does not tell whether it was read. Their
        stderr is a pipe, which does.
        """
        end = time.monotonic() + LISTENED_S
        with contextlib.suppress(OSError):  # it is no pipe: there is no daemon
            while waiting_in(2) and time.monotonic() < end:
                time.sleep(TURN_S)
        os.write(2, self.line(event, figures))

    def line(self, event: str, figures: dict[str, Any]) -> bytes:
        head = {"clusterctl": 1, "event": event, "check": self.check, "rank": self.rank, "host": self.host}
        return (json.dumps({**head, **figures}) + "\n").encode()


def waiting_in(pipe: int) -> int:
    """Return how many bytes of a pipe are not read yet."""
    count = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


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


class Rank:
    """The state of one rank: its identity, its present step, and its findings.

    ``facts`` (texts) and ``figures`` (numbers, the name ends in the unit) go into the rank's result. So do the mapped
    files of ``libraries``, names such as ``libmpi``, which are looked up at the end of the check.
    """

    def __init__(
        self,
        voice: Voice,
        board: Board,
        arguments: argparse.Namespace,
        log: nccl_log.Log | None = None,
        *,
        counts: bool = False,
    ) -> None:
        """Begin with nothing found; ``log`` is NCCL's, and ``counts`` asks for the node's counters."""
        self.log, self.counts = log, counts and is_first_of_node()
        self.before: dict[str, tuple[int, int]] = {}
        self.voice, self.board, self.arguments = voice, board, arguments
        self.rank, self.size = voice.rank, voice.size
        self.findings = Findings()
        self.libraries: tuple[str, ...] = ("libmpi",)
        self.library_version = ""
        self.facts: dict[str, str] = {}
        self.figures: dict[str, float] = {}
        self.init_s = 0.0
        self.began = time.monotonic()

    def doing(self, what: str) -> str:
        """Record the rank's next step, which explains a hang."""
        self.board.step = what
        return what

    def begin(self) -> None:
        """Note that everything is up; the seconds of the check count from here."""
        now = time.monotonic()
        self.init_s, self.began = round(now - self.began, 6), now
        if self.counts:
            self.before = measure.counters(measure.SYS)

    def tell_path(self) -> None:
        """Print which way NCCL's connections took, and what the node's counters saw since :meth:`begin`."""
        found = nccl_log.told(self.log.lines()) if self.log is not None else {}
        if found:
            self.voice.say("nccl_path", **found)
        if self.before:
            settings = {name: shortened(os.environ[name]) for name in CHOOSE_INTERFACE if name in os.environ}
            self.voice.say("carried", ports=measure.told(self.before), settings=settings)

    def attempt(self, check: Callable[[], None]) -> bool:
        """Run the check and print this rank's result; whether the check came to its end.

        An exception becomes a wrong answer, because the report must name it with rank and host.
        """
        ended = False
        try:
            check()
            ended = True
        except Exception as problem:  # noqa: BLE001 - see above
            place = traceback.extract_tb(problem.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}"
            self.findings.note(self.board.step, "an answer", f"{type(problem).__name__}: {problem} ({where})")
        with contextlib.suppress(OSError):
            self.tell_path()
        mapped = {name: mapped_library(name) for name in self.libraries}
        result(
            self.voice,
            self.findings,
            size=self.size,
            init_s=self.init_s,
            seconds=round(time.monotonic() - self.began, 6),
            library_version=shortened(self.library_version),
            library_path=mapped.pop("libmpi", ""),
            libraries=mapped,
            facts={name: shortened(text) for name, text in self.facts.items()},
            figures=self.figures,
        )
        self.board.set_spoken()
        if self.voice.check in HASHING and is_first_of_node():
            with contextlib.suppress(OSError):
                self.voice.say("mapped", **contents.compared(contents.used(), HASHING_S))
        return ended

    @property
    def code(self) -> int:
        return 0 if self.findings.wrong == 0 else 1


def with_mpi(rank: Rank, check: Callable[[Any], None]) -> int:
    """Start MPI through mpi4py, run ``check(MPI)``, print the result and leave together with all other ranks."""
    found: list[Any] = []

    def body() -> None:
        from mpi4py import MPI  # noqa: PLC0415 - "started" is said before this import, which calls MPI_Init

        found.append(MPI)
        rank.rank, rank.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        rank.library_version = MPI.Get_library_version().strip("\0\n ")
        rank.begin()
        world_problem(rank)
        check(MPI)

    rank.doing("MPI_Init")
    ended = rank.attempt(body)
    if not found:
        return 1
    if not ended:
        found[0].COMM_WORLD.Abort(1)  # the others would wait for this rank until the deadline
    rank.doing("the barrier at the end")
    found[0].COMM_WORLD.Barrier()  # mpirun ends the others as soon as one leaves with an error; all have spoken now
    return rank.code


def world_problem(rank: Rank) -> None:
    """Note a world that is smaller than the launcher started; srun without PMIx starts each rank alone (code 0)."""
    if rank.size < rank.voice.size:
        rank.findings.note(WORLD, str(rank.voice.size), str(rank.size))


def mapped_library(name: str) -> str:
    """Return the real path of the library ``name.so…`` that this process has mapped, empty if it has not."""
    wanted = re.compile(rf"/{re.escape(name)}\.so[^/]*$")
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        place = line.find("/")
        if place >= 0 and wanted.search(line[place:]):
            return str(Path(line[place:]).resolve())
    return ""


def result(voice: Voice, findings: Findings, **figures: Any) -> None:
    """Print a rank's verdict."""
    voice.say(
        "result",
        ok=findings.wrong == 0 and findings.compared > 0,
        compared=findings.compared,
        wrong=findings.wrong,
        problems=findings.problems,
        **figures,
    )


def watch(
    voice: Voice,
    worker: int,
    board: Board,
    heartbeat_s: float,
    look: Callable[[int], bool] | None = None,
    log: nccl_log.Log | None = None,
    ask_s: float = float("inf"),
) -> int:
    """Wait for the working process, and speak for it where it cannot.

    MPI_Init holds the interpreter's lock, so a thread of the worker would be as silent as the worker itself.

    Args:
        voice: the rank's voice.
        worker: the pid of the working process.
        board: what it is busy with.
        heartbeat_s: seconds between two signs of life.
        look: looks at the working process again and again, until it returns True.
        log: NCCL's log, whose warnings go into the job's output.
        ask_s: after so many seconds without an end, NCCL's RAS is asked how the job stands.
    """
    ask_at = time.monotonic() + ask_s
    count = HeldBack(voice)
    beat_at = time.monotonic() + heartbeat_s
    while True:
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            pass_on(log)
            code = farewell(voice, status, board)
            count.tell()
            return code
        if look is not None and look(worker):
            look = None
        if time.monotonic() >= ask_at:
            ask_at = float("inf")
            nccl_log.tell()
        if time.monotonic() >= beat_at:
            beat_at += heartbeat_s
            count.tell()
            pass_on(log)
            if not is_stopped(worker):  # a stopped worker gives no sign of life
                voice.beat(board.step)
        time.sleep(POLL_S)


def pass_on(log: nccl_log.Log | None) -> None:
    """Print what NCCL has written since the last time, as far as it belongs into the job's output."""
    if log is not None:
        os.write(2, "".join(f"{line}\n" for line in log.fresh()).encode())


class HeldBack:
    """Tells for how long the control group held this node back since the start."""

    def __init__(self, voice: Voice) -> None:
        self.voice, self.counts = voice, is_first_of_node()
        self.before = control_group.count() if self.counts else control_group.Count()

    def tell(self) -> None:
        """Print the count, if there is anything to tell."""
        held = control_group.count().since(self.before) if self.counts else {}
        if held:
            self.voice.say("held_back", **held)


def is_first_of_node() -> bool:
    """Whether this rank is the first of its node, by the environment of mpirun or torchrun."""
    environment = os.environ
    return environment.get("OMPI_COMM_WORLD_LOCAL_RANK", environment.get("LOCAL_RANK", "0")) == "0"


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


def farewell(voice: Voice, status: int, board: Board) -> int:
    """Return the worker's exit code; report for a worker that ended without a word."""
    code = os.waitstatus_to_exitcode(status)
    if code != 0 and not board.spoken:
        findings = Findings()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        findings.note(board.step, "an answer", how)
        result(voice, findings)
    return code if code >= 0 else 128 - code


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell_stack_when_asked() -> None:
    """Make this process write its Python stack into a memory file at each such signal, even in the middle of a call.

    A killed rank would leave a file of /tmp behind. ``rank_stacks.py`` signals only processes that have this file.
    """
    with contextlib.suppress(OSError, AttributeError, ValueError):
        faulthandler.register(STACK_SIGNAL, file=os.memfd_create(STACK_FILE))


def be_modest() -> None:
    """Set what keeps the libraries of this process and its children from taking more than their share."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def take_gpu(torch: Any, local_rank: int, local_size: int) -> Any:
    """Return the GPU of a rank, and let NCCL know where ranks share one; before its first call.

    Of several MIG instances CUDA shows the first. So a worker of torchrun, whose node was given several, keeps its own.
    """
    given = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.startswith(MIG)]
    if given:
        os.environ["CUDA_VISIBLE_DEVICES"] = given[local_rank % len(given)]
        os.environ.setdefault("NCCL_MNNVL_ENABLE", "0")  # MIG has no NVLink between instances
    count = torch.cuda.device_count()
    if not count:
        raise RuntimeError("torch finds no GPU that it can use")
    if local_size > count and not given:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    torch.cuda.set_device(local_rank % count)
    return torch.device("cuda", local_rank % count)


def gradient_size(model: Any, loss: Any) -> float:
    """Return the length of a loss's gradient with respect to a model of torch."""
    model.zero_grad()
    loss.backward()
    return float(sum(float(parameter.grad.square().sum()) for parameter in model.parameters())) ** 0.5


def parser(description: str, checks: Sequence[str]) -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(description=description)
    words.add_argument("--check", required=True, choices=list(checks))
    words.add_argument("--deadline", type=float, default=60.0, help="seconds after which the job is ended from outside")
    words.add_argument("--heartbeat", type=float, default=5.0, help="seconds between two signs of life")
    return words


def run(
    arguments: argparse.Namespace,
    work: Callable[[Rank], int],
    voice: Voice | None = None,
    look: Callable[[int], bool] | None = None,
    *,
    nccl: bool = False,
    counts: bool = False,
) -> int:
    """Report that this rank is up, then run ``work`` in a child and watch it.

    Args:
        arguments: of :func:`parser`.
        work: does the check, prints the result (:meth:`Rank.attempt`) and returns the exit code, or exits with it.
        voice: this rank's voice; None takes rank and size from mpirun's environment.
        look: looks at the child again and again, until it returns True.
        nccl: whether the ranks use NCCL, whose log tells the way of its connections.
        counts: whether the node's counters of interfaces and RDMA ports are told.
    """
    voice = voice or Voice(arguments.check)
    board = Board()
    board.step = "the start of the program"
    voice.say("started", pid=os.getpid())
    be_modest()
    log = nccl_log.Log(os.environ) if nccl else None
    worker = os.fork()
    signal.alarm(int(arguments.deadline + ALARM_GRACE_S))  # in both, and it survives an exec
    if worker:
        ask_s = nccl_log.ASKED_AT * arguments.deadline if nccl and voice.rank == 0 else float("inf")
        return watch(voice, worker, board, arguments.heartbeat, look, log, ask_s)
    end_with_parent()
    tell_stack_when_asked()
    return work(Rank(voice, board, arguments, log, counts=counts))


if __name__ == "__main__":
    sys.exit("This is a module; start one of the programs beside it.")
