"""Run a command on a node within a time, and keep no more of its output than an answer needs."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 1 << 24  # of an answer; the record of a large node has a hundredth of it
MOST_ERRORS = 1 << 16  # of stderr; ssh says at the end what went wrong
_BLOCK = 1 << 16


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


def run(argv: Sequence[str], request: bytes, timeout_s: float) -> Done:
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
    process: subprocess.Popen[bytes], request: bytes, end: float, timeout_s: float
) -> tuple[bytearray, bytearray]:
    output, errors = bytearray(), bytearray()
    waiting = memoryview(request)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(_pipe(stream), selectors.EVENT_READ)
        os.set_blocking(_pipe(process.stdin).fileno(), False)
        selector.register(_pipe(process.stdin), selectors.EVENT_WRITE)
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
        _pipe(stream).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:  # pragma: no cover - always a pipe here
        raise AssertionError
    return stream
