"""Read a stack of py-spy, eu-stack or gdb: which call a rank waits in, and where in the program it is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.model.job_outcome import FlightGroup

_PYTHON_FRAME = re.compile(r"^ {4}(?P<name>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_NATIVE_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in )?(?P<name>[A-Za-z_][\w:~<>]*)")
ENDED = "the program has ended, and the process has not"  # the words of rank_stacks.py
_ASLEEP = re.compile(r"[^\n]{1,64}?: sleeping, waits in (?P<function>\w{1,64})")
_HEAD = re.compile(r"^(?:Thread |TID )")
_MPI = re.compile(r"P?MPI_[A-Z]\w*")
_NCCL = re.compile(r"nccl(?:AllReduce|AllGather|Broadcast|Reduce|ReduceScatter|Send|Recv|CommInit\w*)")
_TORCH = "torch/distributed/distributed_c10d.py"
_LOADER = "torch/utils/data/dataloader.py"
_HOROVOD = "horovod/"
_INNER = re.compile(r"wrapper|_\w+|<\w+>|decorate_context")
_BACKWARD = re.compile(r"_engine_run_backward")
_CUDA = re.compile(r"synchronize")
_NO_PLACE = re.compile(
    r"(?:__GI_)?_*(?:clock_)?nanosleep|(?:__GI_)?_*(?:libc_)?(?:read|poll|select|wait|futex|syscall|start)\w*|epoll_\w+"
)


@dataclass(frozen=True)
class Place:
    """Where a rank is."""

    call: str = ""  # the communication that it waits in, such as ``all_reduce`` or ``MPI_Recv``; empty outside of one
    where: str = ""  # the function and line of the program, such as ``load (train.py:12)``; empty if there is no stack
    may_compute: bool = False  # the call is also one of computation, such as the backward pass
    has_ended: bool = False  # the program has ended, and the process has not

    @property
    def has_line(self) -> bool:
        return bool(re.search(r":\d+\)$", self.where))

    @property
    def known(self) -> bool:
        """Whether a stack told anything."""
        return bool(self.call or self.where or self.has_ended)


@dataclass(frozen=True)
class _Frame:
    name: str
    file: str = ""
    line: str = ""

    @property
    def words(self) -> str:
        place = PurePosixPath(self.file).name + (f":{self.line}" if self.line else "")
        return f"{self.name} ({place})" if place else self.name


def place(text: str) -> Place:
    """Return where the main thread is; the innermost frame stands first in every tool's text."""
    if ENDED in text.splitlines():
        return Place(has_ended=True)
    frames = _main_frames(text)
    python = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
    loader = [frame for frame in python if frame.file.endswith(_LOADER)]
    where = _where(frames, python)
    if loader:
        inner = python[0]
        own = not inner.file.endswith(_LOADER) and not inner.file.startswith(("torch/", "multiprocessing/"))
        return Place(where="DataLoader.__next__" + (f", {inner.words}" if own else ""))
    call, may_compute = _call(frames)
    return Place(call, where, may_compute)


def asleep_in(text: str) -> str:
    """Return the function of the kernel in which the main thread sleeps, by the words of rank_stacks.py."""
    found = _ASLEEP.match(text)
    return found["function"] if found else ""


def _main_frames(text: str) -> list[_Frame]:
    threads: list[tuple[str, list[_Frame]]] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            threads.append((line, []))
            continue
        match = _PYTHON_FRAME.match(line) or _NATIVE_FRAME.match(line)
        if match is None:
            continue
        if not threads:
            threads.append(("", []))
        parts = match.groupdict()
        threads[-1][1].append(_Frame(parts["name"], parts.get("file") or "", parts.get("line") or ""))
    main = [frames for head, frames in threads if '"MainThread"' in head]
    return (main or [frames for _head, frames in threads] or [[]])[0]


