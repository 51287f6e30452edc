# SPDX-License-Identifier: Apache-2.0
"""Run a program of the node and return its exit status and output as text."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The exit statuses that a shell and timeout(1) give in these cases.
NOT_STARTED = 127
TIMED_OUT = 124
_END_S = 5.0
_POLL_S = 0.01
_OVERFLOW = 65534  # the kernel's own number for a user without rights


class Done(NamedTuple):
    """How a program ended."""

    status: int  # negative: the number of the signal that killed it
    output: str
    errors: str

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.status == 0

    @property
    def said(self) -> str:
        """What it said about a failure."""
        return self.errors.strip() or self.output.strip()


def has_left(child: int) -> bool:
    """Whether a child that was killed ends within some seconds, and is taken.

    One that reads a file system whose server does not answer never ends. It is left to init.
    """
    until = time.monotonic() + _END_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a program, and wait some seconds for its end; see :func:`has_left`."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _nobody() -> Dict[str, Any]:
    """Return what makes a child of root the user nobody; nothing for any other user's child."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return {"user": _OVERFLOW, "group": _OVERFLOW, "extra_groups": []}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Optional[Mapping[str, str]] = None,
    *,
    powerless: bool = False,
) -> Done:
    """Run a program from the root folder with an empty standard input.

    Args:
        argv: the program and its arguments.
        timeout_s: after this the program is killed.
        environment: its variables; None gives it this process's own.
        powerless: take root's rights from the program, because it loads what another user may have written.

    Returns:
        How it ended; NOT_STARTED and TIMED_OUT come with a sentence in ``errors``.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=None if environment is None else dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            **(_nobody() if powerless else {}),
        )
    except subprocess.TimeoutExpired:
        return Done(TIMED_OUT, "", f"{argv[0]} did not end within {timeout_s:g} s.")
    except FileNotFoundError:
        return Done(NOT_STARTED, "", f"{argv[0]} is not on this node.")
    except OSError as error:
        return Done(NOT_STARTED, "", f"{argv[0]} could not be started: {error.strerror}.")
    return Done(done.returncode, done.stdout, done.stderr)
