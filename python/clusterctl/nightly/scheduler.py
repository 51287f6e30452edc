"""Write, remove and check the schedule of a job, with systemctl or crontab."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from clusterctl.nightly import schedule
from clusterctl.nightly.records import SchedulePlace
from clusterctl.state import files, processes
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import time, tzinfo

    from clusterctl.nightly.records import Scope

_SYSTEM_UNITS = Path("/etc/systemd/system")
_LOCALTIME = Path("/etc/localtime")
_ANSWER_S = 30.0


@dataclass(frozen=True)
class _Done:
    rc: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The last line of its error output."""
        return next((line for line in reversed((self.err or self.out).splitlines()) if line.strip()), f"rc {self.rc}")


def zone() -> tzinfo:
    """Return the time zone of the machine, which timers and cron use; ``TZ`` of this shell does not count."""
    try:
        name = str(_LOCALTIME.resolve()).partition("/zoneinfo/")[2]
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError):
            if name:
                return ZoneInfo(name)
        with _LOCALTIME.open("rb") as stream:
            return ZoneInfo.from_file(stream, key="localtime")
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def no_systemd(scope: Scope) -> str:
    """Return why systemd cannot be used; empty where it can."""
    if shutil.which("systemctl") is None:
        return "systemctl is not installed"
    done = _systemctl(scope, "show", "--property=Version")
    if done.rc == 0 and done.out.strip() != "Version=":
        return ""
    return "the user manager of systemd is not running" if scope == "user" else "the machine was not started by systemd"


def with_systemd(job: str, argv: Sequence[str], at: time, scope: Scope) -> SchedulePlace:
    """Write the units, and start the timer.

    Raises:
        ConfigError: they cannot be written or systemd refuses them; then none of them is left.
    """
    name = schedule.unit_name(job)
    folder = _unit_folder(scope)
    texts = {
        folder / f"{name}.service": schedule.service(job, argv, scope),
        folder / f"{name}.timer": schedule.timer(job, at),
    }
    place = SchedulePlace(method="systemd", scope=scope, name=f"{name}.timer", files=tuple(map(str, texts)))
    before = {path: _text(path) for path in texts if path.exists()}
    for path, text in before.items():
        if not schedule.is_ours(text, job):
            raise ConfigError(f"{path} exists, and clusterctl did not write it; move it away first.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _put(texts, place)
    except (ConfigError, OSError) as error:
        if len(before) == len(texts):
            with contextlib.suppress(ConfigError, OSError):
                _put(before, place)
        else:
            remove(place, job)
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; {_other(scope)}.") from None
    return place


def _put(texts: Mapping[Path, str], place: SchedulePlace) -> None:
    """Write units, and start the timer."""
    for path, text in texts.items():
        files.write_atomically(path, text, mode=0o644, errors="surrogateescape")
    for words in (("daemon-reload",), ("enable", place.name), ("restart", place.name)):
        done = _systemctl(place.scope, *words)
        if done.rc != 0:
            raise ConfigError(f"systemd refuses the timer: {done.words}")


def with_cron(job: str, argv: Sequence[str], at: time) -> SchedulePlace:
    """Write the line into the crontab of this user.

    Raises:
        ConfigError: the crontab program is missing, or it refuses.
    """
    entry = schedule.cron_line(argv, at)
    before = _crontab()
    _write_crontab(schedule.with_block(before, job, entry))
    return SchedulePlace(method="cron", scope="user", name=f"crontab of {getpass.getuser()}")


def remove(place: SchedulePlace, job: str) -> None:
    """Remove what :func:`with_systemd` or :func:`with_cron` wrote, and nothing else.

    Raises:
        ConfigError: a file or line cannot be removed.
    """
    if place.method == "cron":
        before = _crontab()
        after = schedule.without_block(before, job)
        if after != before:
            _write_crontab(after)
        return
    if shutil.which("systemctl") is not None:
        _systemctl(place.scope, "disable", "--now", place.name)
        _systemctl(
            place.scope, "clean", "--what=state", place.name
        )  # or a later enabling would run at once, to catch up
    for path in map(Path, place.files):
        with contextlib.suppress(FileNotFoundError):
            if schedule.is_ours(_text(path), job):
                try:
                    path.unlink()
                except OSError as error:
                    raise ConfigError(f"{path} cannot be removed: {error.strerror}; {_other(place.scope)}.") from None
    if shutil.which("systemctl") is not None:
        _systemctl(place.scope, "daemon-reload")


def problem(place: SchedulePlace, job: str) -> str:
    """Return what is wrong with a schedule; empty where it is in place."""
    if place.method == "cron":
        try:
            found = schedule.has_block(_crontab(), job)
        except ConfigError as error:
            return str(error)
        return "" if found else "its line is missing in the crontab; enable it again"
    missing = [path for path in place.files if not Path(path).exists()]
    if missing:
        return f"{missing[0]} is missing; enable it again"
    why = no_systemd(place.scope)
    if why:
        return f"systemd cannot be asked: {why}"
    done = _systemctl(place.scope, "is-active", place.name)
    return "" if done.out.strip() == "active" else f"{place.name} is {done.out.strip() or done.words}; enable it again"


def notes(place: SchedulePlace) -> tuple[str, ...]:
    """Return notes about a schedule that is in place but may not run, a sentence each."""
    if place.method == "cron":
        return () if _cron_runs() else ("The cron daemon is not running, so the nights do not begin; start it.",)
    if place.scope == "system" or shutil.which("loginctl") is None:
        return ()
    user = getpass.getuser()
    done = _run(["loginctl", "show-user", "--property=Linger", "--value", user])
    if done.rc == 0 and done.out.strip() == "yes":
        return ()
    return (f"Timers of {user} stop when {user} logs out; 'loginctl enable-linger {user}' keeps them running.",)


def _unit_folder(scope: Scope) -> Path:
    if scope == "system":
        return _SYSTEM_UNITS
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".config") / "systemd" / "user"


def _other(scope: Scope) -> str:
    return "give --own-timer, or be root" if scope == "system" else "make it writable"


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="surrogateescape")


def _systemctl(scope: Scope, *words: str) -> _Done:
    return _run(["systemctl", *(["--user"] if scope == "user" else []), *words])


def _crontab() -> str:
    if shutil.which("crontab") is None:
        raise ConfigError("This machine has neither a usable systemd nor a crontab program; install cron, or systemd.")
    done = _run(["crontab", "-l"])
    if done.rc == 0:
        return done.out
    words = done.err.lower()
    if "no crontab" in words or "no such file" in words or (done.rc == 1 and not (words + done.out).strip()):
        return ""  # any other answer is an error: the next write would replace the crontab
    raise ConfigError(f"The crontab cannot be read: {done.words}")


def _write_crontab(text: str) -> None:
    done = _run(["crontab", "-"], text) if text else _run(["crontab", "-r"])
    if done.rc != 0:
        raise ConfigError(f"The crontab cannot be written: {done.words}")


def _cron_runs() -> bool:
    return bool(processes.names() & {"cron", "crond", "fcron", "anacron", "busybox"})


def _run(argv: list[str], text: str = "") -> _Done:
    """Run a program of the system; undecodable bytes survive."""
    try:
        done = subprocess.run(
            argv,
            input=os.fsencode(text),
            capture_output=True,
            check=False,
            timeout=_ANSWER_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return _Done(124, "", f"{argv[0]} did not answer within {_ANSWER_S:.0f} s")
    except OSError as error:
        return _Done(127, "", f"{argv[0]} cannot be started: {error.strerror}")
    return _Done(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))
