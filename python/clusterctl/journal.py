"""What a run leaves on the controller: its record, its events, the cluster's seal, and the lock while it lasts.

Everything lies below the state folder with mode 0700; nothing written here holds a secret: option values that may be
one are reduced to their names before they come here, inventories to a digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import resource
import shutil
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from clusterctl import __version__, settings
from clusterctl.errors import ConfigError, LockedError
from clusterctl.record import Record
from clusterctl.seal import Seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from clusterctl.events import Event
    from clusterctl.inventory import Host

KEPT_RUNS = 50
PRIVATE = "ansible"  # the part of a run's folder that is gone when the run ends: it holds the environment
_OTHER_FILES = 512  # the pipes of 64 ssh at a time, and what Python and Ansible have open
HostOutcome: TypeAlias = Literal["ok", "changed", "failed", "unreachable", "not run"]
RunOutcome: TypeAlias = Literal[
    "running", "done", "nothing to do", "failed", "unreachable", "interrupted", "bad configuration"
]


class HostSummary(Record):
    """What a run did to one host."""

    host: str
    outcome: HostOutcome
    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    seconds: float = 0.0
    changes: tuple[str, ...] = ()
    failed_stage: str = ""
    failed_task: str = ""
    message: str = ""


class Problem(Record):
    """One finding that stopped a run before anything was changed."""

    host: str
    subject: str
    problem: str
    cure: str = ""
    kind: Literal["configuration", "host", "unreachable"] = "host"


class RunRecord(Record):
    """The whole of a run; its schema version changes whenever a reader of an older one would be misled."""

    schema_version: Literal[1] = 1
    verb: str
    run_id: str
    argv: tuple[str, ...]
    inventory: str
    cluster_id: str
    versions: dict[str, str]
    user: str
    pid: int
    started: datetime
    finished: datetime | None = None
    outcome: RunOutcome = "running"
    exit_code: int | None = None
    message: str = ""
    reasons: dict[str, str] = Field(default_factory=dict)  # host → why it was provisioned
    drifted: dict[str, str] = Field(default_factory=dict)  # host → what was not as its last run had left it
    problems: tuple[Problem, ...] = ()
    hosts: tuple[HostSummary, ...] = ()
    told: tuple[str, ...] = ()  # what roles decided for the whole cluster, a sentence each
    folder: str = ""


def versions() -> dict[str, str]:
    """Return the versions that a record carries."""
    return {
        "clusterctl": __version__,
        "ansible-core": metadata.version("ansible-core"),
        "ansible-runner": metadata.version("ansible-runner"),
        "python": platform.python_version(),
    }


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by a file (mode 0600) that is either the old or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _private_stream(path: Path) -> IO[str]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")


def cluster_id(inventory: Path) -> str:
    """Return a readable and unique folder name for the cluster of an inventory."""
    resolved = inventory.resolve()
    return f"{resolved.stem}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"


def private_folder(path: Path) -> Path:
    """Make a folder of the state.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        return settings.ensure_private(path)
    except OSError as error:
        state = settings.state_dir()
        raise ConfigError(
            f"The folder {path} cannot be written ({error.strerror}); the state folder comes from {state.source}, "
            "set XDG_STATE_HOME to a writable place."
        ) from None


class Run:
    """The folder of one run, open for writing."""

    def __init__(self, record: RunRecord, folder: Path) -> None:
        """Use :func:`start` instead."""
        self.record = record
        self.folder = folder
        self._events: IO[str] = _private_stream(folder / "events.jsonl")
        self._save()

    @property
    def log(self) -> Path:
        """Where Ansible's own output goes."""
        return self.folder / "ansible.log"

    def event(self, event: Event) -> None:
        """Append one event."""
        self._events.write(json.dumps(event_data(event), default=str) + "\n")
        self._events.flush()

    def facts(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what the nodes said of themselves."""
        write_atomically(self.folder / "facts.json", json.dumps(facts, indent=1, sort_keys=True, default=str) + "\n")

    def update(self, **fields: Any) -> RunRecord:
        """Change fields of the record and write it."""
        self.record = RunRecord.model_validate({**self.record.model_dump(), **fields})
        self._save()
        return self.record

    def close(self) -> None:
        """Close the files."""
        self._events.close()

    def _save(self) -> None:
        write_atomically(self.folder / "run.json", self.record.model_dump_json(indent=1) + "\n")


def event_data(event: Event) -> dict[str, Any]:
    """Return an event as plain data, with its kind under ``event``."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def start(verb: str, inventory: Path, argv: Sequence[str], versions: dict[str, str]) -> Run:
    """Open the record of a new run and forget the oldest ones.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    name = cluster_id(inventory)
    runs = private_folder(settings.state_dir().value / "clusters" / name / "runs")
    now = datetime.now(timezone.utc)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{verb}-{os.getpid()}"
    folder = private_folder(runs / run_id)
    record = RunRecord(
        verb=verb,
        run_id=run_id,
        argv=tuple(argv),
        inventory=str(inventory),
        cluster_id=name,
        versions=versions,
        user=_user(),
        pid=os.getpid(),
        started=now,
        folder=str(folder),
    )
    run = Run(record, folder)
    latest = runs / f".latest.{os.getpid()}"
    latest.unlink(missing_ok=True)
    latest.symlink_to(run_id, target_is_directory=True)
    latest.replace(runs / "latest")
    _forget(runs)
    return run


def _forget(runs: Path) -> None:
    folders = sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink())
    for old in folders[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    for folder in folders[-KEPT_RUNS:]:
        if not Path("/proc", folder.name.rpartition("-")[2]).exists():  # killed before it could tidy up
            shutil.rmtree(folder / PRIVATE, ignore_errors=True)


def read_seal(cluster: str) -> Seal:
    """Return the cluster's seal; one that cannot be read counts as none, since a run then simply checks everything."""
    path = settings.state_dir().value / "clusters" / cluster / "seal.json"
    try:
        return Seal.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return Seal()


def write_seal(cluster: str, seal: Seal) -> None:
    """Replace the cluster's seal."""
    folder = private_folder(settings.state_dir().value / "clusters" / cluster)
    write_atomically(folder / "seal.json", seal.model_dump_json() + "\n")


def break_seal(cluster: str, hosts: Sequence[str]) -> None:
    """Forget the seals of hosts that are about to be changed: a run that dies leaves them unsealed."""
    known = read_seal(cluster)
    if any(name in known.hosts for name in hosts):
        kept = {name: seal for name, seal in known.hosts.items() if name not in hosts}
        write_seal(cluster, Seal(members=known.members, hosts=kept))


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


class Lock:
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
        folder = private_folder(settings.state_dir().value / "locks")
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
                "user": _user(),
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


def _user() -> str:
    import getpass  # noqa: PLC0415 - its modules cost the start of every command

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def read_runs(inventory: Path) -> Iterator[RunRecord]:
    """Yield the kept runs of an inventory, newest first; unreadable ones are left out."""
    runs = settings.state_dir().value / "clusters" / cluster_id(inventory) / "runs"
    if not runs.is_dir():
        return
    for folder in sorted((path for path in runs.iterdir() if not path.is_symlink()), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            yield RunRecord.model_validate_json((folder / "run.json").read_bytes())
