"""The reports of a night, beside its record or where the job wants them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.report import files as writer
from clusterctl.report import prometheus
from clusterctl.state import files, paths
from clusterctl.support.errors import ClusterctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.model.results import ValidationRecord
    from clusterctl.nightly.records import Job, Night

_FOR_ALL = 0o644  # the collector is another user
_GAUGES = {
    "clusterctl_night_verdict": "1 for the verdict of the last night, drift included, 0 for the others.",
    "clusterctl_night_drifted_nodes": "Nodes that are not as their last provision left them.",
    "clusterctl_night_missed": "Nights before the last one in which nothing ran.",
    "clusterctl_night_start_timestamp_seconds": "When the last night began, in seconds since 1970.",
}


def write(job: Job, night: Night, record: ValidationRecord) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write them all; one that cannot be made costs the night nothing but a sentence.

    Returns:
        The paths by kind, and what went wrong.
    """
    written: dict[str, str] = {}
    problems: list[str] = []
    try:
        folder, mode = _folder(job, night)
    except OSError as error:
        return {}, (f"The folder {job.reports} cannot be written: {error.strerror}.",)
    for kind, (name, make) in _MAKERS.items():
        path = folder / name
        try:
            make(path, night, record)
            path.chmod(mode)
            written[kind] = str(path)
            if kind == "prometheus" and job.prometheus is not None:
                files.write_atomically(Path(job.prometheus), path.read_bytes(), mode=_FOR_ALL)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one report, the others are written
            ours = isinstance(error, ClusterctlError)
            why = str(error) if ours else f"The report {path} cannot be written: {type(error).__name__}: {error}."
            problems.append(why)
    return written, tuple(problems)


def metrics(night: Night, record: ValidationRecord) -> str:
    """Return the validation's metrics, and with them those that only a night has."""
    about = f'inventory="{_escaped(record.inventory)}"'
    drifted = len(night.drift.hosts) if night.drift else 0
    samples = {
        "clusterctl_night_verdict": [
            (f'{about},verdict="{one.value}"', float(night.verdict is one)) for one in Verdict
        ],
        "clusterctl_night_drifted_nodes": [(about, float(drifted))],
        "clusterctl_night_missed": [(about, float(len(night.missed)))],
        "clusterctl_night_start_timestamp_seconds": [(about, night.started.timestamp())],
    }
    lines = [prometheus.document(record)]
    for name, words in _GAUGES.items():
        lines.append(f"# HELP {name} {words}\n# TYPE {name} gauge\n")
        lines += [f"{name}{{{labels}}} {value!r}\n" for labels, value in samples[name]]
    return "".join(lines)


def _folder(job: Job, night: Night) -> tuple[Path, int]:
    """Return where the reports go, and the mode of their files: as readable as the folder that the user chose."""
    if job.reports is None:
        return Path(night.folder), 0o600
    chosen = Path(job.reports)
    mode = chosen.stat().st_mode & 0o777
    folder = chosen / night.night
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    return folder, mode & 0o666


def _escaped(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _write_record(path: Path, record: ValidationRecord) -> None:
    files.write_atomically(path, record.model_dump_json(indent=1) + "\n")


# Kind of report, the name of its file, and what writes it.
_MAKERS: dict[str, tuple[str, Callable[[Path, Night, ValidationRecord], object]]] = {
    "record": (paths.validation_record(Path()).name, lambda path, _night, record: _write_record(path, record)),
    "html": ("report.html", lambda path, _night, record: writer.write(record, writer.Places(html=path))),
    "junit": ("junit.xml", lambda path, _night, record: writer.write(record, writer.Places(junit=path))),
    "prometheus": ("metrics.prom", lambda path, night, record: files.write_atomically(path, metrics(night, record))),
    "jsonl": ("report.jsonl", lambda path, _night, record: writer.write(record, writer.Places(jsonl=path))),
}
