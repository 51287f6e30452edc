"""Run one night: validate the cluster, look for drift, write reports, notify of a change, remove old nights."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl import suite
from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.results import Verdict
from clusterctl.nightly import notify, policy, schedule, scheduler, storage
from clusterctl.nightly.records import Drift, Night, Slower, Told
from clusterctl.provisioning import run as provisioning
from clusterctl.report import files as report_files
from clusterctl.report import slow_nodes
from clusterctl.state import files, paths
from clusterctl.state import history as run_history
from clusterctl.support import held_path
from clusterctl.support.errors import ClusterctlError, ExitCode, LockedError
from clusterctl.validation import run as validation
from clusterctl.validation import via_slurm
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import tzinfo

    from clusterctl.model.results import ValidationEvent, ValidationRecord
    from clusterctl.model.run_record import Event
    from clusterctl.nightly.records import Job
    from clusterctl.provisioning.preview import Preview


_T = TypeVar("_T")
_ASK_AGAIN_S = 10.0
_NO_SSH = "it needs ssh and root, and this night reaches its nodes by Slurm"


@dataclass(frozen=True)
class Timing:
    """How a night waits, and in which time zone; tests shorten the waits."""

    retries: notify.RetryPolicy = field(default_factory=notify.RetryPolicy)
    sleep: Callable[[float], None] = time.sleep
    zone: Callable[[], tzinfo] = scheduler.zone
    ask_again_s: float = _ASK_AGAIN_S


def run(job: Job, tell: Callable[[str], None] = lambda _text: None, timing: Timing | None = None) -> Night:
    """Run a night, and keep its record even where it fails.

    Returns:
        The record. It is ``missed`` where another run held a host for longer than the job waits, or where the earlier
        night still runs.
    """
    timing = timing or Timing()
    started = datetime.now(timezone.utc)
    kept = storage.nights(job.job)
    name, folder = storage.new_night(job.job, started)
    begun = [night.started for night in kept if night.outcome != "missed"]
    at, zone = schedule.parse_at(job.at), timing.zone()
    lost = schedule.missed(at, zone, job.since, started, [*begun, started], job.keep_days)
    night = Night(
        job=job.job,
        night=name,
        inventory=job.inventory,
        suite=job.suite,
        scheduled_for=schedule.due(at, zone, job.since, started),
        started=started,
        missed=tuple(slot for slot in lost if not begun or slot > max(begun)),
        folder=str(folder),
    )
    storage.write_night(night)
    for slot in reversed(night.missed):
        tell(f"The night of {slot.astimezone(zone):%Y-%m-%d %H:%M} was missed: nothing ran.")
    try:
        with storage.lock(job.job):
            return _NightRun(job, night, tell, timing, policy.next_slice(kept)).go()
    except LockedError as error:  # of the job; the lock of a host is waited for
        return _close(night, outcome="missed", message=str(error))


def exit_code(night: Night) -> ExitCode:
    """Return the exit code of the command: 0, 10 (bad, drifted or missed) or 11 (the verdict is unknown)."""
    if night.outcome == "missed" or night.verdict is Verdict.FAIL:
        return ExitCode.VALIDATION_FAILED
    return ExitCode.OK if night.verdict is Verdict.PASS else ExitCode.VALIDATION_ERROR


class _NightRun:
    """One night that holds the lock of its job."""

    def __init__(self, job: Job, night: Night, tell: Callable[[str], None], timing: Timing, slice_number: int) -> None:
        self._job, self._night, self._tell, self._timing = job, night, tell, timing
        self._slice = slice_number  # of the installed files, whose content is compared
        self._until = time.monotonic() + job.wait_s
        self._options = InventoryOptions(
            limit=job.limit,
            extra_vars=job.extra_vars,
            vault_ids=job.vault_ids,
            vault_password_files=job.vault_password_files,
            user=job.user,
            private_key=job.private_key,
            become=job.become,
        )
        self._cluster = Cluster.of(job.given, self._options)  # the validation and the look for drift read it once

    def go(self) -> Night:
        record = None
        try:
            record = self._patiently(self._validate)
            for note in record.notes:
                self._tell(f"Note: {note}")
            drift = self._drift()
            proof = policy.proof_of(record)
            verdict = policy.verdict_of(proof, drift)
            self._update(outcome="done", proof=proof, drift=drift, verdict=verdict, **self._slower(record))
        except LockedError as error:
            return _close(self._night, outcome="missed", message=str(error))
        except KeyboardInterrupt:
            _close(self._night, outcome="interrupted", message="It was interrupted.")
            raise
        except Exception as error:  # noqa: BLE001 - the record and the hook carry the error
            self._update(outcome="failed", verdict=Verdict.ERROR, message=_words(error))
        self._compare()
        if record is not None:
            self._report(record)
        night = self._call()
        self._prune()
        return night

    def _validate(self) -> ValidationRecord:
        self._tell("validating")
        job = self._job
        chosen = registry.load(Path(job.suite_file) if job.suite_file else suite.beside(job.given), job.suite)
        options = validation.ValidationOptions(
            inventory=self._options,
            suite=chosen,
            via=job.via,
            skip_busy=job.skip_busy,
            drains=job.drains,
            argv=self._argv("validate", "--suite", chosen.name, *(job.via.words if job.via else ()), *_of(job)),
        )
        if job.via is not None:
            return via_slurm.validate(job.given, options, job.via, self._hear)
        return validation.validate(self._cluster, options, self._hear)

    def _drift(self) -> Drift:
        """Look for drift; an error leaves the verdict of the validation as it is."""
        if self._job.via is not None:
            return Drift(left_out=_NO_SSH)
        self._tell("looking for drift")
        try:
            record = self._patiently(self._check)
        except Exception as error:  # noqa: BLE001 - the result of the validation stays
            return Drift(problem=_words(error))
        if record.outcome == "interrupted":
            raise KeyboardInterrupt
        return policy.drift_of(record)

    def _slower(self, record: ValidationRecord) -> dict[str, Any]:
        """Return who became slower over all kept runs; a history that cannot be read is a problem of the night."""
        try:
            with run_history.open() as history:
                found = slow_nodes.slower(history, paths.cluster_id(self._job.given), record)
        except run_history.StoreError as error:
            return {"problems": (*self._night.problems, str(error))}
        return {"slower": tuple(Slower(**asdict(one)) for one in found)}

    def _check(self) -> Any:
        request = provisioning.ProvisionRequest(
            inventory=self._cluster,
            options=self._options,
            check=True,
            trust_snapshots=True,
            slices=(self._slice,),
            argv=self._argv("provision", "--check"),
        )
        return provisioning.provision(request, _NightListener(self._tell))

    def _argv(self, verb: str, *options: str) -> tuple[str, ...]:
        return ("clusterctl", verb, *self._job.given.arguments, *options)

    def _hear(self, event: ValidationEvent) -> None:
        result = getattr(event, "result", None)
        if result is not None:
            self._tell(f"{result.verdict.value:5} {result.check}: {result.reason}")

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """Act, and wait while another run holds a host; past the job's waiting time, the error names that run."""
        said = ""
        while True:
            try:
                return act()
            except LockedError as error:
                if time.monotonic() + self._timing.ask_again_s > self._until:
                    raise
                if str(error) != said:
                    said = str(error)
                    self._tell(f"waiting: {said}")
                self._timing.sleep(self._timing.ask_again_s)

    def _update(self, **fields: Any) -> None:
        self._night = Night.model_validate({**self._night.model_dump(), **fields})
        storage.write_night(self._night)

    def _compare(self) -> None:
        before = storage.told(self._job.job)
        state = before.state if before else ()
        self._update(finished=datetime.now(timezone.utc), change=policy.change(state, self._state(state)))

    def _state(self, before: Sequence[str]) -> tuple[str, ...]:
        proof = self._night.proof
        return policy.carried(before, policy.state_of(self._night), proof.left_out if proof is not None else ())

    def _report(self, record: ValidationRecord) -> None:
        written, problems = write_reports(self._job, self._night, record)
        self._update(reports=written, problems=(*self._night.problems, *problems))

    def _call(self) -> Night:
        """Notify of a change; where the hook fails, the next night notifies, since it is still a change then."""
        night = self._night
        if not night.change:
            return night
        if self._job.hook is not None:
            self._tell(f"the verdict changed ({night.change}): calling {notify.shown(self._job.hook)}")
            variables = {notify.VALIDATION: night.reports["record"]} if "record" in night.reports else {}
            told = notify.call(
                self._job.hook,
                storage.write_night(night),
                variables,
                Path(self._job.folder),
                self._timing.retries,
                self._timing.sleep,
            )
            self._update(hook=told)
            if not told.ok:
                self._tell(f"the hook failed: {told.words}")
                return self._night
        before = storage.told(self._job.job)
        storage.write_told(self._job.job, Told(night=night.night, state=self._state(before.state if before else ())))
        return self._night

    def _prune(self) -> None:
        kept = {night.night: night for night in storage.nights(self._job.job)}
        begun = [(name, night.started) for name, night in kept.items()]
        for name in policy.to_prune(begun, datetime.now(timezone.utc), self._job.keep_days):
            with contextlib.suppress(OSError):
                storage.remove_night(kept[name])


