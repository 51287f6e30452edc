"""Locks on machines: one run at a time may change a host, and a second run learns who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING

from clusterctl.state import paths
from clusterctl.state.runs import user_name
from clusterctl.support.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from clusterctl.model.hosts import Host


_OTHER_FILES = 512  # the pipes of 64 ssh at a time, and what Python and Ansible have open


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as far as its file says."""

    pid: int
    user: str
    command: str
    since: str

    def __str__(self) -> str:
        """Return the words for the second comer."""
        return f"{self.user}'s '{self.command}' (process {self.pid}, since {self.since})"


class HostLock:
    """One flock per machine, so that no two runs change the same one; the kernel lets go when the process ends."""

    def __init__(self, hosts: Sequence[Host], command: str) -> None:
        """Prepare a lock on the machines of these hosts; ``command`` is told to whoever comes second."""
        self._hosts = hosts
        self._command = command
        self._streams: list[IO[str]] = []

    def __enter__(self) -> None:
        """Take all or none.

        Raises:
            LockedError: another run has one of them.
            ConfigError: the state folder cannot be written.
        """
        folder = paths.private_folder(paths.state_dir().value / "locks")
        places = {host.place: host.name for host in self._hosts}
        _allow_open_files(len(places) + _OTHER_FILES)
        try:
            for place in sorted(places):  # one order for all, so that two runs never wait for each other crosswise
                self._take(folder / f"{place.replace('/', '_').replace(':', '_')}.lock", places[place])
        except BaseException:
            self._release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go."""
        self._release()

    def _take(self, path: Path, host: str) -> None:
        stream = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            text = stream.read()
            stream.close()
            try:
                holder = str(Holder(**json.loads(text)))
            except (TypeError, ValueError):
                holder = "another run that is just starting"
            raise LockedError(f"{host} is held by {holder}; wait for it to end, or stop it first.") from None
        self._streams.append(stream)
        stream.truncate(0)
        json.dump(
            {
                "pid": os.getpid(),
                "user": user_name(),
                "command": self._command,
                "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            },
            stream,
        )
        stream.flush()

    def _release(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.truncate(0)
            stream.close()
        self._streams.clear()


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files, as far as the hard one lets us: a lock is an open file per machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
