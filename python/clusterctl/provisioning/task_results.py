"""Count what a run did to each host, with its problems and verdict, and measure what its stages take."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from clusterctl.model import run_record
from clusterctl.model.run_record import (
    CriticalPath,
    Finished,
    HostResult,
    PathStep,
    RunTiming,
    StageStarted,
    StageTiming,
    TaskStartedOnHost,
)
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from clusterctl.model.run_record import AskingObserver, Event
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

    @property
    def has_only_refused(self) -> bool:
        """Whether no host changed anything, and each failure is a finding of a check before the changes."""
        failed = [result for result in self.results if result.outcome in {"failed", "unreachable"}]
        nothing = not any(result.outcome == "changed" for result in self.results)
        return bool(failed) and nothing and all(_problems_of(result) for result in failed)

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
        """Return what preflight made of the nodes: the members of the cluster, without what they had installed then."""
        found = [result.data["members"] for result in self.results if result.data.get("members")]
        return tuple({key: of for key, of in one.items() if key != "trees"} for one in found[-1]) if found else ()

    def planned_trees(self) -> dict[str, dict[str, str]]:
        """Return by host the folders of the artifacts that it gets, by name, as the plan of the software says."""
        found = [result.data["planned_trees"] for result in self.results if result.data.get("planned_trees")]
        return dict(found[-1]) if found else {}

    def messages(self) -> tuple[str, ...]:
        """Return what roles have to say of the whole cluster."""
        return tuple(dict.fromkeys(text for result in self.results for text in result.data.get("told") or ()))

    def warnings(self) -> tuple[str, ...]:
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


# --- Measure a run: the wall time of each stage, and the critical path, whose steps add up to the wall time -----------
#
# A stage lasts until the next one begins. Ansible's linear strategy begins a task when all hosts have ended the one
# before. So each task is a step, and the host whose result came last decided its length. What the controller does by
# itself is a step without a host.

START = "start of Ansible"
END = "end of the run"
TOTAL = "total"
_ASKING = "asking the user"
_LEAST_SHARE = 0.02  # of the path; shorter steps of one stage in a row are joined

PreviewT = TypeVar("PreviewT")


@dataclass
class _Step:
    stage: str
    task: str
    at: float
    wall_s: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)  # host → when its last result came; no host that skipped
    changes: dict[str, str] = field(default_factory=dict)  # host → the first thing that changed

    def ended(self, at: float) -> _Step:
        """Return the step as it is if it ends at this time."""
        return dataclasses.replace(self, wall_s=max(0.0, at - self.at))

    def record(self, hosts: int) -> PathStep:
        """Return the step for the record; ``hosts`` is how many hosts the run has."""
        last = max(self.ends, key=lambda host: self.ends[host], default="")
        before = max((at for host, at in self.ends.items() if host != last), default=self.at)
        waited_s = min(self.wall_s, self.ends[last] - before) if last and hosts > 1 else 0.0
        return PathStep(
            stage=self.stage,
            task=self.task,
            host=last,
            change=self.changes.get(last, ""),
            wall_s=round(self.wall_s, 2),
            waited_s=round(max(0.0, waited_s), 2),
        )


class Stopwatch:
    """Collects the steps of a run as they come; the stages are their sums."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin; ``clock`` gives the seconds since 1970."""
        self._clock = clock
        self._past: list[_Step] = []
        self._now: _Step | None = None
        self._hosts: set[str] = set()
        self._results: Counter[tuple[str, bool]] = Counter()  # by stage, and whether they were skipped

    def begin(self, stage: str, at: float | None = None) -> None:
        """End the present stage and begin another, at a time in seconds since 1970 (None: now); '' begins none."""
        if self._now is None or stage != self._now.stage:
            self._step(stage, at)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.begin("")

    def take(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._step(event.stage, event.at, event.task)
        elif isinstance(event, Finished):
            self._step(END, event.at)
        elif isinstance(event, HostResult):
            self._hosts.add(event.host)
            self._results[event.stage, event.outcome == "skipped"] += 1
            if self._now is None or event.outcome == "skipped":
                return
            self._now.ends[event.host] = event.at
            if event.changes:
                self._now.changes.setdefault(event.host, event.changes[0])

    def timing(self) -> RunTiming:
        """Return what was measured until now, for the record; a stage that took no time is left out."""
        walls: dict[str, float] = {}
        for step in self._steps():
            walls[step.stage] = walls.get(step.stage, 0.0) + step.wall_s
        for stage, _skipped in self._results:
            walls.setdefault(stage, 0.0)
        stages = [self._timing(name, (name,), wall_s) for name, wall_s in walls.items()]
        return RunTiming(
            stages=tuple(stage for stage in stages if stage.wall_s or stage.run or stage.skipped),
            total=self._timing(TOTAL, walls, sum(walls.values())),
            critical_path=self.path(),
        )

    def _timing(self, name: str, stages: Collection[str], wall_s: float) -> StageTiming:
        run, skipped = (sum(self._results[stage, kind] for stage in stages) for kind in (False, True))
        return StageTiming(stage=name, wall_s=round(wall_s, 2), run=run, skipped=skipped)

    def path(self) -> CriticalPath:
        """Return the path until now: its long steps in their order, and the sum of the others."""
        steps, hosts = self._steps(), len(self._hosts)
        least_s = _LEAST_SHARE * sum(step.wall_s for step in steps)
        joined: list[PathStep] = []
        for (stage, short), group in groupby(steps, lambda step: (step.stage, step.wall_s < least_s)):
            parts = list(group)
            if short and len(parts) > 1:
                wall_s = round(sum(part.wall_s for part in parts), 2)
                joined.append(PathStep(stage=stage, tasks=len(parts), wall_s=wall_s))
            else:
                joined += [part.record(hosts) for part in parts]
        short_ones = [step for step in joined if step.wall_s < least_s]
        return CriticalPath(
            steps=tuple(step for step in joined if step.wall_s >= least_s),
            others=sum(step.tasks for step in short_ones),
            others_s=round(sum(step.wall_s for step in short_ones), 2),
        )

    def longest(self, most: int, least_s: float) -> list[PathStep]:
        """Return the longest steps until now, in the order of the run.

        What took less than ``least_s`` is left out.
        """
        steps = [step for step in self._steps() if step.wall_s >= least_s]
        chosen = sorted(range(len(steps)), key=lambda number: -steps[number].wall_s)[:most]
        return [steps[number].record(len(self._hosts)) for number in sorted(chosen)]

    def _step(self, stage: str, at: float | None, task: str = "") -> None:
        """End the present step and begin another."""
        now = self._clock() if at is None else at
        if self._now is not None:
            now = max(now, self._now.at)
            self._past.append(self._now.ended(now))
        self._now = _Step(stage, task, now) if stage else None

    def _steps(self) -> Sequence[_Step]:
        return self._past if self._now is None else [*self._past, self._now.ended(self._clock())]


class TimedObserver(Generic[PreviewT]):
    """Passes a run on to another observer, and measures its stages."""

    def __init__(self, observer: AskingObserver[PreviewT], watch: Stopwatch) -> None:
        self._observer, self._watch = observer, watch

    def phase(self, text: str) -> None:
        self._watch.begin(text)
        self._observer.phase(text)

    def event(self, event: Event) -> None:
        self._watch.take(event)
        self._observer.event(event)

    def stopping(self, requests: int) -> None:
        self._observer.stopping(requests)

    def confirm(self, preview: PreviewT) -> bool:
        """Ask; the user's time is a stage of its own."""
        self._watch.begin(_ASKING)
        answer = self._observer.confirm(preview)
        self._watch.begin(START)
        return answer
