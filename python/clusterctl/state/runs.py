"""The folder of each run on the controller: its record, its events and the facts of its hosts.

The folder has mode 0700 and holds no secret: the caller reduces options with a secret value to their names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from clusterctl import __version__
from clusterctl.model.job_outcome import StallRecord
from clusterctl.model.run_record import RunRecord
from clusterctl.state import files, paths, processes
from clusterctl.support import held_files
from clusterctl.support.errors import ClusterctlError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.run_record import Event


KEPT_RUNS = 50
_RUNNING, _KILLED = b'"outcome": "running"', b'"outcome": "killed"'
_UNFINISHED = re.compile(rb'"outcome": "(?:failed|unreachable|interrupted)"')  # of the run, or of one of its hosts
_TIME = "%Y%m%dT%H%M%SZ"  # in the name of a run
_TAIL_BYTES = 1 << 20  # of the events; a line may hold the texts of a large cluster's files
KEPT_SETS = 10  # runs that left a set of links: a rollback can go back to them, however many validations follow


def versions() -> dict[str, str]:
    """Return the versions that a record carries."""
    return {
        "clusterctl": __version__,
        "ansible-core": metadata.version("ansible-core"),
        "ansible-runner": metadata.version("ansible-runner"),
        "python": platform.python_version(),
    }


def _private_stream(path: Path) -> IO[str]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")


class Run:
    """The folder of one run, open for writing."""

    def __init__(self, record: RunRecord, folder: Path, unfinished: Sequence[str] = ()) -> None:
        """Use :func:`start` instead; ``unfinished`` are the kept runs of the inventory that did not end well."""
        self.unfinished = tuple(unfinished)
        self.record = record
        self.folder = folder
        self._events: IO[str] = _private_stream(paths.events_file(folder))
        self._save()

    @property
    def log(self) -> Path:
        """The file for the output of Ansible."""
        return paths.ansible_log(self.folder)

    def event(self, event: Event) -> None:
        self._events.write(json.dumps(event_data(event), default=str) + "\n")
        self._events.flush()

    def facts(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        files.write_atomically(
            paths.facts_file(self.folder), json.dumps(facts, indent=1, sort_keys=True, default=str) + "\n"
        )

    def update(self, **fields: Any) -> RunRecord:
        """Change fields of the record and write it. A clock that was set back makes no run end before it started."""
        if fields.get("finished") is not None:
            fields["finished"] = max(fields["finished"], self.record.started)
        self.record = RunRecord.model_validate({**self.record.model_dump(), **fields})
        self._save()
        return self.record

    def close(self) -> None:
        self._events.close()

    def _save(self) -> None:
        files.write_atomically(paths.run_record(self.folder), self.record.model_dump_json(indent=1) + "\n")


def amend(record: RunRecord, **fields: Any) -> RunRecord:
    """Change fields of the record of a run that has ended, and write it."""
    record = record.model_copy(update=fields)
    files.write_atomically(paths.run_record(Path(record.folder)), record.model_dump_json(indent=1) + "\n")
    return record


def event_data(event: Event) -> dict[str, Any]:
    """Return an event as plain data, with its kind under ``event``."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def start(verb: str, inventory: AnyInventory, argv: Sequence[str], versions: dict[str, str]) -> Run:
    """Open the record of a new run, and remove the oldest runs.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    name = paths.cluster_id(inventory)
    runs = paths.private_folder(paths.runs_dir(name))
    now = datetime.now(timezone.utc)
    at = _in_order(now, runs)
    while (runs / (run_id := f"{at:{_TIME}}-{verb}-{os.getpid()}")).exists():  # this process has just done the same
        at += timedelta(seconds=1)
    folder = paths.private_folder(runs / run_id)
    record = RunRecord(
        verb=verb,
        run_id=run_id,
        argv=tuple(argv),
        inventory=str(inventory),
        cluster_id=name,
        versions=versions,
        user=user_name(),
        pid=os.getpid(),
        process=processes.this_process(),
        started=now,
        folder=str(folder),
    )
    run = Run(record, folder, _remove_old(runs))
    latest = runs / f".latest.{os.getpid()}"
    latest.unlink(missing_ok=True)
    latest.symlink_to(run_id, target_is_directory=True)
    latest.replace(runs / "latest")
    return run


@contextlib.contextmanager
def recorded(verb: str, inventory: AnyInventory, argv: Sequence[str]) -> Iterator[Run]:
    """Start a run, keep in its record which error ended it, and close it.

    Raises:
        ConfigError: the state folder cannot be written.
    """
    run = start(verb, inventory, argv, versions())
    try:
        yield run
    except BaseException as error:
        code, words = ExitCode.BAD_CONFIG, _told(verb, error)
        if isinstance(error, KeyboardInterrupt):
            code, words = ExitCode.INTERRUPTED, ""
        elif isinstance(error, ClusterctlError):
            code, words = error.exit_code, str(error)
        outcome = "interrupted" if code is ExitCode.INTERRUPTED else "failed"
        run.update(outcome=outcome, exit_code=int(code), message=words, finished=datetime.now(timezone.utc))
        raise
    finally:
        run.close()


def _told(verb: str, error: BaseException) -> str:
    """Return what a record says of an unexpected error; its text may hold a secret of a play's variables."""
    name = type(error).__name__
    if verb == "validate":  # has no variables of roles
        return str(error) or name
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return name


def _in_order(now: datetime, runs: Path) -> datetime:
    """Return the time of a run's name: later than that of the run before, also where the clock was set back.

    Names decide which run is the last one, where a rollback goes back to, and which runs are the oldest.
    """
    before = max((path.name for path in runs.iterdir() if not path.is_symlink()), default="")
    with contextlib.suppress(ValueError):
        last = datetime.strptime(before.partition("-")[0], _TIME).replace(tzinfo=timezone.utc)
        if last > now:
            return last + timedelta(seconds=1)
    return now


