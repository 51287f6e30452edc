"""Read a stack of py-spy, eu-stack or gdb: which call a rank waits in, and where in the program it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

_PYTHON_FRAME = re.compile(r"^ {4}(?P<name>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_NATIVE_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in )?(?P<name>[A-Za-z_][\w:~<>]*)")
ENDED = "the program has ended, and the process has not"  # the words of rank_stacks.py
_HEAD = re.compile(r"^(?:Thread |TID )")
_MPI = re.compile(r"P?MPI_[A-Z]\w*")
_NCCL = re.compile(r"nccl(?:AllReduce|AllGather|Broadcast|Reduce|ReduceScatter|Send|Recv|CommInit\w*)")
_TORCH = "torch/distributed/distributed_c10d.py"
_LOADER = "torch/utils/data/dataloader.py"
_HOROVOD = "horovod/"
_INNER = re.compile(r"wrapper|_\w+|<\w+>|decorate_context")
_BACKWARD = re.compile(r"_engine_run_backward")
_CUDA = re.compile(r"synchronize")
_NO_PLACE = re.compile(r"_*(?:clock_)?nanosleep|_*(?:libc_)?(?:read|poll|select|wait|futex|syscall|start)\w*|epoll_\w+")


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        call: the communication that it waits in, such as ``all_reduce`` or ``MPI_Recv``; empty outside of one.
        where: the function and line of the program, such as ``load (train.py:12)``; empty if there is no stack.
        may_compute: the call is also one of computation, such as the backward pass.
        has_ended: the program has ended, and the process has not.
    """

    call: str = ""
    where: str = ""
    may_compute: bool = False
    has_ended: bool = False

    @property
    def has_line(self) -> bool:
        """Whether the place is a line of a Python program."""
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