def _where(frames: list[_Frame], python: list[_Frame]) -> str:
    own = [frame for frame in python if not frame.file.startswith(("torch/", "horovod/", "<frozen"))]
    if own or python:
        return (own or python)[0].words
    called = [at for at, frame in enumerate(frames) if _library_call(frame)[0]]
    outer = frames[called[-1] + 1 :] if called else frames  # inside of the library the frames change while it waits
    return next((frame.words for frame in outer if not _NO_PLACE.fullmatch(frame.name)), "")


def _call(frames: list[_Frame]) -> tuple[str, bool]:
    """Return the communication that the frames are inside of, and whether it may be computation."""
    horovod = [frame for frame in frames if frame.file.startswith(_HOROVOD) or f"/{_HOROVOD}" in frame.file]
    if horovod:
        return horovod[-1].name, False
    torch = [frame for frame in frames if frame.file.endswith(_TORCH) and not _INNER.fullmatch(frame.name)]
    if torch:
        return torch[-1].name, False
    return next((found for frame in frames if (found := _library_call(frame))[0]), ("", False))


def _library_call(frame: _Frame) -> tuple[str, bool]:
    if _MPI.fullmatch(frame.name) or _NCCL.fullmatch(frame.name):
        return frame.name.removeprefix("P"), False
    if _BACKWARD.fullmatch(frame.name):
        return "backward", True
    if _CUDA.fullmatch(frame.name) and "cuda" in frame.file:
        return "torch.cuda.synchronize", True
    return "", False


# --- Which rank keeps a collective from going on, by PyTorch's flight recorder and by NCCL's RAS ----------------------
# The flight recorder numbers the calls of each group, and each rank makes them in their order. The rank at the lowest
# call keeps the others of its group waiting, or the one that called something else. A rank that itself waits for one of
# another group is not a cause.


@dataclass(frozen=True)
class Behind:
    """The ranks that keep the others waiting, what they did in words, and the call that the others wait in."""

    ranks: tuple[int, ...]
    words: str
    call: str


def behind(flights: Mapping[int, Sequence[FlightGroup]]) -> Behind | None:
    """Return the ranks for which others of their process groups wait; None where none are set apart."""
    by_group: dict[str, dict[int, FlightGroup]] = {}
    for rank, groups in flights.items():
        for one in groups:
            by_group.setdefault(one.group, {})[rank] = one
    found = [(few, group) for group in by_group.values() if (few := _in_group(group)) is not None]
    named = {rank for few, _group in found for rank in few.ranks}
    waiting = {rank for few, group in found for rank in group.keys() - {*few.ranks} if group[rank].waits >= 0}
    waiting |= {rank for rank in named for one in flights[rank] if named & {*one.peers} - {rank}}
    ranks = tuple(sorted(named - waiting))
    if not ranks:
        return None
    common = (few for few, _group in found if few.ranks == ranks)
    return next(common, Behind(ranks, "has not made a call that others of its process groups wait in", ""))


def _order(one: FlightGroup) -> tuple[int, bool]:
    """Return the call that a rank is at, and whether it has made it."""
    return (one.waits, True) if one.waits >= 0 else (one.last + 1, False)


def _in_group(ranks: Mapping[int, FlightGroup]) -> Behind | None:
    lowest = min(map(_order, ranks.values()))
    few = tuple(sorted(rank for rank, one in ranks.items() if _order(one) == lowest))
    ahead = [one for one in ranks.values() if one.waits >= 0 and _order(one) > lowest]
    if ahead and len(few) <= len(ahead) and len(few) * 2 <= len(ranks):
        number = Counter(sorted((one.waits for one in ahead), reverse=True)).most_common(1)[0][0]
        name = f"{_common_call(ahead, number)[0]} #{number}"
        called = any(ranks[rank].last >= number for rank in few)
        return Behind(few, f"is still in a call before {name}" if called else f"has not called {name}", name)
    number, call = lowest[0], _common_call(ranks.values(), lowest[0])
    other = [rank for rank, one in ranks.items() if one.waits == number and (one.call, one.sizes) != call]
    if not other or len(other) * 2 >= sum(one.waits == number for one in ranks.values()):
        return None
    name = f"{call[0]} #{number}"
    return Behind(tuple(sorted(other)), f"has called something else than {name}", name)


