"""Reports of a night, beside its record or in the folder of the job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.nightly import policy
from clusterctl.report import files as report_files
from clusterctl.state import files, paths
from clusterctl.support.errors import ClusterctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.model.results import ValidationRecord
    from clusterctl.nightly.records import Job, Night

_FOR_ALL = 0o644  # the collector is another user
_GAUGES = {
    "verdict": "1 for the verdict of the last night, drift included, 0 for the others.",
    "drifted_nodes": "Nodes that differ from the snapshot of their last provision.",
    "missed": "Nights without a run before the last night.",
    "start_timestamp_seconds": "When the last night began, in seconds since 1970.",
}


def write(job: Job, night: Night, record: ValidationRecord) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write all reports; a report that fails becomes a sentence in the record of the night.

    Returns:
        The paths by kind, and the errors.
    """
    noted = record
    if night.drift is not None:
        noted = record.model_copy(update={"notes": (*record.notes, f"Drift: {policy.words_of(night.drift)}.")})
    written: dict[str, str] = {}
    problems: list[str] = []
    try:
        folder, mode = _folder(job, night)
    except OSError as error:
        return {}, (f"The folder {job.reports} cannot be written: {error.strerror}.",)
    for kind, (name, make) in _MAKERS.items():
        path = folder / name
        try:
            make(path, night, record if kind == "record" else noted)
            path.chmod(mode)
            written[kind] = str(path)
            if kind == "prometheus" and job.prometheus is not None:
                files.write_atomically(Path(job.prometheus), path.read_bytes(), mode=_FOR_ALL)
        except Exception as error:  # noqa: BLE001 - an error in one report leaves the others
            ours = isinstance(error, ClusterctlError)
            why = str(error) if ours else f"The report {path} cannot be written: {type(error).__name__}: {error}."
            problems.append(why)
    return written, tuple(problems)


def metrics(night: Night, record: ValidationRecord) -> str:
    """Return the metrics of the validation and those of the night."""
    from clusterctl.report import prometheus  # noqa: PLC0415 - its import is slow

    about = {"inventory": record.inventory}
    drifted = len(night.drift.hosts) if night.drift else 0
    samples = {
        "verdict": [prometheus.Sample({**about, "verdict": one.value}, float(night.verdict is one)) for one in Verdict],
        "drifted_nodes": [prometheus.Sample(about, float(drifted))],
        "missed": [prometheus.Sample(about, float(len(night.missed)))],
        "start_timestamp_seconds": [prometheus.Sample(about, night.started.timestamp())],
    }
    return prometheus.document(
        record, [prometheus.Gauge(f"clusterctl_night_{name}", _GAUGES[name], found) for name, found in samples.items()]
    )


def _folder(job: Job, night: Night) -> tuple[Path, int]:
    """Return the folder of the reports and the mode of their files, as readable as the folder that the user chose."""
    if job.reports is None:
        return Path(night.folder), 0o600
    chosen = Path(job.reports)
    mode = chosen.stat().st_mode & 0o777
    folder = chosen / night.night
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    return folder, mode & 0o666


def _write_record(path: Path, record: ValidationRecord) -> None:
    files.write_atomically(path, record.model_dump_json(indent=1) + "\n")


# Kind of report, the name of its file, and what writes it.
_MAKERS: dict[str, tuple[str, Callable[[Path, Night, ValidationRecord], object]]] = {
    "record": (paths.validation_record(Path()).name, lambda path, _night, record: _write_record(path, record)),
    "html": ("report.html", lambda path, _night, record: report_files.write(record, report_files.Places(html=path))),
    "junit": ("junit.xml", lambda path, _night, record: report_files.write(record, report_files.Places(junit=path))),
    "prometheus": ("metrics.prom", lambda path, night, record: files.write_atomically(path, metrics(night, record))),
    "jsonl": ("report.jsonl", lambda path, _night, record: report_files.write(record, report_files.Places(jsonl=path))),
}
