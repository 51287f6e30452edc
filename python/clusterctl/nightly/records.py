"""What a night is made of: the job that somebody enabled, and the record of one night."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.results import Culprit, Verdict

Scope: TypeAlias = Literal["user", "system"]
Method: TypeAlias = Literal["systemd", "cron"]
NightOutcome: TypeAlias = Literal["running", "done", "missed", "failed", "interrupted"]


class HookTarget(Record):
    """Whom to tell: a program with its arguments, or an address that takes a POST; one of the two.

    Either may hold a secret (a token among the arguments, in the path of the address), so neither is ever shown whole.
    """

    command: tuple[str, ...] = ()
    url: str = ""


class SchedulePlace(Record):
    """Where the schedule was written, so that exactly this can be removed again.

    ``files`` are the units, for systemd; a cron line stands in the crontab of whoever enabled it.
    """

    method: Method
    scope: Scope
    name: str
    files: tuple[str, ...] = ()


class Job(Record):
    """One inventory's nights. The file holds paths of passwords and keys, never the passwords.

    Attributes:
        job: its name, safe in a file's name, a unit's and a crontab's comment.
        since: from when on this schedule holds; earlier nights are none of its business.
        at: local time of the machine, ``HH:MM``.
        environment: what a night gets besides what systemd or cron give it.
        folder: where the command was given; what is relative in an inventory or an ansible.cfg is relative to it.
        wait_s: how long a night waits for another run that holds a host.
        keep_days: how long nights and their reports are kept.
        reports: where the reports go, if not beside the record of the night.
        prometheus: a file that always holds the newest metrics, for node_exporter's textfile collector.
    """

    schema_version: Literal[1] = 1
    job: str
    inventory: str
    since: datetime
    at: str
    suite: str
    suite_file: str | None = None
    limit: str | None = None
    extra_vars: tuple[str, ...] = ()
    vault_ids: tuple[str, ...] = ()
    vault_password_files: tuple[str, ...] = ()
    user: str | None = None
    private_key: str | None = None
    become: bool = False
    environment: dict[str, str] = Field(default_factory=dict)
    folder: str
    hook: HookTarget | None = None
    wait_s: float = 3600.0
    keep_days: int = 30
    reports: str | None = None
    prometheus: str | None = None
    place: SchedulePlace


class BadCheck(Record):
    """A check that did not pass, as a night tells it.

    ``hosts`` are whom its reason names. When a job crashes, that is whoever was heard last, and others the next night;
    ``certain`` are those that it is sure of: nodes that do not answer or are not in order, or gave wrong answers.
    """

    check: str
    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()
    certain: tuple[str, ...] = ()


class Proof(Record):
    """What the validation of a night came to; the whole record lies in its ``folder``."""

    run_id: str
    folder: str
    verdict: Verdict
    bad: tuple[BadCheck, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    checks: int = 0
    skew: str = ""  # what the nodes' software differs in, where that was looked at and something does


class HostDrift(Record):
    """One host that is no longer as its last provision left it.

    ``why`` is what was seen from outside; ``changes`` is what ``provision`` would do about it.
    """

    host: str
    why: str = ""
    changes: tuple[str, ...] = ()


class Drift(Record):
    """What ``provision --check`` would change; ``problem`` says why nobody could look."""

    hosts: tuple[HostDrift, ...] = ()
    problem: str = ""
    run_id: str = ""
    folder: str = ""


class HookResult(Record):
    """How telling it went; ``words`` carry no address and no argument."""

    at: datetime
    ok: bool
    attempts: int
    seconds: float
    words: str


class Night(Record):
    """One night: what was due, what came of it, and who was told. The hook gets it as JSON, without ``hook``.

    Attributes:
        scheduled_for: when it was due; None where somebody started it by hand before any night was due.
        verdict: PASS where the validation passed and nothing has drifted; None where nothing could be found out.
        message: why it was missed or failed.
        missed: nights before this one in which nothing ran.
        change: what is other than in the night of which the hook was last told; empty where nothing is.
        reports: paths by kind (``html``, ``junit``, ``prometheus``, ``jsonl``).
        problems: what went wrong beside the verdict, a sentence each (a report that could not be written).
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
    change: str = ""
    reports: dict[str, str] = Field(default_factory=dict)
    problems: tuple[str, ...] = ()
    folder: str = ""
    hook: HookResult | None = None

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        return self.outcome in {"failed", "interrupted"} or self.verdict in {Verdict.FAIL, Verdict.ERROR}


class Told(Record):
    """What the hook was last told: :func:`clusterctl.nightly.policy.state_of` of that night."""

    schema_version: Literal[1] = 1
    night: str
    state: tuple[str, ...]


class JobStatus(Record):
    """A job as ``nightly status`` shows it.

    ``scheduled`` is whether the timer or the cron line is still there, ``problem`` says what is wrong with it.
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
    hook: str = ""  # what is called, without its secrets
    hook_result: HookResult | None = None
    bad: bool = False
