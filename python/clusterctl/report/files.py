"""The reports of a record as files: pages, JUnit, Prometheus and JSON lines, each written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.state import files, paths
from clusterctl.support import held_path
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.model.results import CheckResult, ValidationRecord

_LOG_HEAD = 16_000  # bytes of the beginning of a raw log that go into the page,
_LOG_TAIL = 32_000  # and of its end
_LOGS = 1_000_000  # bytes of all logs together


@dataclass(frozen=True)
class Places:
    """The file of each report; None means not requested."""

    html: Path | None = None
    junit: Path | None = None
    prometheus: Path | None = None
    jsonl: Path | None = None

    @property
    def asked(self) -> dict[str, Path]:
        """The given options, each with its file."""
        every = {"--html": self.html, "--junit": self.junit, "--prometheus": self.prometheus, "--jsonl": self.jsonl}
        return {option: path for option, path in every.items() if path is not None}

    def refuse_impossible(self) -> None:
        """Refuse impossible files before a long run.

        Raises:
            ConfigError: a folder does not exist, or a path is not a regular file.
        """
        for option, path in self.asked.items():
            if not path.absolute().parent.is_dir():
                raise ConfigError(f"The folder of {path} does not exist; create it, or choose another {option}.")
            if path.exists() and not path.is_file():
                raise ConfigError(f"{path} is not a regular file; choose another path for {option}.")


def write(record: ValidationRecord, places: Places, folder: Path | None = None) -> tuple[Path, ...]:
    """Write the requested reports.

    Args:
        record: of the validation.
        places: the file of each report.
        folder: of the run, with its logs; None means the folder that the record names.

    Returns:
        The files, in the order of the options.

    Raises:
        ConfigError: a file cannot be written.
    """
    for option, path in places.asked.items():
        try:
            with held_path.to_file(path) as target:  # the umask decides who may read a report
                files.write_atomically(target, parts(option, record, folder), mode=None, errors="replace")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    return tuple(places.asked.values())


def logs(record: ValidationRecord, folder: Path | None = None) -> dict[str, str]:
    """Return the raw output of the checks by name, bad checks first; of a long log its beginning and end."""
    place = (folder or Path(record.folder)).resolve()
    is_of_a_run = folder is not None or paths.validation_record(place).is_file()  # a record may name any folder
    if not (folder or record.folder) or not place.is_dir() or not is_of_a_run:
        return {}
    left, found = _LOGS, {}
    for check in sorted(record.checks, key=lambda one: not one.is_bad):
        text = _log(place, check) if check.log and left > 0 else ""
        if text:
            found[check.check] = text
            left -= len(text)
    return found


def _log(folder: Path, check: CheckResult) -> str:
    try:
        path, folder = (folder / check.log).resolve(), paths.logs_dir(folder)
    except (OSError, ValueError):  # not a path
        return ""
    if not path.is_relative_to(folder) or not path.is_file():  # a record must not choose a file of this machine
        return ""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= _LOG_HEAD + _LOG_TAIL:
                return stream.read(_LOG_HEAD + _LOG_TAIL).decode("utf-8", "replace")
            head = stream.read(_LOG_HEAD).decode("utf-8", "replace")
            stream.seek(size - _LOG_TAIL)
            tail = stream.read(_LOG_TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
    return f"{head}\n… {size - _LOG_HEAD - _LOG_TAIL} bytes are left out here; the whole log is {path} …\n{tail}"


def parts(option: str, record: ValidationRecord, folder: Path | None = None) -> Iterable[str]:
    """Return the text of one report, as :func:`write` takes its option and the folder of the run."""
    # Each report imports its own libraries, and only where it is requested: the page needs the most time.
    if option == "--html":
        from clusterctl.report import page  # noqa: PLC0415

        return [page.document(record, logs(record, folder))]
    if option == "--junit":
        from clusterctl.report import exports  # noqa: PLC0415

        return [exports.junit(record)]
    if option == "--prometheus":
        from clusterctl.report import prometheus  # noqa: PLC0415

        return [prometheus.document(record)]
    from clusterctl.report import exports  # noqa: PLC0415

    return exports.json_lines(record)
