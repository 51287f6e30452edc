"""Files of the nightly jobs: the job, the records of its nights, the last notification, and the lock.

They lie below the state folder with mode 0700, each file with 0600.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from clusterctl.model.base import Record
from clusterctl.nightly.records import Job, Night, Told
from clusterctl.state import files, locks, paths
from clusterctl.support import held_path
from clusterctl.support.errors import ConfigError, LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from clusterctl.model.hosts import AnyInventory

_R = TypeVar("_R", bound=Record)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_STEM = 40
_PATIENCE_S = 0.5  # is_running holds the lock for a moment


def job_name(inventory: AnyInventory) -> str:
    """Return the name of an inventory's job: safe in files, units and crontabs, and unique to this state folder."""
    stem = _UNSAFE.sub("-", paths.stem(inventory)).strip("-")[:_LONGEST_STEM] or "inventory"
    whole = os.fsencode("\n".join(paths.resolved(inventory).words)) + b"\0" + os.fsencode(paths.state_dir().value)
    return f"{stem}-{hashlib.sha256(whole).hexdigest()[:8]}"


def folder_of(job: str) -> Path:
    return paths.nightly_job_dir(job)


def job_file(job: str) -> Path:
    """Return the path of a job's file."""
    return paths.nightly_job(folder_of(job))


def write_job(job: Job) -> None:
    """Write a job's file."""
    files.keep(job_file(job.job), job.model_dump_json(indent=1) + "\n")


def forget_job(job: str) -> None:
    """Remove the job's file; the records of its nights stay until the next job of that name removes them."""
    job_file(job).unlink(missing_ok=True)


def read_job(path: Path) -> Job:
    """Read a job's file.

    Raises:
        ConfigError: it is missing or damaged, or a newer clusterctl wrote it.
    """
    try:
        return _read(path, Job)
    except FileNotFoundError:
        raise ConfigError(
            f"The job {path} does not exist; 'clusterctl nightly enable INVENTORY --at 02:00' makes one."
        ) from None


def jobs(*, only_readable: bool = False) -> list[Job]:
    """Return all jobs, by name.

    Raises:
        ConfigError: as for :func:`read_job`, unless only the readable ones are wanted.
    """
    found = []
    for path in filter(Path.is_file, sorted(map(paths.nightly_job, paths.nightly_dir().glob("*")))):
        with contextlib.suppress(*((ConfigError,) if only_readable else ())):
            found.append(read_job(path))
    return found


def new_night(job: str, started: datetime) -> tuple[str, Path]:
    """Make the folder of a night; its name sorts by time."""
    name = f"{started:%Y%m%dT%H%M%SZ}-{os.getpid()}"
    return name, paths.private_folder(paths.nights_dir(folder_of(job)) / name)


def write_night(night: Night) -> Path:
    path = paths.night_record(Path(night.folder))
    files.write_atomically(path, night.model_dump_json(indent=1) + "\n")
    return path


def nights(job: str) -> list[Night]:
    """Return the kept nights, newest first, without damaged records."""
    found = []
    for path in sorted(map(paths.night_record, paths.nights_dir(folder_of(job)).glob("*")), reverse=True):
        with contextlib.suppress(ConfigError, FileNotFoundError):
            found.append(_read(path, Night))
    return found


def remove_night(night: Night) -> None:
    """Remove a night and the reports that it wrote elsewhere; other files of their folder stay."""
    for path in map(Path, night.reports.values()):
        if path.parent.name == night.night:
            with contextlib.suppress(OSError, ConfigError):  # others keep what they put there in its place
                with held_path.folder(path.parent) as held:
                    (held / path.name).unlink(missing_ok=True)
                with held_path.to_file(path.parent) as emptied:  # other files keep the folder
                    emptied.rmdir()
    shutil.rmtree(night.folder, ignore_errors=True)


def told(job: str) -> Told | None:
    """Return the last notification; None before the first."""
    try:
        return _read(paths.nightly_notification(folder_of(job)), Told)
    except (ConfigError, FileNotFoundError):  # at worst, the hook is called twice
        return None


def write_told(job: str, told_now: Told) -> None:
    """Keep the last notification."""
    files.write_atomically(paths.nightly_notification(folder_of(job)), told_now.model_dump_json() + "\n")


@contextlib.contextmanager
def lock(job: str) -> Iterator[None]:
    """Let one night of a job run at a time; the kernel releases the lock when the process ends."""
    paths.private_folder(folder_of(job))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(
                locks.held(paths.nightly_lock(folder_of(job)), "clusterctl nightly run", patience_s=_PATIENCE_S)
            )
        except locks.HeldError as holder:
            raise LockedError(f"A night of {job} is still running: {holder}; wait for it to end.") from None
        yield


def is_running(job: str) -> bool:
    return locks.is_held(paths.nightly_lock(folder_of(job)))


def _read(path: Path, kind: type[_R]) -> _R:
    try:
        data = json.loads(path.read_bytes())
        version = data.get("schema_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > 1:
            raise ConfigError(
                f"{path} has schema {version}, which this clusterctl does not know; use the newer one that wrote it."
            )
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{path} is damaged ({where}: {problem['msg']}); enable it again.") from None
    except ValueError:
        raise ConfigError(f"{path} is damaged (invalid JSON); enable it again.") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
