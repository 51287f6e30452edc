"""Validate in pods of the user's image: one job of Kubernetes runs the checks, and its logs are judged here.

A check that measures runs twice in the job. The second run counts only where the first one stands out.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.analysis import speed_verdict
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.launch import validation_job
from clusterctl.launch.validation_job import PlannedCheck, ranked
from clusterctl.model.hosts import OF_KUBERNETES, InventorySources
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import (
    CheckProgress,
    CheckResult,
    CheckStarted,
    Measurement,
    ValidationRecord,
    Verdict,
    worst,
)
from clusterctl.remote import kubectl_output
from clusterctl.remote.kubectl import Kubectl
from clusterctl.remote.pod_job import PodJob
from clusterctl.state import files, paths, runs
from clusterctl.support import node_json
from clusterctl.support.errors import ConfigError, ValidationCouldNotRunError
from clusterctl.validation.check_results import CheckResults, ended_during
from clusterctl.validation.checks import base, judging, registry
from clusterctl.validation.expectations import Expectations, MeasuredRun
from clusterctl.validation.run import concluded, ignore, in_a_run, now, saved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.launch.validation_job import ValidationJob
    from clusterctl.model.job_outcome import Ending
    from clusterctl.model.results import ValidationEvent
    from clusterctl.model.scheduler_options import PodsOptions
    from clusterctl.remote.kubectl_output import Pod
    from clusterctl.validation.checks.base import Check, Site
    from clusterctl.validation.options import ValidationOptions


# Which checks run in the pods of a job, with which program, and what they find: no I/O.

_TORCHRUN = "torchrun"
_PROVISIONED = {
    "hello": "its C program is compiled by 'clusterctl provision'",
    "network": "it compares with the network that 'clusterctl provision' has chosen",
    "nccl": "it proves the NCCL that 'clusterctl provision' installs; torchrun proves that of PyTorch",
    "nccl_sweep": "it measures the NCCL that 'clusterctl provision' installs",
}
_TWICE = 2  # runs of a check that measures


@dataclass(frozen=True)
class PodsPlan:
    """The checks that pods run, in order, and why the others do not."""

    checks: tuple[Check, ...]
    left_out: Mapping[str, str]
    planned: tuple[PlannedCheck, ...]
    numbers: Mapping[str, tuple[int, ...]]  # by check, the places of its runs in ``planned``


def plan_of(checks: Sequence[Check], wish: PodsOptions, timeout_s: float | None = None) -> PodsPlan:
    """Choose the checks that can run in pods of this kind.

    ``timeout_s`` replaces the deadline of every check.
    """
    whys = {check.name: why_not(check, wish) for check in checks}
    chosen = tuple(check for check in checks if not whys[check.name])
    planned: list[PlannedCheck] = []
    numbers: dict[str, tuple[int, ...]] = {}
    site = site_of(wish)
    for check in chosen:
        deadline = timeout_s or base.deadline_s(check, base.placed(check, site))
        one = PlannedCheck(check.name, _argv(check, site, wish, deadline), deadline, check.per_node)
        registration = registry.registrations().get(check.name)
        times = _TWICE if registration is not None and registration.measures else 1
        numbers[check.name] = tuple(range(len(planned), len(planned) + times))
        planned += [one] * times
    return PodsPlan(chosen, {name: why for name, why in whys.items() if why}, tuple(planned), numbers)


def why_not(check: Check, wish: PodsOptions) -> str:
    """Say why a check cannot run in pods of this kind, empty where it can."""
    if check.name in _PROVISIONED:
        return f"not in pods: {_PROVISIONED[check.name]}"
    if check.name not in registry.registrations():
        return "not in pods: its program lies on the nodes"
    if wish.kind != "mpijob":
        return "" if check.name == _TORCHRUN else "mpirun starts it; give --via mpijob"
    if check.name == _TORCHRUN:
        return "give --via pytorchjob, whose operator tells the pods where they meet"
    return check.absent(NodeStack()) and "not in pods: an MPIJob's image need not have it"


def site_of(wish: PodsOptions, version: str = "", names: Mapping[str, str] | None = None) -> base.Site:
    """Return the pods as a check sees them.

    ``names`` has the host of each name that a pod gives itself.
    """
    hosts = ranked(wish)
    stack = NodeStack(
        gpus=wish.gpus_per_node, framework="pytorch", framework_cuda="of the image" if wish.gpus_per_node else ""
    )
    return base.Site(
        version=version,
        slots=dict.fromkeys(hosts, wish.ranks_per_pod),
        names=dict(names or {}),
        stack={} if wish.kind == "mpijob" else dict.fromkeys(hosts, stack),
    )


def _argv(check: Check, site: base.Site, wish: PodsOptions, deadline_s: float) -> tuple[str, ...]:
    """Return the argv of a check's program, by the image's own Python."""
    argv = check.program(base.placed(check, site), deadline_s)
    words = [wish.python, *argv[1:]]
    if check.name == _TORCHRUN:  # pod_runner.py puts in what the operator's variables say
        words[words.index("--first-node") + 1] = "{first}"
        words += ["--node", "{node}", "--port", "{port}"]
    return tuple(words)


# Read what the pods of a validation print: which check runs, its ranks' lines, and how it ended in each pod.

_MARK = '{"clusterctl_pod"'
_RANK = '{"clusterctl"'
_MOST_LAST = 200
_MOST_LINES = 200_000  # of a check
_MOST_PARTS = 4096  # of a pod; a plan has some dozens
_MOST_TEXT, _MOST_OF_LINE = 1 << 28, 1 << 17  # characters of all lines, and of one
_LONGEST_S = 1e9
_KEYS = ("event", "key", "what", "check", "ending", "rc", "signal", "seconds", "ending_s", "problem", "mpirun", "torch")
_MOST_WORDS = 1000  # characters; pod_runner.py writes 600


@dataclass
class _PodPart:
    """One check in one pod."""

    check: str
    began_s: float
    lines: list[OutputLine] = field(default_factory=list)
    end: Mapping[str, Any] | None = None


class PodOutput:
    """The output of all pods so far.

    A check may run more than once; its runs are told apart by their number, from 0.
    """

    def __init__(self, speakers: int, speaks: Callable[[str], bool] = lambda _pod: True) -> None:
        """Begin with nothing heard; ``speakers`` pods print results, and ``speaks`` tells which by their names."""
        self._speakers, self._speaks = speakers, speaks
        self._parts: dict[str, list[_PodPart]] = {}
        self._done: set[str] = set()
        self._kept: Counter[str] = Counter()  # characters by pod: one pod takes no room from the others
        self.up: dict[str, Mapping[str, Any]] = {}  # by pod, what its image has
        self.lacks: dict[str, str] = {}  # by pod, what is missing for the checks
        self.last: dict[str, str] = {}  # by pod, the last line outside of checks that is not ours

    @property
    def is_done(self) -> bool:
        """Whether every pod that speaks has ended its part, or one cannot begin."""
        return len(self._done) >= self._speakers or bool(self.lacks)

    def take(self, pod: str, text: str, at_s: float) -> None:
        """Take a line of a pod's log."""
        event = self._event_of(pod, text)
        parts = self._parts.get(pod, [])
        if event is None:
            if parts and parts[-1].end is None and text.strip() and self._has_room(pod, text, parts[-1]):
                stream = "stdout" if _RANK in text else "stderr"
                parts[-1].lines.append(OutputLine(stream, at_s - parts[-1].began_s, text[:_MOST_OF_LINE]))
            elif text.strip():
                self.last[pod] = text.strip()[:_MOST_LAST]
            return
        kind = event.get("event")
        if kind == "up":
            self.up.setdefault(pod, event)
        elif kind == "lacks":
            self.lacks[pod] = str(event.get("what", ""))
        elif kind == "begin" and len(parts) < _MOST_PARTS:
            self._parts.setdefault(pod, parts).append(_PodPart(str(event.get("check", "")), at_s))
        elif kind == "end" and parts:
            parts[-1].end = event
        elif kind == "done":
            self._done.add(pod)

    def _event_of(self, pod: str, text: str) -> dict[str, Any] | None:
        """Return the event of a line; a rank's line is none, since ranks do not know the key of the first event."""
        event = _event(text) if self._speaks(pod) else None
        if event is None or (pod in self.up and event.get("key") != self.up[pod].get("key")):
            return None
        return event if self._has_room(pod, text) else None

    def _has_room(self, pod: str, text: str, part: _PodPart | None = None) -> bool:
        self._kept[pod] += min(len(text), _MOST_OF_LINE)
        return self._kept[pod] <= _MOST_TEXT // self._speakers and (part is None or len(part.lines) < _MOST_LINES)

    def running(self) -> str:
        """Return the check that runs, empty between checks."""
        last = [parts[-1] for parts in self._parts.values() if parts]
        return next((part.check for part in last if part.end is None), "")

    def has_ended(self, number: int) -> bool:
        """Tell whether the check of this number, in the order of the plan, has ended in every pod that speaks."""
        ends = [parts[number].end for parts in self._parts.values() if len(parts) > number]
        return len(ends) >= self._speakers and all(end is not None for end in ends)

    def outcome(self, number: int) -> JobOutcome | None:
        """Return how the check of this number went in all pods together, None where it did not begin."""
        parts = [found[number] for found in self._parts.values() if len(found) > number]
        if not parts:
            return None
        lines = tuple(sorted((line for part in parts for line in part.lines), key=lambda line: line.at_s))
        ends = [part.end for part in parts if part.end is not None]
        last_s = max((line.at_s for line in lines), default=0.0)
        if len(ends) < self._speakers:
            return JobOutcome("lost", last_s, lines=lines, problem="its pods ended in the middle of this check")
        worst = max(ends, key=_badness)
        ending = _ending(worst)
        return JobOutcome(
            ending,
            _number(worst, "seconds"),
            _number(worst, "ending_s"),
            rc=_code(worst, "rc"),
            signal=_code(worst, "signal"),
            lines=lines,
            problem=str(worst.get("problem", "")),
        )


