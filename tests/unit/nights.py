"""Jobs, nights and hooks for the tests of the nightly validation."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import factory
from clusterctl import suite
from clusterctl.model.results import CheckResult, Culprit, ValidationRecord, Verdict
from clusterctl.model.run_record import RunRecord
from clusterctl.nightly import notify
from clusterctl.nightly import run as night
from clusterctl.nightly.records import BadCheck, HookTarget, Job, Night, Proof, SchedulePlace
from clusterctl.validation.run import ValidationOptions

UTC = timezone.utc
QUICK = notify.RetryPolicy(attempts=3, attempt_s=1.0, pause_s=0.01, deadline_s=60, grace_s=0.5)  # for a busy machine


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def a_night(**fields: Any) -> Night:
    given = {"verdict": Verdict.PASS, "outcome": "done", "started": utc("2026-05-02T02:00"), **fields}
    return Night(job="j", night="n", inventory="/i", suite="nightly", **given)


def proof(verdict: Verdict = Verdict.PASS, *bad: BadCheck, culprits: tuple[Culprit, ...] = ()) -> Proof:
    return Proof(run_id="r", folder="/f", verdict=verdict, bad=bad, culprits=culprits)


def bad(*hosts: str, check: str = "allreduce", reason: str = "wrong") -> BadCheck:
    return BadCheck(check=check, verdict=Verdict.FAIL, reason=reason, hosts=hosts, certain=hosts)


def culprit(*nodes: str, ratio: float = 0.1) -> Culprit:
    kind: Any = "node" if len(nodes) == 1 else "pair"
    return Culprit(kind=kind, nodes=nodes, quantity="bandwidth", ratio=ratio, words=f"{nodes} at {ratio}")


def a_job(name: str = "inv-1", **fields: Any) -> Job:
    given: dict[str, Any] = {
        "inventory": "/nowhere/inventory.ini",
        "since": utc("2026-05-01T12:00"),
        "at": "02:00",
        "suite": "nightly",
        "folder": "/",
        "place": SchedulePlace(method="cron", scope="user", name="crontab of me"),
    }
    return Job(job=name, **{**given, **fields})


def command(tmp_path: Path, program: str, *arguments: str) -> HookTarget:
    path = tmp_path / "hook of mine.py"
    path.write_text(f"#!{sys.executable}\nimport json, os, subprocess, sys, time\n{program}\n")
    path.chmod(0o755)
    return notify.parse(shlex.join([str(path), *arguments]))


def provisioned(**fields: Any) -> RunRecord:
    """Return the record of a provision, done unless the fields say otherwise."""
    return factory.run_record(**{"inventory": "/i", "started": utc("2026-05-02T02:00"), **fields})


def a_record(verdict: Verdict = Verdict.PASS, *checks: CheckResult) -> ValidationRecord:
    some = checks or (CheckResult(check="hello", verdict=verdict, reason="2 ranks", hosts=("n2",)),)
    given: dict[str, Any] = {
        "run_id": "run",
        "inventory": "/nowhere/inventory.ini",
        "launch_node": "n1",
        "hosts": ("n1", "n2"),
        "slots": {"n1": 1, "n2": 1},
        "folder": "/f",
    }
    return factory.record(*some, verdict=verdict, **given)


class World:
    """The results of validate and provision tonight."""

    def __init__(self) -> None:
        self.record: ValidationRecord | Exception = a_record()
        self.run: RunRecord | Exception = provisioned(outcome="nothing to do")
        self.waits: list[float] = []
        self.suite: suite.Suite | None = None

    def validate(self, _inventory: Path, options: ValidationOptions, *_given: Any) -> ValidationRecord:
        self.suite = options.suite
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    def provision(self, *_given: Any) -> RunRecord:
        if isinstance(self.run, Exception):
            raise self.run
        return self.run

    def timing(self) -> night.Timing:
        return night.Timing(retries=QUICK, sleep=self.waits.append, zone=lambda: UTC, ask_again_s=1.0)