def settled(folder: Path) -> RunRecord:
    """Return the record of a run. A run whose process has ended without a word gets the outcome "killed", for good.

    A run of another machine that shares this state folder stays as it is: only that machine knows.

    Raises:
        OSError: the record cannot be read.
        ValueError: it is not a record.
    """
    place = paths.run_record(folder)
    record = RunRecord.model_validate_json(place.read_bytes())
    if record.outcome != "running" or not _has_ended(record):
        return record
    record = RunRecord.model_validate_json(place.read_bytes())  # it may have ended well since it was read
    if record.outcome != "running":
        return record
    seen = _last_seen(folder, record.started)
    words = f"The run was killed, or its machine went down; it was last seen at {seen:%Y-%m-%dT%H:%M:%SZ}."
    record = record.model_copy(update={"outcome": "killed", "finished": seen, "message": words})
    if folder.stat().st_uid == os.geteuid():  # another user's record keeps its owner
        with contextlib.suppress(OSError):
            files.write_atomically(place, record.model_dump_json(indent=1) + "\n")
    return record


def _has_ended(record: RunRecord) -> bool:
    here = processes.this_process()
    return record.process is not None and processes.has_ended(record.process, here, processes.started_ticks(record.pid))


def _last_seen(folder: Path, started: datetime) -> datetime:
    """Return when a run last wrote an event, or any file where it has no event. A kill may cut off the last line."""
    events = paths.events_file(folder)
    with contextlib.suppress(OSError):
        with events.open("rb") as stream:
            stream.seek(max(0, events.stat().st_size - _TAIL_BYTES))
            lines = stream.read().splitlines()
        for line in reversed(lines):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return datetime.fromtimestamp(float(json.loads(line)["at"]), timezone.utc)
        newest = max(path.stat().st_mtime for path in folder.iterdir())
        return datetime.fromtimestamp(newest, timezone.utc)
    return started


def _state_of(folder: Path) -> Literal["running", "killed", "unfinished", "ended"]:
    """Return whether the process of a run may still be at work, and whether the run ended well on all hosts.

    A run that was killed is marked on the way.
    """
    pid = int(number) if (number := folder.name.rpartition("-")[2]).isdecimal() else 0
    process_runs = pid > 0 and processes.runs(pid)
    try:
        text = paths.run_record(folder).read_bytes()
        if _RUNNING not in text:  # quick: most records are of runs that ended
            return "killed" if _KILLED in text else "unfinished" if _UNFINISHED.search(text) else "ended"
        record = settled(folder)
    except FileNotFoundError:  # the run was killed before it wrote anything, or begins just now
        return "running" if process_runs else "killed"
    except (OSError, ValueError):
        return "running" if process_runs else "ended"
    if record.outcome == "running" and (record.process is not None or process_runs):
        return "running"
    return "killed" if record.outcome == "killed" else "ended"


def _remove_old(runs: Path) -> list[str]:
    """Remove the oldest runs, and what killed runs left on this machine; returns the runs that did not end well."""
    folders = sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink())
    with_sets = [folder for folder in folders if paths.software_file(folder).is_file()][-KEPT_SETS:]
    for old in folders[:-KEPT_RUNS]:
        if old not in with_sets:
            shutil.rmtree(old, ignore_errors=True)
    killed, unfinished = False, []
    for folder in folders[-KEPT_RUNS:]:
        state = _state_of(folder)
        if state == "running":
            continue
        private = paths.ansible_dir(folder)
        if private.exists():  # the run was killed before it could clean up, and its workers may still be at work
            processes.end_all(partial(processes.carries, environment=os.fsencode(private)))
            shutil.rmtree(private, ignore_errors=True)
        if state != "ended":
            unfinished.append(folder.name)
        if state == "killed":
            killed = True
            files.remove_staged(folder)
    if killed:
        for left in runs.glob(".latest.*"):
            left.unlink(missing_ok=True)
        files.remove_staged(runs.parent)
        held_files.remove_folders_of_killed()
    return unfinished


def user_name() -> str:
    """Return the name of the user of this process, or the uid of a user without a name."""
    import getpass  # noqa: PLC0415 - its modules cost the start of every command

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def read_runs(inventory: AnyInventory) -> Iterator[RunRecord]:
    """Yield the kept runs of an inventory, newest first, without unreadable ones."""
    runs = paths.runs_dir(paths.cluster_id(inventory))
    if not runs.is_dir():
        return
    for folder in sorted((path for path in runs.iterdir() if not path.is_symlink()), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            yield settled(folder)


# --- Records of jobs that stood still or that a death ended, kept in the state folder ---------------------------------

KEEP = 40


def keep_stall(cluster: str, record: StallRecord) -> Path:
    """Write a record, forget the oldest beyond :data:`KEEP`, and return its path.

    Raises:
        ConfigError: the state folder cannot be written.
        OSError: the disk is full.
    """
    folder = paths.stalls_dir(cluster)
    path = folder / f"{record.at:%Y%m%dT%H%M%SZ}-{record.job}.json"
    files.keep(path, record.model_dump_json(indent=2) + "\n")
    for old in sorted(folder.glob("*.json"))[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def newest_stalls(cluster: str, count: int) -> Iterator[tuple[Path, StallRecord]]:
    """Yield the newest records with their paths, the oldest of them first; a damaged file is passed over."""
    for path in sorted(paths.stalls_dir(cluster).glob("*.json"))[-count:]:
        try:
            yield path, StallRecord.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
