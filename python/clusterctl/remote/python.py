"""Run a Python program on a node: send it over ssh's standard input, and read its lines of JSON.

A program is a module or package of ``plugins/module_utils``. It travels as a zip that ``node_starter`` (of the same
folder) imports from memory. So a node needs nothing but Python, and no file is left there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import selectors
import signal
import subprocess
import time
import zipfile
from dataclasses import dataclass, field
from functools import cache
from typing import IO, TYPE_CHECKING, Any, TypeVar

from clusterctl.support import content, node_json

if TYPE_CHECKING:
    import mmap
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence


StreamT = TypeVar("StreamT")

# --- Run a command on a node within a time, and keep no more of its output than an answer needs -----------------------

MOST_BYTES = 1 << 24  # of an answer; the record of a large node has a hundredth of it
MOST_ERRORS = 1 << 16  # of stderr; ssh says at the end what went wrong


class TooMuchOutputError(ValueError):
    """A node's answer is longer than any answer of our programs; the text says so as a clause."""

    def __init__(self, most: int = 0) -> None:
        """Name the limit in MiB."""
        super().__init__(f"it answered with more than {(most or MOST_BYTES) >> 20} MiB, which no program of ours does")


@dataclass(frozen=True)
class Done:
    """How a command ended; ``errors`` is the end of its stderr."""

    returncode: int
    output: bytes
    errors: bytes


def run(argv: Sequence[str], request: bytes | mmap.mmap, timeout_s: float) -> Done:
    """Run a command with ``request`` on its stdin.

    Raises:
        TooMuchOutputError: it wrote more than an answer has; it is killed.
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            output, errors = _exchange(process, request, time.monotonic() + timeout_s, timeout_s)
            return Done(process.wait(timeout=timeout_s), bytes(output), bytes(errors))
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _exchange(
    process: subprocess.Popen[bytes], request: bytes | mmap.mmap, end: float, timeout_s: float
) -> tuple[bytearray, bytearray]:
    output, errors = bytearray(), bytearray()
    waiting = memoryview(request)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(pipe(stream), selectors.EVENT_READ)
        os.set_blocking(pipe(process.stdin).fileno(), False)
        selector.register(pipe(process.stdin), selectors.EVENT_WRITE)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    waiting = _written(key.fd, waiting)
                    if not waiting:
                        selector.unregister(key.fileobj)
                        _close(process.stdin)
                    continue
                data = os.read(key.fd, _BLOCK)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors += data
                    del errors[:-MOST_ERRORS]
                else:
                    output += data
                    if len(output) > MOST_BYTES:
                        raise TooMuchOutputError
    return output, errors


def _written(descriptor: int, waiting: memoryview) -> memoryview:
    """Return what is still to be written; nothing where the reader has gone."""
    try:
        return waiting[os.write(descriptor, waiting[:_BLOCK]) :] if waiting else waiting
    except BlockingIOError:
        return waiting
    except OSError:
        return waiting[:0]


def _close(stream: IO[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        pipe(stream).close()


def pipe(stream: StreamT | None) -> StreamT:
    """Return a stream of a process that was started with pipes; its type alone could be None."""
    if stream is None:  # pragma: no cover - always a pipe here
        raise AssertionError
    return stream


NODE_PROBE = "node_look.record"  # the program that reports a node's facts

# argv[1] is the size of node_starter.py in bytes, argv[2] that of the zip, argv[3] the module; then its arguments.
_READ_STARTER = "import sys;exec(sys.stdin.buffer.read(int(sys.argv[1])))"
_MOST_ANSWERS = 1000  # lines
_MOST_EVIDENCE = 300
_BLOCK = 1 << 16
_STDERR_WAIT_S = 1.0
_READS = b"clusterctl reads "  # node_look.record.READS


@dataclass(frozen=True)
class Program:
    """A program for nodes; ``data`` goes to its stdin first, before any request."""

    module: str
    starter_bytes: int
    zip_bytes: int
    data: bytes = field(repr=False)

    def argv(self, python: str, *arguments: str) -> list[str]:
        """Return the command that runs the program, for ``python`` on the node."""
        sizes = [str(self.starter_bytes), str(self.zip_bytes)]
        return [python, "-I", "-c", _READ_STARTER, *sizes, self.module, *arguments]


@cache
def program(module: str, beside: tuple[str, ...] = ()) -> Program:
    """Return a program of ``plugins/module_utils``.

    Args:
        module: a module that has ``main(arguments)``, for example ``login_probe`` or ``node_look.record``. The
            modules of its package are sent along, not those of the packages around that.
        beside: files of the role ``validation`` that it imports by their bare names.
    """
    folder = content.root() / "plugins" / "module_utils"
    place = folder / f"{module.replace('.', '/')}.py"
    paths = [place] if place.parent == folder else sorted(place.parent.glob("*.py"))
    paths += [above / "__init__.py" for above in place.parent.parents if folder in above.parents]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    archive = zipped(files | {name: (content.role_files("validation") / name).read_bytes() for name in beside})
    starter = (folder / "node_starter.py").read_bytes()
    return Program(module, len(starter), len(archive), starter + archive)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files by their path; equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path), files[path], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class NoClientError(Exception):
    """The command itself, ssh as a rule, is not installed on this machine."""


class EndedError(Exception):
    """The program, or ssh, ended before it gave its answer; the text is the last line of stderr, or ''."""


@dataclass(frozen=True)
class Ending:
    """How a program ended, and all that was not read of its output.

    ``began`` and ``ended`` are times of this machine's clock around its run, 0 where nobody took them.
    """

    returncode: int
    output: bytes
    errors: str
    began: float = 0.0
    ended: float = 0.0


class Conversation:
    """A program that runs on a node: requests go to its stdin, lines of JSON come back."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take over a process whose three streams are pipes."""
        self._process = process
        self._said = bytearray()  # on stderr, until now
        self._errors = asyncio.create_task(_read_end(process.stderr, self._said))

    @property
    def reading(self) -> str:
        """What the program says that it reads, '' if it says nothing."""
        lines = [line for line in self._said.splitlines() if line.startswith(_READS)]
        return lines[-1].removeprefix(_READS).decode("utf-8", "replace").strip() if lines else ""

    @classmethod
    async def start(cls, argv: Sequence[str]) -> Conversation:
        """Start a command.

        Raises:
            NoClientError: the command is not installed here.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            # A process group of its own, so that children of ssh (a ProxyCommand) end with it.
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=MOST_BYTES
            )
        except FileNotFoundError:
            raise NoClientError(argv[0]) from None
        return cls(process)

    async def send(self, data: bytes) -> None:
        """Write to the program; if it has ended, the next reading says so."""
        stdin = pipe(self._process.stdin)
        with contextlib.suppress(ConnectionError):
            stdin.write(data)
            await stdin.drain()

    async def answer(self, mark: bytes) -> dict[str, Any]:
        """Return the next line that begins with ``mark``; other lines come from login scripts.

        Raises:
            EndedError: there is no such line.
            ValueError: the line is too long, or is not JSON that can be kept.
        """
        stream = self._process.stdout
        while stream is not None and (line := await stream.readline()):
            if line.startswith(mark):
                found: dict[str, Any] = node_json.loads(line)
                return found
        raise EndedError(await self._last_words())

    async def finish(self, data: bytes = b"") -> Ending:
        """Write the last data, wait for the program's end, and return what it still writes.

        Raises:
            TooMuchOutputError: it writes more than an answer has.
        """
        _, output = await asyncio.gather(self._send_last(data), _all_of(self._process.stdout))
        await self._errors
        return Ending(await self._process.wait(), output, self._stderr())

    async def _send_last(self, data: bytes) -> None:
        await self.send(data)
        self._end_input()

    async def close(self, grace_s: float = 0.0) -> None:
        """End the program's stdin, and kill what has not ended after that many seconds."""
        try:
            self._end_input()
            if grace_s and self._process.returncode is None:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), grace_s)
        finally:
            self._errors.cancel()
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()

    def _end_input(self) -> None:
        pipe(self._process.stdin).close()

    async def _last_words(self) -> str:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._errors), _STDERR_WAIT_S)
            return last_line(self._stderr())
        return ""

    def _stderr(self) -> str:
        """Return the stderr of the program without what it says of its way."""
        lines = self._said.splitlines(keepends=True)
        return b"".join(line for line in lines if not line.startswith(_READS)).decode("utf-8", "replace")


