# SPDX-License-Identifier: Apache-2.0
"""Run a command that proves an artifact, with a deadline after which all its processes are killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Dict, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import build_user, command

_MOST_OUTPUT = 16 << 20  # bytes
_BLOCK = 1 << 16


def run_check(
    argv: List[str], environment: Dict[str, str], timeout_s: int, given: str = "", user: Optional[int] = None
) -> "tuple[int, str]":
    """Return a command's exit code and output; after the timeout it and its children are killed, with code 124.

    A child that left the session may keep the output open. It is not waited for beyond the timeout.
    """
    with tempfile.TemporaryFile() as text:
        text.write(given.encode())
        text.seek(0)
        process = subprocess.Popen(
            argv,
            env=environment,
            preexec_fn=build_user.becoming(user, "/"),  # noqa: PLW1509 - the module has one thread
            stdin=text if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        until = time.monotonic() + timeout_s
        output, has_ended = output_of(process, until)
        with suppress(subprocess.TimeoutExpired):
            if has_ended:
                process.wait(max(0.0, until - time.monotonic()))
                return process.returncode, output.decode(errors="replace")
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        command.end(process)
        return command.TIMED_OUT, output.decode(errors="replace")


def output_of(process: "subprocess.Popen[bytes]", until: float) -> "tuple[bytes, bool]":
    """Read the output of a program, and close it.

    Args:
        process: with a pipe as standard output.
        until: the latest end, of time.monotonic().

    Returns:
        The output, of at most 16 MiB, and whether it has ended by then.
    """
    found = bytearray()
    if process.stdout is None:
        return b"", True
    with process.stdout as stream:
        while len(found) < _MOST_OUTPUT and time.monotonic() < until:
            if select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                block = os.read(stream.fileno(), _BLOCK)
                if not block:
                    return bytes(found), True
                found += block
    return bytes(found), False
