# SPDX-License-Identifier: Apache-2.0
"""Run a program of the node and return its exit status and output as text."""

from __future__ import annotations

import os
import pwd
import selectors
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The exit statuses that a shell and timeout(1) give in these cases.
NOT_STARTED = 127
TIMED_OUT = 124
MOST_OUTPUT = 16 << 20  # bytes
_MOST_ERRORS = 1 << 16  # the last ones; a program says at its end why it failed
_BLOCK = 1 << 16
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


def account(user: str) -> Dict[str, Any]:
    """Return what makes a child of root this user; nothing where this process is that user.

    Raises:
        KeyError: there is no such user.
    """
    entry = pwd.getpwnam(user)
    if os.geteuid() == entry.pw_uid:
        return {}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}


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
    whole: bool = False,
    become: Optional[Mapping[str, Any]] = None,
    before: Optional[Callable[[], None]] = None,
    given: str = "",
    merged: bool = False,
) -> Done:
    """Run a program from the root folder.

    Args:
        argv: the program and its arguments.
        timeout_s: after this the program is killed.
        environment: its variables; None gives it this process's own.
        powerless: take root's rights from the program, because it loads what another user may have written.
        whole: end what the program has started, too, when its time is up.
        become: the identity of the program, of :func:`account`.
        before: what the child does before it becomes the program.
        given: its standard input.
        merged: have the errors among the output.

    Returns:
        How it ended; NOT_STARTED and TIMED_OUT come with a sentence in ``errors``. So does the end of a program that
        prints more than 16 MiB. Of the errors, the last 64 KiB are kept.

    Raises:
        OSError: there is no place for the file of its input.
    """
    with ExitStack() as files:
        text = files.enter_context(tempfile.TemporaryFile()) if given else None
        if text:
            text.write(given.encode())
            text.seek(0)
        try:
            process = subprocess.Popen(
                list(argv),
                env=None if environment is None else dict(environment),
                cwd="/",
                stdin=text or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                start_new_session=whole,
                preexec_fn=before,  # noqa: PLW1509 - only modules with one thread name one
                **(_nobody() if powerless else become or {}),
            )
        except FileNotFoundError:
            return Done(NOT_STARTED, "", f"{argv[0]} is not on this node.")
        except OSError as error:
            return Done(NOT_STARTED, "", f"{argv[0]} could not be started: {error.strerror}.")
    until = time.monotonic() + timeout_s
    output, errors = bytearray(), bytearray()
    try:
        _read(process, until, output, errors)
        if len(output) > MOST_OUTPUT:
            return Done(-signal.SIGKILL, "", f"{argv[0]} printed more than {MOST_OUTPUT >> 20} MiB.")
        return Done(process.wait(max(0.0, until - time.monotonic())), _text(output), _text(errors))
    except subprocess.TimeoutExpired:
        return Done(TIMED_OUT, _text(output), f"{argv[0]} did not end within {timeout_s:g} s.")
    finally:
        if process.returncode is None:
            if whole:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            end(process)


def _read(process: "subprocess.Popen[bytes]", until: float, output: bytearray, errors: bytearray) -> None:
    """Read output and errors to their end, or until the output is too much, and close them.

    Raises:
        subprocess.TimeoutExpired: the time is up.
    """
    with selectors.DefaultSelector() as selector, ExitStack() as streams:
        for stream, found in ((process.stdout, output), (process.stderr, errors)):
            if stream is not None:
                selector.register(streams.enter_context(stream), selectors.EVENT_READ, found)
        while selector.get_map() and len(output) <= MOST_OUTPUT:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _unused in selector.select(left):
                block = os.read(key.fd, _BLOCK)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
            del errors[:-_MOST_ERRORS]


def _text(data: bytearray) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