class _NightListener:
    """Observer of a provision in check mode; it confirms by itself."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def phase(self, text: str) -> None:
        self._tell(text)

    def event(self, event: Event) -> None:
        """The folder of the run holds the events."""

    def confirm(self, preview: Preview) -> bool:
        for host, why in preview.reasons.items():
            self._tell(f"{host}: {why}")
        return True

    def stopping(self, requests: int) -> None:
        """The record holds the interruption."""


def _of(job: Job) -> list[str]:
    """Return the options of the job that concern busy nodes and Slurm's drains."""
    return [*(["--skip-busy"] if job.skip_busy else []), *(job.drains.words if job.drains else [])]


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ClusterctlError) else f"{type(error).__name__}: {error}"


def _close(night: Night, **fields: Any) -> Night:
    closed = Night.model_validate({**night.model_dump(), "finished": datetime.now(timezone.utc), **fields})
    storage.write_night(closed)
    return closed


# --- Reports of a night, beside its record or in the folder of the job ------------------------------------------------

_FOR_ALL = 0o644  # the collector is another user
_GAUGES = {
    "verdict": "1 for the verdict of the last night, drift included, 0 for the others.",
    "drifted_nodes": "Nodes that differ from the snapshot of their last provision.",
    "missed": "Nights without a run before the last night.",
    "start_timestamp_seconds": "When the last night began, in seconds since 1970.",
}


