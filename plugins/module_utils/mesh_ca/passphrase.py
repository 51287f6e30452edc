# SPDX-License-Identifier: Apache-2.0
"""Keep a passphrase in memory, and hand it to ssh-keygen and ssh-add by SSH_ASKPASS.

It never stands in an argument, in a variable of the environment or in a file on a disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterator, Sequence

_LEAST = 8
_LONGEST = 1024
_PROGRAM_S = 60


class PassphraseError(Exception):
    """A passphrase cannot be had or serves nothing; the message is one sentence."""


def read(path: str) -> str:
    """Return the first line of a file; a file of the disk must be its owner's alone.

    Raises:
        PassphraseError: the file cannot be read, is empty, or is readable by others.
    """
    try:
        with Path(path).expanduser().open("rb") as stream:
            state = os.fstat(stream.fileno())
            if stat.S_ISREG(state.st_mode) and state.st_mode & 0o077:
                raise PassphraseError(f"The passphrase file {path} is open to others; run 'chmod 600 {path}'.")
            line = stream.readline(_LONGEST + 2).rstrip(b"\r\n")
    except OSError as error:
        raise PassphraseError(f"The passphrase file {path} cannot be read: {error.strerror}.") from None
    if not line or len(line) > _LONGEST:
        raise PassphraseError(f"The first line of the passphrase file {path} must hold the passphrase.")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise PassphraseError(f"The passphrase file {path} is not text in UTF-8.") from None


def check_new(passphrase: str) -> None:
    """Refuse a passphrase that is too short for a new authority.

    Raises:
        PassphraseError: it has less than eight characters.
    """
    if len(passphrase) < _LEAST:
        raise PassphraseError(f"The passphrase of a new authority needs at least {_LEAST} characters.")


@contextlib.contextmanager
def in_memory(passphrase: str) -> Iterator[str]:
    """Return a path from which this user's processes can read the passphrase while the block runs."""
    if not hasattr(os, "memfd_create"):  # macOS; a private file that goes with the block
        with tempfile.NamedTemporaryFile(prefix="clusterctl-") as file:
            file.write(passphrase.encode() + b"\n")
            file.flush()
            yield file.name
        return
    handle = os.memfd_create("clusterctl", os.MFD_CLOEXEC)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, passphrase.encode() + b"\n")
        yield f"/proc/{os.getpid()}/fd/{handle}"
    finally:
        os.close(handle)


class Asked:
    """Runs programs that ask for a passphrase."""

    def __init__(self, folder: Path, path: str) -> None:
        """Take the folder of the small program that answers, and the path of :func:`in_memory`."""
        self._program = folder / "answer"
        self._program.write_text('#!/bin/sh\nexec cat "$CLUSTERCTL_ANSWER"\n')
        self._program.chmod(0o700)
        self._path = path

    def run(self, argv: Sequence[str], **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end; ``more`` are further variables of its environment.

        Raises:
            PassphraseError: the program is missing or takes too long.
        """
        return run(
            argv,
            {
                "SSH_ASKPASS": str(self._program),
                "SSH_ASKPASS_REQUIRE": "force",  # since OpenSSH 8.4; before, DISPLAY and no terminal are enough
                "DISPLAY": os.environ.get("DISPLAY") or ":0",
                "CLUSTERCTL_ANSWER": self._path,
                **more,
            },
        )


def run(argv: Sequence[str], more: Dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a program of OpenSSH without a terminal.

    Raises:
        PassphraseError: the program is missing or takes too long.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **more}
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
            start_new_session=True,
            timeout=_PROGRAM_S,
        )
    except FileNotFoundError:
        raise PassphraseError(f"{argv[0]} is missing on the controller; install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        raise PassphraseError(f"{argv[0]} did not end within {_PROGRAM_S} s.") from None


@contextlib.contextmanager
def asked(folder: Path, passphrase: str) -> Iterator[Asked]:
    """Return what runs programs that ask for this passphrase; ``folder`` must allow programs to run."""
    with tempfile.TemporaryDirectory(prefix=".ask-", dir=folder) as scratch, in_memory(passphrase) as path:
        yield Asked(Path(scratch), path)
