"""``nightly enable`` and ``nightly disable``: check the request, write the job, and schedule it on this machine.

All checks run now, while the user can correct the request.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import suite
from clusterctl.inventory import ansible_inventory
from clusterctl.model import nodeset
from clusterctl.model.hosts import InventoryOptions
from clusterctl.nightly import notify, schedule, scheduler, storage
from clusterctl.nightly.records import Job, JobStatus
from clusterctl.remote import facts
from clusterctl.state import paths
from clusterctl.support import held_path
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from datetime import time

    from clusterctl.model.hosts import AnyInventory, Inventory
    from clusterctl.model.scheduler_options import SlurmOptions
    from clusterctl.model.slurm_drain_choice import DrainOptions
    from clusterctl.nightly.records import HookTarget, Night, SchedulePlace, Scope


# The variables that a night takes over from the environment of ``enable``; none of them holds a secret.
_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "ANSIBLE_BECOME",
    "ANSIBLE_CONFIG",
    "ANSIBLE_PRIVATE_KEY_FILE",
    "ANSIBLE_PYTHON_INTERPRETER",
    "ANSIBLE_REMOTE_PORT",
    "ANSIBLE_REMOTE_USER",
    "ANSIBLE_SSH_ARGS",
    "ANSIBLE_SSH_COMMON_ARGS",
    "ANSIBLE_SSH_EXTRA_ARGS",
    "ANSIBLE_VAULT_PASSWORD_FILE",
)
_WITHOUT_AGENT = ("-o", "IdentityAgent=none", "-o", "ControlPath=none")
_PROBE_S = 20.0


@dataclass(frozen=True)
class EnableRequest:
    """The request of the user.

    ``suite`` None means the suite of ``suite_file`` or of the validation.yml beside the inventory, else ``nightly``.
    ``scope`` None means ``system`` for root and ``user`` for other users. ``via`` is how Slurm is asked for the nodes.
    ``skip_busy`` and ``drains`` are those of :class:`clusterctl.nightly.records.Job`.
    """

    inventory: AnyInventory
    at: str
    suite: str | None = None
    suite_file: Path | None = None
    options: InventoryOptions = field(default_factory=InventoryOptions)
    on_fail: str | None = None
    scope: Scope | None = None
    keep_days: int = 30
    wait_s: float = 3600.0
    reports: Path | None = None
    prometheus: Path | None = None
    via: SlurmOptions | None = None
    skip_busy: bool = False
    drains: DrainOptions | None = None


@dataclass(frozen=True)
class Enabled:
    """An enabled job, its first night, and notes for its owner, a sentence each."""

    job: Job
    next: datetime
    notes: tuple[str, ...] = ()


def enable(request: EnableRequest) -> Enabled:
    """Schedule the nightly validation of an inventory; it replaces an earlier schedule of that inventory.

    Raises:
        ConfigError: the request is invalid, or the schedule cannot be written; an earlier schedule stays as it was.
    """
    at = schedule.parse_at(request.at)
    target = notify.parse(request.on_fail) if request.on_fail is not None else None
    file = request.suite_file or suite.beside(paths.resolved(request.inventory))
    chosen = registry.load(file, request.suite or (None if file else "nightly"))
    options = _absolute(request.options)
    cluster = ansible_inventory.load(request.inventory, options)
    name = storage.job_name(request.inventory)
    before = _before(name)
    scope: Scope = request.scope or ("system" if os.geteuid() == 0 else "user")
    job = _job(request, name, chosen.name, options, target, at)
    for file in (request.reports / at.isoformat() if request.reports else None, request.prometheus):
        if file is not None:
            _refuse_unwritable(file.absolute())
    storage.write_job(job)  # first, so that a timer never starts a missing job
    try:
        place, notes = _schedule(name, at, scope)
    except BaseException:
        _restore(before, name)
        raise
    job = job.model_copy(update={"place": place})
    storage.write_job(job)
    if before is not None and _elsewhere(before.place, place):
        try:
            scheduler.remove(before.place, name)
        except ConfigError as error:  # the new schedule works, and its owner learns of the old one
            notes += (f"The earlier schedule {before.place.name} is still there: {error}",)
    now = datetime.now(timezone.utc)
    notes += tuple(
        f"The job of {other.given}, which is missing, still starts each night; 'clusterctl nightly disable "
        f"{other.given.shown}' removes it."
        for other in _of_former_inventories(job)
    )
    notes += (*scheduler.notes(place), *_skipped(at, now), *(_agent(cluster) if job.via is None else ()))
    return Enabled(job, schedule.next_after(at, scheduler.zone(), now), notes)


def _of_former_inventories(job: Job) -> list[Job]:
    """Return the other jobs of the same cluster whose inventory was moved."""
    cluster = paths.cluster_id(job.given)
    others = [other for other in storage.jobs(only_readable=True) if other.job != job.job]
    others = [other for other in others if paths.cluster_id(other.given) == cluster]
    return [other for other in others if not all(path.exists() for path in other.given.paths)]


def disable(name: str) -> Job:
    """Remove the schedule of a job and its file; the records of its nights stay.

    Raises:
        ConfigError: the job is unknown, or a part of it cannot be removed.
    """
    job = storage.read_job(storage.job_file(name))
    scheduler.remove(job.place, name)
    storage.forget_job(name)
    return job


def _refuse_unwritable(file: Path) -> None:
    """Refuse a file whose folder is missing, or to which a link leads that another user can change."""
    try:
        with held_path.to_file(file) as held:
            is_writable = os.access(held.parent, os.W_OK | os.X_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise ConfigError(f"The folder {file.parent} does not exist or cannot be written; create it first.")


def program() -> list[str]:
    """Return the command that starts this clusterctl."""
    script = Path(sys.executable).with_name("clusterctl")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "clusterctl"]


def _schedule(name: str, at: time, scope: Scope) -> tuple[SchedulePlace, tuple[str, ...]]:
    if scope == "system" and os.geteuid() != 0:
        raise ConfigError("--system-timer writes to /etc/systemd/system as root; give --own-timer, or use sudo.")
    argv = [*program(), "nightly", "run", "--job", str(storage.job_file(name))]
    why = scheduler.no_systemd(scope)
    if not why:
        return scheduler.with_systemd(name, argv, at, scope), ()
    return scheduler.with_cron(name, argv, at), (f"A cron line starts the nights; systemd is not used: {why}.",)


def _job(
    request: EnableRequest, name: str, chosen: str, options: InventoryOptions, target: HookTarget | None, at: time
) -> Job:
    from clusterctl.nightly.records import SchedulePlace  # noqa: PLC0415 - a placeholder until the schedule is written

    sources = paths.resolved(request.inventory)
    kept = {key: os.environ[key] for key in _KEPT if os.environ.get(key)}
    homes = {
        "HOME": str(Path.home()),
        "XDG_STATE_HOME": str(paths.state_dir().value.parent),
        "XDG_CACHE_HOME": str(paths.cache_dir().value.parent),
    }
    return Job(
        job=name,
        inventory=str(sources),
        sources=sources.words,
        since=datetime.now(timezone.utc),
        at=f"{at:%H:%M}",
        suite=chosen,
        suite_file=str(request.suite_file.resolve()) if request.suite_file else None,
        limit=options.limit,
        extra_vars=options.extra_vars,
        vault_ids=options.vault_ids,
        vault_password_files=options.vault_password_files,
        user=options.user,
        private_key=options.private_key,
        become=options.become,
        via=request.via,
        skip_busy=request.skip_busy,
        drains=request.drains,
        environment={**kept, **homes},
        folder=str(Path.cwd()),
        hook=target,
        wait_s=request.wait_s,
        keep_days=request.keep_days,
        reports=str(request.reports.absolute()) if request.reports else None,
        prometheus=str(request.prometheus.absolute()) if request.prometheus else None,
        place=SchedulePlace(method="cron", scope="user", name=""),
    )


def _absolute(options: InventoryOptions) -> InventoryOptions:
    """Return the options with absolute paths; refuse an option that needs a terminal."""
    if any(not value.startswith("@") for value in options.extra_vars):
        raise ConfigError(
            "A night takes extra variables from files alone (-e @PATH): their values may be secrets, and the job's "
            "file would hold them. Write them into a file."
        )
    ids = []
    for value in options.vault_ids:
        label, at, source = value.rpartition("@")
        if source.startswith("prompt"):
            raise ConfigError("A night cannot ask for a vault password; give --vault-id LABEL@PATH.")
        ids.append(f"{label}{at}{_existing(source, '--vault-id')}")
    return replace(
        options,
        extra_vars=tuple("@" + _existing(value[1:], "--extra-vars") for value in options.extra_vars),
        vault_ids=tuple(ids),
        vault_password_files=tuple(_existing(value, "--vault-password-file") for value in options.vault_password_files),
        private_key=_existing(options.private_key, "--private-key") if options.private_key else None,
    )


def _existing(value: str, option: str) -> str:
    path = Path(value).expanduser().absolute()
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{option} names {value}, which does not exist or cannot be read; give a readable file.")
    return str(path)


def _before(name: str) -> Job | None:
    return storage.read_job(storage.job_file(name)) if storage.job_file(name).exists() else None


def _restore(before: Job | None, name: str) -> None:
    if before is None:
        storage.forget_job(name)
    else:
        storage.write_job(before)


def _elsewhere(before: SchedulePlace, now: SchedulePlace) -> bool:
    return (before.method, before.scope, before.name) != (now.method, now.scope, now.name)


def _skipped(at: time, now: datetime) -> tuple[str, ...]:
    days = schedule.skipped_nights(at, scheduler.zone(), now)
    if not days:
        return ()
    return (
        f"On {days[0]} the clock skips {at:%H:%M}, so that night has no run; choose another --at to run every night.",
    )


def _agent(cluster: Inventory) -> tuple[str, ...]:
    """Return a note about the hosts that accept this login only through the ssh agent of this session."""
    if not os.environ.get("SSH_AUTH_SOCK") or shutil.which("ssh") is None:
        return ()
    hosts = [
        replace(host, become=False, ssh_args=(*_WITHOUT_AGENT, *host.ssh_args))
        for host in cluster.selected_hosts
        if host.by_ssh
    ]
    refused = [
        name for name, failure in facts.gather(hosts, timeout_s=_PROBE_S).failures.items() if failure.kind == "refused"
    ]
    if not refused:
        return ()
    verb = "accepts" if len(refused) == 1 else "accept"
    words = (
        f"{nodeset.folded(refused)} {verb} this login only through the ssh agent, which a night does not have; give a "
        "key file (ansible_ssh_private_key_file or --private-key)."
    )
    return (words,)


# --- ``nightly status``: the next night, the past nights and the missed ones ------------------------------------------

_BROKEN_OFF = "It did not end: the machine or the process was stopped."


def status(job: Job, now: datetime | None = None, *, most: int = 14) -> JobStatus:
    now = now or datetime.now(timezone.utc)
    at, zone = schedule.parse_at(job.at), scheduler.zone()
    running = storage.is_running(job.job)
    nights = tuple(
        _settled(night, running=running and not number) for number, night in enumerate(storage.nights(job.job))
    )
    begun = [night.started for night in nights if night.outcome != "missed"]
    missed = schedule.missed(at, zone, job.since, now, begun, job.keep_days)
    due = schedule.due(at, zone, job.since, now)
    last_missed = bool(missed) and missed[0] == due
    problem = scheduler.problem(job.place, job.job)
    newest = next((night for night in nights if night.outcome != "running"), None)
    gave_up = newest is not None and newest.outcome == "missed" and not _began_after(nights, newest)
    called = next((night.hook for night in nights if night.hook is not None), None)
    return JobStatus(
        job=job.job,
        inventory=job.inventory,
        at=job.at,
        suite=job.suite,
        place=job.place,
        scheduled=not problem,
        problem=problem,
        next=schedule.next_after(at, zone, now),
        running=running,
        nights=nights[:most],
        missed=missed,
        last_missed=last_missed or gave_up,
        hook=notify.shown(job.hook) if job.hook else "",
        hook_result=called,
        bad=last_missed or gave_up or bool(problem) or (newest is not None and newest.is_bad),
    )


def _settled(night: Night, *, running: bool) -> Night:
    """Return a night with its true outcome: a night that is recorded as running and does not run was interrupted."""
    if night.outcome != "running" or running:
        return night
    return night.model_copy(update={"outcome": "interrupted", "message": _BROKEN_OFF})


def _began_after(nights: tuple[Night, ...], night: Night) -> bool:
    return any(other.outcome != "missed" and other.started > night.started for other in nights)