def _badness(end: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Order ends of one check: a program that did not start, a deadline, a code."""
    return _ending(end) == "not_started", _ending(end) == "deadline", _code(end, "rc") != 0


def _ending(end: Mapping[str, Any]) -> Ending:
    word = end.get("ending")
    return "not_started" if word == "not_started" else "deadline" if word == "deadline" else "exited"


def _number(end: Mapping[str, Any], name: str) -> float:
    value = end.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value <= _LONGEST_S else 0.0


def _code(end: Mapping[str, Any], name: str) -> int | None:
    value = end.get(name)
    return value if type(value) is int else None  # False would count as success


def _event(text: str) -> dict[str, Any] | None:
    at = text.find(_MARK)
    if at < 0:
        return None
    try:
        value = node_json.loads(text[at:])
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    known = {name: value[name] for name in _KEYS if isinstance(value.get(name), str | int | float)}
    return {name: its[:_MOST_WORDS] if isinstance(its, str) else its for name, its in known.items()}


JOB = "job"  # what a progress is about before the first check
_NAME = "clusterctl"
_RIGHTS = (("get", ""), ("delete", ""), ("list", "pods"), ("get", "pods/log"), ("delete", "configmaps"))


def prepared(options: ValidationOptions, wish: PodsOptions) -> tuple[PodsPlan, ValidationJob]:
    """Return the checks that run, and the manifests of the job that runs them.

    Raises:
        ConfigError: a value is malformed, or not one check can run in such pods.
    """
    plan = plan_of(registry.select(options.checks, options.suite), wish, options.timeout_s)
    if not plan.checks:
        why = "; ".join(f"{name}: {words}" for name, words in plan.left_out.items())
        raise ConfigError(f"Not one check can run in the pods ({why}); name others with --checks.")
    return plan, validation_job.build(f"{_NAME}-{secrets.token_hex(4)}", wish, plan.planned)


def cluster(wish: PodsOptions) -> Kubectl:
    """Return the cluster that a wish means, with its context and namespace known."""
    kubectl = Kubectl(wish.kubeconfig, wish.context, wish.place)
    kubectl.resolve()
    return kubectl


def checked(kubectl: Kubectl, job: ValidationJob) -> None:
    """Have the API server check manifests and rights before anything is created.

    Raises:
        ClusterctlError: it refuses one; the sentence says which and why.
    """
    kubectl.check(job.job, job.programs)
    for verb, named in _RIGHTS:
        resource = named or job.resource
        if not kubectl.may(verb, resource):
            raise ValidationCouldNotRunError(kubectl_output.no_right(verb, resource, kubectl.namespace))


def validate(
    options: ValidationOptions, wish: PodsOptions, on_event: Callable[[ValidationEvent], None] | None = None
) -> ValidationRecord:
    """Validate pods of one job, which is deleted whatever happens.

    Returns:
        The record, as :func:`clusterctl.validation.run.validate` does; its hosts are the pods with ranks.

    Raises:
        ConfigError: the kubeconfig, the namespace or an option is wrong.
        ValidationCouldNotRunError: the cluster does not answer, refuses, or does not start the job in time.
    """
    plan, job = prepared(options, wish)
    kubectl = cluster(wish)
    checked(kubectl, job)
    sources = InventorySources((f"{OF_KUBERNETES}{kubectl.context or 'in-cluster'}/{kubectl.namespace}",))

    def work(run: runs.Run) -> ValidationRecord:
        return _PodsRun(kubectl, plan, job, run, sources, options, wish, on_event or ignore).go()

    return in_a_run(sources, options, work)


class _PodsRun:
    """One run, from the creation of the job to the record."""

    def __init__(
        self,
        kubectl: Kubectl,
        plan: PodsPlan,
        job: ValidationJob,
        run: runs.Run,
        sources: InventorySources,
        options: ValidationOptions,
        wish: PodsOptions,
        tell: Callable[[ValidationEvent], None],
    ) -> None:
        self._kubectl, self._plan, self._job, self._run = kubectl, plan, job, run
        self._sources, self._options, self._wish, self._tell = sources, options, wish, tell
        self._started = now()
        self._results = CheckResults(tell)
        self._output = PodOutput(job.speakers, job.speaks)
        self._pods: Mapping[str, Pod] = {}
        self._notes: tuple[str, ...] = ()
        self._began = 0.0
        paths.private_folder(paths.logs_dir(run.folder))
        self._expectations = self._expected({})

    def go(self) -> ValidationRecord:
        wish = self._wish
        held = PodJob(self._kubectl, self._job, wish.start_within_s, wish.time_s, lambda w: self._say(JOB, w))
        try:
            with held:
                self._pods = self._by_host(held.wait())
                self._conclude_reachable()
                self._began = time.monotonic()
                self._read(held)
                self._pods = {**self._pods, **self._by_host(held.pods)}
                self._judge_rest(held.gone)
        except BaseException:
            with suppress(OSError):
                saved(self._run, self._record())
            raise
        self._notes += (held.left,) if held.left else ()
        return concluded(self._run, self._record(), self._sources, self._options)

    # --- the job ------------------------------------------------------------------------------------------------------

    def _read(self, held: PodJob) -> None:
        """Take the logs as they come, and judge each check when it has ended in all pods."""
        number, before = 0, ""
        for pod, text, at in held.lines(lambda: self._output.is_done):
            self._output.take(pod, text, at - self._began)
            if (check := self._output.running()) and check != before:
                self._tell(CheckStarted(check, len(self._results.all) + 1, self._total, self._deadline(check)))
                before = check
            while number < len(self._plan.planned) and self._output.has_ended(number):
                number += 1
                self._judge_ended(number)

    def _judge_ended(self, ended: int) -> None:
        """Judge the checks whose last run is among the first ``ended`` runs."""
        for check in self._plan.checks:
            if check.name not in self._results and self._plan.numbers[check.name][-1] < ended:
                self._results.finish(self._judged(check))

    def _judge_rest(self, gone: str) -> None:
        """Judge what has not ended, and skip what has not begun."""
        if gone and self._output.last:
            pod, words = next(iter(sorted(self._output.last.items())))
            gone = f"{gone}; the log of pod {pod} ends with: {words}"
        why = self._lacks() or gone
        for check in self._plan.checks:
            if check.name in self._results:
                continue
            first = self._plan.numbers[check.name][0]
            if self._output.outcome(first) is None:
                self._results.skip(check.name, why or "it did not begin", self._skipped_as())
            else:
                found = self._result(check, first)
                self._results.finish(ended_during(found, why) if why else found)
        for name, why in self._plan.left_out.items():
            self._results.skip(name, why)

    def _skipped_as(self) -> Verdict:
        """Return ERROR for the first check that did not begin, SKIP for those after it."""
        return Verdict.SKIP if any(result.is_bad for result in self._results.all) else Verdict.ERROR

    def _lacks(self) -> str:
        """Say what the image or the job lacks for the checks, empty where it lacks nothing."""
        if not self._output.lacks:
            return ""
        pod, what = next(iter(sorted(self._output.lacks.items())))
        return f"pod {pod} of image {self._wish.image} lacks {what}; mend the image or its --python"

    # --- one check ----------------------------------------------------------------------------------------------------

    def _judged(self, check: Check) -> CheckResult:
        """Return the result of a check's first run, or of its second where the first stands out."""
        first, *again = self._plan.numbers[check.name]
        self._expectations = self._expected(self._versions())
        found = self._result(check, first)
        result = self._expectations.assess(found)
        if again and found.verdict is Verdict.PASS and speed_verdict.suspects(result):
            result = self._expectations.confirmed(result, self._result(check, again[0]))
        return result

    def _result(self, check: Check, number: int) -> CheckResult:
        outcome = self._output.outcome(number)
        if outcome is None:  # pragma: no cover - asked for runs that began
            raise AssertionError
        judgement = judging.of_check(check, self._site, outcome)
        attempt = number - self._plan.numbers[check.name][0]
        log = f"logs/{check.name}{f'-{attempt + 1}' if attempt else ''}.log"
        files.write_atomically(self._run.folder / log, _log(self._plan.planned[number].argv, outcome))
        repeat = self._repeat(check.name)
        return judgement.result(
            check.name,
            seconds=round(outcome.seconds, 3),
            deadline_s=self._deadline(check.name),
            command=self._plan.planned[number].argv,
            repeat=repeat,
            next_step=judgement.next_step or (repeat if judgement.verdict is not Verdict.PASS else ""),
            log=log,
        )

    @property
    def _site(self) -> Site:
        names = {pod.name: host for host, pod in self._pods.items()}
        return site_of(self._wish, self._versions().get("openmpi", ""), names)

    def _conclude_reachable(self) -> None:
        nodes = {pod.node for host, pod in self._pods.items() if host in self._job.ranks}
        count = len(self._job.ranks)
        self._results.finish(
            CheckResult(
                check=registry.REACHABLE,
                verdict=Verdict.PASS,
                reason=f"{count} pods run on {len(nodes)} node{'s' if len(nodes) != 1 else ''}",
                seconds=round((now() - self._started).total_seconds(), 3),
                repeat=self._options.repeat(self._sources),
                measurements=(Measurement(name="nodes_asked", value=count, unit="nodes"),),
            )
        )

    # --- the record ---------------------------------------------------------------------------------------------------

    def _record(self) -> ValidationRecord:
        pods = {host: pod.node for host, pod in self._pods.items() if host in self._job.ranks}
        versions = self._versions()
        return ValidationRecord(
            clusterctl_version=__version__,
            run_id=self._run.record.run_id,
            inventory=str(self._sources),
            started=self._started,
            finished=max(now(), self._started),
            launch_node="launcher" if self._job.kind == "MPIJob" else self._job.ranks[0],
            hosts=self._job.ranks,
            slots=dict.fromkeys(self._job.ranks, self._wish.ranks_per_pod),
            openmpi_version=versions.get("openmpi", ""),
            suite=self._options.suite.name,
            versions=versions,
            notes=(*self._notes, *self._where(pods), *self._expectations.notes),
            folder=str(self._run.folder),
            via=self._wish.kind,
            pods_job=f"{self._job.kind} {self._job.name} in namespace {self._kubectl.namespace}",
            pods=pods,
            verdict=worst(self._results.all),
            checks=self._results.all,
        )

    def _where(self, pods: Mapping[str, str]) -> list[str]:
        """Say on which nodes the pods ran that a bad check names."""
        named = dict.fromkeys(host for check in self._results.all for host in check.named if pods.get(host))
        return [f"{host} ran on node {pods[host]}." for host in named]

    def _versions(self) -> dict[str, str]:
        up = next((event for _, event in sorted(self._output.up.items())), {})
        said = str(up.get("mpirun", "")).split()
        found = {"openmpi": said[-1] if said else "", "pytorch": str(up.get("torch", ""))}
        return {name: version for name, version in found.items() if version}

    def _expected(self, versions: Mapping[str, str]) -> Expectations:
        measured = MeasuredRun(paths.cluster_id(self._sources), len(self._job.ranks), versions)
        return Expectations(self._options.suite, measured, {}, remembered=self._options.remembered)

    def _by_host(self, pods: tuple[Pod, ...]) -> dict[str, Pod]:
        prefix = f"{self._job.name}-"
        return {pod.name.removeprefix(prefix): pod for pod in pods}

    @property
    def _total(self) -> int:
        return len(self._plan.checks) + 1

    def _deadline(self, check: str) -> float:
        return next((one.deadline_s for one in self._plan.planned if one.name == check), 0.0)

    def _repeat(self, check: str) -> str:
        return self._options.repeat(self._sources, check)

    def _say(self, check: str, words: str) -> None:
        self._tell(CheckProgress(check, words))


def _log(argv: tuple[str, ...], outcome: JobOutcome) -> str:
    head = [f"# command  {' '.join(argv)}", f"# outcome  {outcome.ending} rc={outcome.rc} {outcome.problem}"]
    return "\n".join([*head, *(f"{line.at_s:9.3f} {line.stream} {line.text}" for line in outcome.lines)]) + "\n"
