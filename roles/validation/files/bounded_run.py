"""Run a program to its end or to a deadline, and choose the folder for temporary files.

No more of the output is kept than an answer needs.

The programs import this module by its bare name, because it lies in their folder. It needs Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Sequence

# The folder for temporary files, chosen as Python's ``tempfile`` chooses it but without its trial file.
#
# ``tempfile.gettempdir`` writes a file into the folder to see that it can. A program that is killed at that moment
# leaves the file behind.

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
SCRATCH_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108 - the folders of the machine; files in them get names of their own


def scratch_folder() -> str:
    """Return the first folder that this user can write to, /tmp if there is none."""
    named = (str(Path(folder).absolute()) for name in _VARIABLES if (folder := os.environ.get(name)))
    return next(
        (folder for folder in (*named, *SCRATCH_FOLDERS) if os.access(folder, os.W_OK | os.X_OK)), SCRATCH_FOLDERS[0]
    )


MOST_OUTPUT = 16 << 20  # bytes
MOST_ERRORS = 1 << 16  # the last ones; a program says at its end why it failed
BLOCK = 1 << 16
END_S = 2.0


class Done(NamedTuple):
    """How a program ended."""

    status: int
    output: str
    errors: str


def run(argv: Sequence[str], limit_s: float) -> Done:
    """Run a program with an empty standard input.

    Raises:
        OSError: it does not start.
        ValueError: it does not end within so many seconds, or prints more than 16 MiB; the text says so as a clause.
    """
    end = time.monotonic() + limit_s
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        output, errors = _read(process, end)
        if len(output) > MOST_OUTPUT:
            raise ValueError(f"printed more than {MOST_OUTPUT >> 20} MiB")
        status = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ValueError(f"did not answer within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a file system that hangs may hold it
                process.wait(END_S)
    return Done(status, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _read(process: subprocess.Popen[bytes], end: float) -> tuple[bytearray, bytearray]:
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as streams:
        for stream, found in ((process.stdout, output), (process.stderr, errors)):
            if stream is not None:
                selector.register(streams.enter_context(stream), selectors.EVENT_READ, found)
        while selector.get_map() and len(output) <= MOST_OUTPUT:
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _unused in selector.select(left):
                block = os.read(key.fd, BLOCK)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
            del errors[:-MOST_ERRORS]
    return output, errors


if __name__ == "__main__":
    sys.exit("This is a module; start one of the programs beside it.")
