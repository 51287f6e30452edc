"""Locks between processes: one holder at a time, and a second process learns who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING

from clusterctl.state import paths
from clusterctl.state.runs import user_name
from clusterctl.support import memory_room
from clusterctl.support.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from clusterctl.model.hosts import Host


_ASK_AGAIN_S = 0.05


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as its lock file says."""

    pid: int
    user: str
    command: str
    since: str

    def __str__(self) -> str:
        """Return the holder as a message names it."""
        return f"{self.user}'s '{self.command}' (process {self.pid}, since {self.since})"


class HeldError(LockedError):
    """Another process holds the lock; the text of the error names that process."""


@contextlib.contextmanager
def held(
    path: Path,
    command: str = "",
    *,
    shared: bool = False,
    patience_s: float = 0.0,
    waiting: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold the lock of a file while the block runs; the kernel releases it when the process ends.

    Args:
        path: the lock file; it is made where it is missing, and stays.
        command: what a second process is told about this one.
        shared: let other shared holders in. The file names exclusive holders only.
        patience_s: how long to wait for the lock; ``math.inf`` waits without a limit.
        waiting: called once with the holder's name, where the lock has to be waited for.

    Raises:
        HeldError: another process holds it, and the patience is at its end.
        OSError: the lock file cannot be made.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as stream:
        _take(stream, shared=shared, patience_s=patience_s, waiting=waiting)
        if shared:
            yield
            return
        holder = Holder(os.getpid(), user_name(), command, datetime.now().astimezone().isoformat(timespec="seconds"))
        stream.truncate(0)
        stream.seek(0)
        json.dump(asdict(holder), stream)
        stream.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                stream.truncate(0)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock exclusively; a missing lock file is not held."""
    if not path.exists():
        return False
    try:
        with held(path, shared=True):
            return False
    except HeldError:
        return True
    except OSError:
        return False


def _take(stream: IO[str], *, shared: bool, patience_s: float, waiting: Callable[[str], None] | None) -> None:
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(stream, how | fcntl.LOCK_NB)
            return
        if time.monotonic() >= until:
            raise HeldError(_holder(stream))
        if waiting is not None:
            waiting(_holder(stream))
            waiting = None
        if math.isinf(patience_s):
            fcntl.flock(stream, how)
            return
        time.sleep(_ASK_AGAIN_S)


def _holder(stream: IO[str]) -> str:
    stream.seek(0)
    try:
        return str(Holder(**json.loads(stream.read())))
    except (TypeError, ValueError):
        return "another run that is just starting"


class HostLock:
    """One lock per machine, so that two runs never change the same machine at the same time."""

    def __init__(self, hosts: Sequence[Host], command: str) -> None:
        """Prepare a lock on the machines of these hosts; a second run is told ``command``."""
        self._hosts = hosts
        self._command = command
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> None:
        """Take all locks or none.

        Raises:
            LockedError: another run has one of them.
            ConfigError: the state folder cannot be written, or this process may not open so many files.
        """
        folder = paths.private_folder(paths.locks_dir())
        places = {host.place: host.name for host in self._hosts}
        memory_room.allow_open_files(len(places))  # a lock is an open file per machine
        with contextlib.ExitStack() as taken:
            for place in sorted(places):  # one order for all, so that two runs never wait for each other crosswise
                path = folder / f"{place.replace('/', '_').replace(':', '_')}.lock"
                try:
                    taken.enter_context(held(path, self._command))
                except HeldError as holder:
                    raise LockedError(
                        f"{places[place]} is held by {holder}; wait for it to end, or stop it first."
                    ) from None
            self._locks = taken.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks.close()
