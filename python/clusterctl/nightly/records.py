"""Records of the nightly validation: the job, one night, and the status of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.hosts import InventorySources
from clusterctl.model.results import Culprit, Verdict
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.model.slurm_drain_choice import DrainOptions

Scope: TypeAlias = Literal["user", "system"]
Method: TypeAlias = Literal["systemd", "cron"]
NightOutcome: TypeAlias = Literal["running", "done", "missed", "failed", "interrupted"]


class HookTarget(Record):
    """The hook of a job: either a program with its arguments, or an address for a POST.

    Arguments and addresses may hold a token, so neither is ever shown whole.
    """

    command: tuple[str, ...] = ()
    url: str = ""


class SchedulePlace(Record):
    """Where the schedule was written, so that ``disable`` removes exactly that.

    ``files`` are the units of systemd; a cron line stands in the crontab of the user who enabled the job.
    """

    method: Method
    scope: Scope
    name: str
    files: tuple[str, ...] = ()


class Job(Record):
    """The nightly job of one inventory. Its file holds paths of passwords and keys, never the passwords."""

    schema_version: Literal[1] = 1
    job: str  # its name, safe in names of files and units and in a comment of a crontab
    inventory: str  # as messages name it
    # the paths and lists of hosts that make up the inventory; none means ``inventory`` itself
    sources: tuple[str, ...] = ()
    since: datetime  # the start of this schedule; earlier nights do not count
    at: str  # local time of the machine, ``HH:MM``
    suite: str
    suite_file: str | None = None
    limit: str | None = None
    extra_vars: tuple[str, ...] = ()
    vault_ids: tuple[str, ...] = ()
    vault_password_files: tuple[str, ...] = ()
    user: str | None = None
    private_key: str | None = None
    become: bool = False
    via: SlurmOptions | None = None  # how Slurm is asked for the nodes; None reaches them by ssh
    skip_busy: bool = False  # whether a night leaves out nodes with other work
    drains: DrainOptions | None = None  # what a night tells Slurm of its nodes; None tells it nothing
    # variables of a night in addition to those of systemd or cron
    environment: dict[str, str] = Field(default_factory=dict)
    folder: str  # the working directory of ``enable``; relative paths in an inventory or an ansible.cfg start there
    hook: HookTarget | None = None
    wait_s: float = 3600.0  # how long a night waits for another run that holds a host
    keep_days: int = 30  # how long nights and their reports are kept
    reports: str | None = None  # the folder of the reports; None means beside the record of the night
    prometheus: str | None = None  # a file with the newest metrics, for node_exporter's textfile collector
    place: SchedulePlace

    @property
    def given(self) -> InventorySources:
        """The inventory as the other commands take it."""
        return InventorySources(self.sources or (self.inventory,))


class BadCheck(Record):
    """A check that did not pass, as a night keeps it.

    ``hosts`` are the hosts that it names; ``next_step`` says what to do where they are not known. After a crash they
    are the hosts that spoke last, which differ from night to night. ``certain`` are the hosts that are bad for sure:
    they do not answer, are not ready, or gave wrong answers.
    """

    check: str
    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()
    certain: tuple[str, ...] = ()
    next_step: str = ""


class Proof(Record):
    """The result of the validation of a night; the whole record lies in its ``folder``.

    ``hosts`` took part. ``left_out`` has the reason of each node that did not, because it was busy or not in its turn.
    """

    run_id: str
    folder: str
    verdict: Verdict
    bad: tuple[BadCheck, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    checks: int = 0
    hosts: tuple[str, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    skew: str = ""  # how the software of the nodes differs; empty where it does not, or was not compared


class HostDrift(Record):
    """One host that differs from its last provision.

    ``why`` is the difference seen over ssh; ``changes`` is what ``provision`` would change.
    """

    host: str
    why: str = ""
    changes: tuple[str, ...] = ()


class Drift(Record):
    """The changes that ``provision --check`` would make; ``problem`` says why the drift is unknown.

    ``left_out`` says why this night did not look for drift. ``slice`` says which seventh of the installed files this
    night has read to the last byte, from 0 to 6.
    """

    hosts: tuple[HostDrift, ...] = ()
    problem: str = ""
    left_out: str = ""
    slice: int | None = None
    run_id: str = ""
    folder: str = ""


class Slower(Record):
    """A node that became a little slower over the nights, by one figure; ``words`` is the sentence of ``history``."""

    check: str
    quantity: str
    node: str
    words: str


class HookResult(Record):
    """The outcome of a call of the hook; ``words`` leave out the address and the arguments."""

    at: datetime
    ok: bool
    attempts: int
    seconds: float
    words: str


class Night(Record):
    """The record of one night. The hook gets it as JSON, without ``hook``.

    Attributes:
        scheduled_for: when it was due; None where it was started by hand before the first night.
        verdict: PASS where the validation passed and nothing has drifted; None while it is unknown.
        message: why it was missed or failed.
        missed: nights without a run before this night.
        slower: nodes that became a little slower over the nights; they leave the verdict as it is.
        change: differences since the last night that was notified; empty where there are none.
        reports: paths by kind (``html``, ``junit``, ``prometheus``, ``jsonl``).
        problems: errors beside the verdict, a sentence each, such as a report that could not be written.
    """

    schema_version: Literal[1] = 1
    job: str
    night: str
    inventory: str
    suite: str
    scheduled_for: datetime | None = None
    started: datetime
    finished: datetime | None = None
    outcome: NightOutcome = "running"
    verdict: Verdict | None = None
    message: str = ""
    missed: tuple[datetime, ...] = ()
    proof: Proof | None = None
    drift: Drift | None = None
    slower: tuple[Slower, ...] = ()
    change: str = ""
    reports: dict[str, str] = Field(default_factory=dict)
    problems: tuple[str, ...] = ()
    folder: str = ""
    hook: HookResult | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the night needs attention."""
        return self.outcome in {"failed", "interrupted"} or self.verdict in {Verdict.FAIL, Verdict.ERROR}


class Told(Record):
    """The last notified night and its :func:`clusterctl.nightly.policy.state_of`."""

    schema_version: Literal[1] = 1
    night: str
    state: tuple[str, ...]


class JobStatus(Record):
    """A job as ``nightly status`` shows it.

    ``scheduled`` is whether the timer or the cron line is in place; ``problem`` says what is wrong with it.
    ``missed`` are the nights without a run, newest first; ``last_missed`` is whether the newest night is one of them.
    """

    job: str
    inventory: str
    at: str
    suite: str
    place: SchedulePlace
    scheduled: bool
    problem: str = ""
    next: datetime | None
    running: bool = False
    nights: tuple[Night, ...] = ()  # newest first
    missed: tuple[datetime, ...] = ()
    last_missed: bool = False
    hook: str = ""  # the name of the hook, without its secrets
    hook_result: HookResult | None = None
    bad: bool = False
