"""Count what a provisioning run did to each host, and make its problems and its verdict of that."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

from clusterctl.model import run_record
from clusterctl.model.run_record import HostResult, TaskStartedOnHost
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.run_record import Event
    from clusterctl.provisioning.playbook import End

_ANSIBLE_TYPE = re.compile(r": <class '[\w.]+'> cannot be converted.*")  # its inner name for a text


class TaskResults:
    """Counts what happened on each host."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self.results: list[HostResult] = []
        self.hosts: dict[str, list[HostResult]] = defaultdict(list)
        self._began: dict[str, float] = {}

    def add(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, HostResult):
            self.results.append(event)
            self.hosts[event.host].append(event)
        elif isinstance(event, TaskStartedOnHost):
            self._began.setdefault(event.host, event.at)

    def problems(self) -> list[run_record.Problem]:
        """Return what preflight found, and what Ansible says of a role's variables, each once per host."""
        found: dict[tuple[str, str, str], run_record.Problem] = {}
        for result in self.results:
            if result.outcome not in {"failed", "unreachable"}:
                continue
            for problem in _problems_of(result):
                found.setdefault((problem.host, problem.subject, problem.problem), problem)
        return list(found.values())

    def unreached(self, end: End) -> list[run_record.Problem]:
        """Return the hosts that a playbook lost on the way, each with what Ansible says of it."""
        found = []
        for name in sorted(end.unreachable):
            said = [result.message for result in self.hosts.get(name, []) if result.outcome == "unreachable"]
            words = said[-1] if said and said[-1] else f"{name} does not answer"
            found.append(run_record.Problem(host=name, subject="unreachable", problem=words, kind="unreachable"))
        return found

    def failures(self, end: End) -> list[run_record.Problem]:
        """Return the hosts on which a playbook failed, each with the cause."""
        last = {result.host: result for result in self.results if result.outcome == "failed"}
        return [
            run_record.Problem(host=name, subject=last[name].stage, problem=last[name].message)
            for name in sorted(end.failed & last.keys())
        ]

    def members(self) -> tuple[dict[str, Any], ...]:
        """Return what preflight made of the nodes: the members of the cluster."""
        found = [result.data["members"] for result in self.results if result.data.get("members")]
        return tuple(found[-1]) if found else ()

    def messages(self) -> tuple[str, ...]:
        """Return what roles have to say of the whole cluster."""
        return tuple(dict.fromkeys(text for result in self.results for text in result.data.get("told") or ()))

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of roles, each once."""
        return tuple(dict.fromkeys(text for result in self.results for text in result.warnings))

    def summaries(self, names: Sequence[str], end: End) -> list[run_record.HostSummary]:
        """Return one summary per host, in the given order."""
        return [self._summary(name, end) for name in names]

    def _summary(self, name: str, end: End) -> run_record.HostSummary:
        results = self.hosts.get(name, [])
        counts = {word: sum(result.outcome == word for result in results) for word in ("ok", "changed", "skipped")}
        failure = next((r for r in reversed(results) if r.outcome in {"failed", "unreachable"}), None)
        changes = tuple(dict.fromkeys(phrase for r in results if r.outcome == "changed" for phrase in _phrases(r)))
        if name in end.unreachable:
            outcome: run_record.HostOutcome = "unreachable"
        elif name in end.failed:
            outcome = "failed"
        elif counts["changed"]:
            outcome = "changed"
        else:
            outcome = "ok" if results else "not run"
        if outcome not in {"failed", "unreachable"}:
            failure = None
        return run_record.HostSummary(
            host=name,
            outcome=outcome,
            failed=sum(result.outcome == "failed" for result in results),
            unreachable=sum(result.outcome == "unreachable" for result in results),
            seconds=round(max((r.at for r in results), default=0.0) - self._began.get(name, 0.0), 1)
            if results
            else 0.0,
            changes=changes,
            failed_stage=failure.stage if failure else "",
            failed_task=failure.task if failure else "",
            message=failure.message if failure else "",
            **counts,
        )


def _phrases(result: HostResult) -> tuple[str, ...]:
    return result.changes or (result.task,)


def _problems_of(result: HostResult) -> list[run_record.Problem]:
    """Return the problems that one result carries."""
    found = [
        run_record.Problem(
            host=str(item.get("host") or result.host),
            subject=str(item.get("check") or ""),
            problem=str(item.get("problem") or ""),
            cure=str(item.get("cure") or ""),
            kind=_kind(item),
        )
        for item in result.data.get("problems") or []
        if isinstance(item, dict)
    ]
    found.extend(
        run_record.Problem(
            host=result.host, subject=result.stage, problem=_ANSIBLE_TYPE.sub("", str(error)), kind="configuration"
        )
        for error in result.data.get("argument_errors") or []
    )
    if "assertion" in result.data:  # a role's assertions refuse what was asked for; they say nothing of the host
        found.append(
            run_record.Problem(host=result.host, subject=result.stage, problem=result.message, kind="configuration")
        )
    return found


def verdict_of(problems: Sequence[run_record.Problem]) -> tuple[run_record.RunOutcome, ExitCode]:
    """Return how a run ends that these problems stopped: who cannot be reached weighs most, for it hides the rest."""
    kinds = {problem.kind for problem in problems}
    if "unreachable" in kinds:
        return "unreachable", ExitCode.UNREACHABLE
    if "configuration" in kinds:
        return "bad configuration", ExitCode.BAD_CONFIG
    return "failed", ExitCode.HOST_FAILED


def _kind(item: Mapping[str, Any]) -> Literal["configuration", "host", "unreachable"]:
    kind = item.get("kind")
    return kind if kind in ("configuration", "unreachable") else "host"  # it may be a list