def _common_call(ranks: Iterable[FlightGroup], number: int) -> tuple[str, str]:
    """Return the call that most of those who wait in one number have made, and its sizes."""
    there = Counter((one.call, one.sizes) for one in ranks if one.waits == number)
    return there.most_common(1)[0][0] if there else ("", "")


# --- Read NCCL's RAS: which processes of a job have launched fewer collectives than the others, or do not answer it ---

_COMMUNICATOR = re.compile(r"#(?P<name>\d+-\d+) \([0-9a-f]+\) (?P<error>[A-Z]+)$")
_KIND = re.compile(r"\s+Communicator ranks have different (?P<kind>\w+) operation counts$")
_SOME = re.compile(
    r"\s+(?P<ranks>\d{1,9}) ranks have (?:launched up to operation (?P<number>\d{1,18})|not launched any operat)"
)
_ONE = re.compile(r"\s+Rank \d+ has (?:launched up to operation (?P<number>\d{1,18})|not launched any operations) -- ")
_PROCESS = re.compile(r"managed by process (?P<pid>\d{1,9}) on node (?P<node>\S+)$")
_SILENT = re.compile(r"\s+Process (?P<pid>\d{1,9}) on node (?P<node>\S+) managing GPU")


@dataclass(frozen=True)
class _Launched:
    """How many processes have launched so many operations of a kind, and those of them that are named."""

    number: int
    ranks: int
    processes: list[tuple[str, int]] = field(default_factory=list)


def behind_by_ras(lines: Iterable[str], rank_of: Callable[[str, int], int | None], ranks: int) -> Behind | None:
    """Return the few ranks for which the others wait; None where RAS sets none apart.

    ``rank_of`` returns the job's rank of a process, by node as RAS names it and process number.
    """
    text = list(lines)
    found = [few for kind, launched in _counts(text) if (few := _fewest(kind, launched, rank_of)) is not None]
    if len({one.ranks for one in found}) == 1 and len(found[0].ranks) * 2 < ranks:
        return found[0]
    silent = [rank_of(match["node"], int(match["pid"])) for line in text if (match := _SILENT.match(line))]
    named = tuple(sorted({rank for rank in silent if rank is not None}))
    if found or None in silent or not named or len(named) * 2 >= ranks:
        return None
    return Behind(named, "does not answer NCCL's RAS", "")


def _counts(lines: Sequence[str]) -> list[tuple[str, list[_Launched]]]:
    """Return, for each communicator and kind of operation, how far its processes are."""
    found: list[tuple[str, list[_Launched]]] = []
    inside = False
    for line in lines:
        if match := _KIND.match(line):
            found.append((match["kind"], []))
            inside = True
        elif _COMMUNICATOR.match(line) or not line.startswith(" "):
            inside = False
        elif inside:
            _add(found[-1][1], line)
    return found


def _add(launched: list[_Launched], line: str) -> None:
    process = _PROCESS.search(line)
    named = [(process["node"], int(process["pid"]))] if process else []
    if match := _SOME.match(line):
        launched.append(_Launched(int(match["number"] or 0), int(match["ranks"])))
    elif match := _ONE.match(line):
        launched.append(_Launched(int(match["number"] or 0), 1, named))
    elif named and launched:
        launched[-1].processes.extend(named)


def _fewest(kind: str, launched: Sequence[_Launched], rank_of: Callable[[str, int], int | None]) -> Behind | None:
    """Return the processes that have launched less than the most common number, where all of them are named."""
    if not launched:
        return None
    number = Counter({one.number: one.ranks for one in launched}).most_common(1)[0][0]
    few = [one for one in launched if one.number < number]
    ranks = [rank_of(*process) for one in few for process in one.processes]
    if not few or None in ranks or len(ranks) != sum(one.ranks for one in few):
        return None
    known = tuple(sorted({rank for rank in ranks if rank is not None}))
    return Behind(known, f"has not launched {kind} #{number}, by NCCL's RAS", f"{kind} #{number}")