@contextlib.asynccontextmanager
async def talk(argv: Sequence[str], grace_s: float = 0.0) -> AsyncIterator[Conversation]:
    """Start a command for the time of a ``with`` block; nothing of it runs afterwards.

    Raises:
        NoClientError: the command is not installed here.
    """
    conversation = await Conversation.start(argv)
    try:
        yield conversation
    finally:
        await conversation.close(grace_s)


@dataclass(frozen=True)
class Reply:
    """The answer of a command, or the problem that kept it from answering; ``done`` is how it ended then."""

    answer: dict[str, Any] | None
    problem: str = ""
    timed_out: bool = False
    done: Done | None = field(default=None, repr=False, compare=False)


def ask(argv: Sequence[str], request: bytes, timeout_s: float, keys: Collection[str]) -> Reply:
    """Run a command, and return the last JSON object on its output that has certain keys.

    ``keys`` are what the answer has, and a line of a login script has not.
    """
    try:
        done = run(argv, request, timeout_s)
    except subprocess.TimeoutExpired:
        return Reply(None, f"did not answer within {timeout_s:g} s", timed_out=True)
    except TooMuchOutputError as error:
        return Reply(None, str(error))
    if (answer := last_answer(done.output, keys)) is not None:
        return Reply(answer)
    said = last_line(done.errors.decode("utf-8", "replace"))
    return Reply(None, said or f"ended with status {done.returncode} and without an answer", done=done)


def last_answer(output: bytes, keys: Collection[str]) -> dict[str, Any] | None:
    """Return the last JSON object on a program's output that has certain keys; None without one.

    It begins a line. Of the lines that begin as one does, some are looked at.
    """
    end = len(output)
    for _unused in range(_MOST_ANSWERS):
        begin = output.rfind(b"\n{", 0, end) + 1
        with contextlib.suppress(ValueError):
            answer = node_json.loads(output[begin:end].partition(b"\n")[0])
            if isinstance(answer, dict) and answer.keys() >= set(keys):
                return answer
        if not begin:
            break
        end = begin - 1
    return None


def last_line(text: str) -> str:
    """Return the last line of a program's stderr, shortened; '' if it is empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST_EVIDENCE] if lines else ""


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    found = bytearray()
    while stream is not None and (data := await stream.read(_BLOCK)):
        found += data
        if len(found) > MOST_BYTES:
            raise TooMuchOutputError
    return bytes(found)


async def _read_end(stream: asyncio.StreamReader | None, found: bytearray) -> None:
    """Read everything, so that the writer never waits, and keep the end of it in ``found``."""
    while stream is not None and (data := await stream.read(_BLOCK)):
        found += data
        del found[:-MOST_ERRORS]