def write_reports(job: Job, night: Night, record: ValidationRecord) -> tuple[dict[str, str], tuple[str, ...]]:
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
        with _folder(job, night) as (folder, shown, mode):
            for kind, (name, make) in _MAKERS.items():
                try:
                    content = make(night, record if kind == "record" else noted)
                    files.write_atomically(folder / name, content, mode=mode, errors="replace")
                    written[kind] = str(shown / name)
                except Exception as error:  # noqa: BLE001 - an error in one report leaves the others
                    problems.append(_unwritten(shown / name, error))
    except ClusterctlError as error:
        return {}, (str(error),)
    except OSError as error:
        return {}, (f"The folder {job.reports} cannot be written: {error.strerror}.",)
    if "prometheus" in written and job.prometheus is not None:
        try:
            with held_path.to_file(Path(job.prometheus)) as target:
                files.write_atomically(target, metrics(night, noted), mode=_FOR_ALL)
        except (ClusterctlError, OSError) as error:
            problems.append(_unwritten(Path(job.prometheus), error))
    return written, tuple(problems)


def _unwritten(path: Path, error: Exception) -> str:
    if isinstance(error, ClusterctlError):
        return str(error)
    why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return f"The report {path} cannot be written: {why}."


def metrics(night: Night, record: ValidationRecord) -> str:
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


@contextlib.contextmanager
def _folder(job: Job, night: Night) -> Iterator[tuple[Path, Path, int]]:
    """Yield the folder of the reports, how it is called, and the mode of their files.

    Whoever may read the folder that the user chose may read the reports. Nobody else may write them.
    """
    if job.reports is None:
        yield Path(night.folder), Path(night.folder), 0o600
        return
    chosen = Path(job.reports)
    mode = chosen.stat().st_mode & 0o755
    with held_path.folder(chosen / night.night, mode) as held:
        yield held, chosen / night.night, mode & 0o644


# Kind of report, the name of its file, and its text.
_MAKERS: dict[str, tuple[str, Callable[[Night, ValidationRecord], str | Iterable[str]]]] = {
    "record": (paths.validation_record(Path()).name, lambda _night, record: record.model_dump_json(indent=1) + "\n"),
    "html": ("report.html", lambda _night, record: report_files.parts("--html", record)),
    "junit": ("junit.xml", lambda _night, record: report_files.parts("--junit", record)),
    "prometheus": ("metrics.prom", metrics),
    "jsonl": ("report.jsonl", lambda _night, record: report_files.parts("--jsonl", record)),
}
