"""Running one check on a team: launch, judge, measure again, search for the bad node, and keep the log."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules import launchable, logins
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.diagnosis.skew import PROVISION
from clusterctl.launch import mpirun, mpirun_job, srun
from clusterctl.model.results import CheckProgress, CheckResult, CheckStarted, Culprit, Verdict
from clusterctl.model.snapshot import SLICES
from clusterctl.remote import facts, login_probe, supervised_job
from clusterctl.state import files
from clusterctl.support.words import and_more
from clusterctl.validation import bisect, confirming, ports
from clusterctl.validation.checks import base, causes, judging, mpirun_output, wrong_data
from clusterctl.validation.checks.causes import Cause
from clusterctl.validation.checks.judging import STARTED
from clusterctl.validation.checks.rank_output import events_of
from clusterctl.validation.gate import not_installed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.findings import Finding
    from clusterctl.model.hosts import Host
    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.probe import Probe
    from clusterctl.model.results import CheckResult, Launch, ValidationEvent
    from clusterctl.state.runs import Run
    from clusterctl.validation.checks.base import Check, Site
    from clusterctl.validation.expectations import Expectations
    from clusterctl.validation.options import ValidationOptions
    from clusterctl.validation.team import Team


# Looking for the cause of a failed job on the spot: facts of the named nodes, ports between nodes, logins of mpirun.
#
# Each step runs only where the steps before found nothing. The rules of doctor judge what is seen.

_OF_MPI = ("openmpi", "mpi4py")
_FACTS_S = 20.0
_CONNECT_S = 2.0  # tried twice, so that the ports are known in less than ten seconds; longer on busy machines
_LOGIN_S, _LOGINS_S, _ANSWER_S = 4, 6.0, 9.0
_ALL_LOGINS_UP_TO, _RADIX = 8, 64  # in larger teams, a node logs in only to those that mpirun's daemon there starts


def explained_on_the_spot(
    result: CheckResult, outcome: JobOutcome, team: Team, control: Path, tell: Callable[[ValidationEvent], None]
) -> CheckResult:
    """Return the result with the causes that a look at the nodes finds; unchanged where it finds none."""
    if not causes.is_open(result, outcome):
        return result
    named = result.hosts or tuple(team.nodes)
    told = judging.causes_told(team.site, outcome)
    tell(CheckProgress(result.check, "looking at the nodes for what hinders the job"))
    found = _on_nodes(team, named, control) or _changed_files(team, named, control)
    if not found and not causes.is_certain(result, outcome):
        tell(CheckProgress(result.check, "trying the ports between the nodes"))
        found = ports.between(team, _CONNECT_S * causes.slowdown(result), control).causes
    # In an allocation, mpirun starts its daemons by srun, and ssh between the nodes may be forbidden.
    by_ssh = team.nodes[team.launch_node].host.step is None if team.launch_node in team.nodes else True
    if by_ssh and not found and not causes.came_up(result):
        tell(CheckProgress(result.check, f"trying the logins of {team.launch_node}"))
        found, missed = _logins(team, [team.launch_node], tuple(team.nodes), control)
        if not found and len(team.nodes) > 2:  # noqa: PLR2004 - a tree of daemons has three nodes
            tell(CheckProgress(result.check, "trying the logins of the other nodes"))
            found, missed = _logins(team, list(team.nodes), named, control)
        told = causes.by_logins(told, missed)
    return causes.explained(result, found, told) if found else result


# Doctor's findings before the run that stop jobs, or have ranks come up where they should not.
_HINDERING = frozenset({"names", "network", "parameters", "job_user"})


def explained_by_known(result: CheckResult, known: Sequence[Finding]) -> CheckResult:
    """Return the result with what was known before it of the nodes that it names, or of any where it names none."""
    judged = result.culprits or result.next_step or result.comparisons or wrong_data.traces(result.ranks)
    if not result.is_bad or judged:
        return result
    there = {rank.host for rank in result.ranks}
    fitting = [
        one
        for one in known
        if one.check in _HINDERING
        and there.intersection(one.hosts)
        and (not result.hosts or set(result.hosts) & set(one.hosts))
    ]
    return causes.explained(result, causes.of_findings(fitting))


def _on_nodes(team: Team, names: Sequence[str], control: Path) -> tuple[Cause, ...]:
    """Gather the facts of nodes anew, and return what hinders a launch on them."""
    probe = _probe(_hosts(team, names), control)
    ranks = sum(team.slots.values())
    found = [
        finding
        for name in names
        if name in probe.facts
        for finding in launchable.of_node(name, probe.facts[name], slots=team.nodes[name].slots, ranks=ranks)
    ]
    told = {name for finding in found if finding.severity == "error" for name in finding.hosts}
    damaged = [
        Cause((name,), problem, PROVISION, subject="launch")
        for name, node in probe.facts.items()
        if name not in told and (problem := not_installed(node))
    ]
    killed = [
        Cause(
            (name,),
            f"the kernel killed {count} of its processes for lack of memory since this validation began",
            "give the node more memory or fewer ranks; 'journalctl -k' names the processes",
            subject="memory",
        )
        for name, node in probe.facts.items()
        if name in team.nodes and (count := node.memory_kills - team.nodes[name].facts.memory_kills) > 0
    ]
    late = [failure for failure in probe.failures.values() if failure.kind == "timeout"]
    slow = len(late) * 2 > max(2, len(names))  # most of them are late: a busy machine, and not a node that is gone
    gone = [
        Cause((name,), failure.message.rstrip("."), "see whether it is up, and look at its console")
        for name, failure in probe.failures.items()
        if failure.kind != "timeout" or not slow
    ]
    return (*gone, *killed, *damaged, *causes.of_findings(found))


def _changed_files(team: Team, names: Sequence[str], control: Path) -> tuple[Cause, ...]:
    """Compare each byte of Open MPI and mpi4py, some megabytes; a look before the run compares sizes and modes."""
    wanted = [one for one in training_stack.ARTIFACTS if one["name"] in _OF_MPI]
    every = tuple(range(SLICES))
    probe = facts.gather(_hosts(team, names), artifacts=wanted, content=every, timeout_s=_FACTS_S, control_dir=control)
    return tuple(
        Cause((name,), problem, PROVISION, subject="launch")
        for name, node in probe.facts.items()
        if (problem := not_installed(node, _OF_MPI))
    )


def _logins(
    team: Team, sources: Sequence[str], targets: Sequence[str], control: Path
) -> tuple[tuple[Cause, ...], frozenset[str]]:
    """Have nodes log in to others, as mpirun does: the launch node to all, and in a tree others to those below them.

    Returns:
        The causes, and the nodes to which a login failed.
    """
    names = list(team.nodes)
    below = {
        source: [
            name
            for name in targets
            if name != source
            and (sources == [team.launch_node] or len(names) <= _ALL_LOGINS_UP_TO or _parent(names, name) == source)
        ]
        for source in sources
    }
    asked = [
        login_probe.Login(
            replace(team.nodes[source].host, become=False),
            tuple(
                login_probe.LoginTarget(name, team.nodes[name].host.address, team.nodes[name].host.port) for name in its
            ),
            team.nodes[source].as_user,
        )
        for source, its in below.items()
        if its
    ]
    reports = login_probe.gather(
        asked, login_timeout_s=_LOGIN_S, budget_s=_LOGINS_S, timeout_s=_ANSWER_S, control_dir=control
    )
    view = View(
        hosts=tuple(node.host for node in team.nodes.values()),
        nodes={name: node.facts for name, node in team.nodes.items()},
        logins=reports,
    )
    failed = {(source, one.target) for source, report in reports.items() for one in report.failures}
    found = refused_by_few(logins.findings(view), reports, team.launch_node)
    return causes.of_findings(found, failed), frozenset(target for _source, target in failed)


def _parent(names: Sequence[str], name: str) -> str:
    """Return the node whose daemon starts the one of a node, by PRRTE's default (routed_radix 64)."""
    return names[max(0, names.index(name) - 1) // _RADIX]


def refused_by_few(
    found: Iterable[Finding], reports: Mapping[str, login_probe.LoginReport], source: str
) -> tuple[Finding, ...]:
    """Return findings about logins, of which those that few nodes refuse name the node that refuses alone.

    Most nodes accept the key of ``source``, so the key is right.
    """
    report = reports.get(source)
    if report is None or report.passed <= len(report.failures):
        return tuple(found)
    refused = {failure.target for failure in report.failures if failure.kind == "refused"}
    return tuple(
        replace(one, hosts=others)
        if (others := tuple(host for host in one.hosts if host != source)) and refused.issuperset(others)
        else one
        for one in found
    )


def _hosts(team: Team, names: Sequence[str]) -> list[Host]:
    return [replace(team.nodes[name].host, become=False) for name in names if name in team.nodes]


def _probe(hosts: Sequence[Host], control: Path) -> Probe:
    return facts.gather(hosts, artifacts=training_stack.ARTIFACTS, timeout_s=_FACTS_S, control_dir=control)


# Nodes that a CPU quota held back during a check, by the kernel's own count: no statistics are needed.

CPU_QUOTA = "cpu_quota"
_LEAST_S, _LEAST_PART = 0.5, 0.1  # seconds, and part of the quota's periods; less does not explain a slow node
_MOST_NAMED = 6
_CURE = "raise its CPU quota (cpu.max, CPUQuota, or the limit of the container), or give it fewer slots"


@dataclass(frozen=True)
class HeldBack:
    """A node whose quota is below its slots, and the seconds for which its processes stood still."""

    host: str
    seconds: float
    cores: float
    slots: int

    @property
    def words(self) -> str:
        """One sentence with the kernel's count and the quota."""
        quota = f"{self.cores:g} {'of a core' if self.cores < 1 else 'cores'}"
        slots = f"{self.slots} slot{'s' if self.slots > 1 else ''}"
        return f"{self.host} was held back {self.seconds:.1f} s by its control group (quota {quota} for {slots})"


def throttled(lines: Iterable[OutputLine], site: Site) -> tuple[HeldBack, ...]:
    """Return the nodes that were held back, in the order of the hostfile.

    A quota that covers the slots is meant so, and its node is not named.
    """
    last: dict[str, HeldBack] = {}
    for event in events_of(lines, "held_back"):
        try:
            host = site.names.get(str(event["host"]), str(event["host"]))
            seconds, part, cores = (float(event[name]) for name in ("held_s", "held_part", "quota_cores"))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        slots = site.slots.get(host, 0)
        if _LEAST_S <= seconds < math.inf and part >= _LEAST_PART and 0 <= cores < slots:
            last[host] = HeldBack(host, seconds, cores, slots)
    return tuple(last[host] for host in site.slots if host in last)


def with_throttling(result: CheckResult, held: Sequence[HeldBack]) -> CheckResult:
    """Return the result as a FAIL by the quota; what else these nodes are blamed for follows from it.

    Wrong answers do not follow from a quota, so they keep their place. A check that could not be judged stays so.
    """
    names = tuple(one.host for one in held)
    words = and_more((one.words for one in held), _MOST_NAMED, "; ")
    others = tuple(culprit for culprit in result.culprits if not set(culprit.nodes) & set(names))
    is_wrong = any(report.wrong and report.compared for report in result.ranks)
    blamed = dict.fromkeys((*(result.hosts if is_wrong else ()), *names, *(n for one in others for n in one.blamed)))
    return result.model_copy(
        update={
            "verdict": result.verdict if result.verdict is Verdict.ERROR else Verdict.FAIL,
            "reason": "; ".join((words, *([] if result.verdict is Verdict.PASS else [result.reason]), _CURE)),
            "hosts": tuple(blamed),
            "culprits": (
                *(
                    Culprit(
                        kind="node",
                        nodes=(one.host,),
                        quantity=CPU_QUOTA,
                        ratio=one.cores / one.slots,
                        words=one.words,
                        cure=_CURE,
                    )
                    for one in held
                ),
                *others,
            ),
        }
    )


_MPI_PARAMETERS = {"mpi_yield_when_idle": "1"}  # ranks may outnumber the cores, and the checks are about answers
_FIRST, _CONFIRMING, _SEARCHING = 1, 2, 3  # attempts at a check; a search counts on from its number, or from the last
_AT_THE_END = 100  # the first attempt of a search at the end of a run
# A rank's first and last line. The ranks of torchrun are announced before they exist, so they are counted by number.
# The bounds keep the search short on lines that nodes make up.
_STARTED = re.compile(r'"event": "started", [^{}]{0,300}"rank": (\d{1,9})')
_ANSWERED = re.compile(r'(?:"event": "result", [^{}]{0,300}|\{)"rank": (\d{1,9})')


@dataclass(frozen=True)
class _Job:
    """One launch of a check."""

    spec: supervised_job.JobSpec
    site: base.Site
    deadline_s: float
    processes: int
    notes: tuple[str, ...]


class CheckRunner:
    """Runs the checks of one validation."""

    def __init__(
        self,
        options: ValidationOptions,
        repeat: Callable[[str], str],
        run: Run,
        expectations: Expectations,
        tell: Callable[[ValidationEvent], None],
        control: Path,
        gone: Callable[[], str] = str,
        known: Sequence[Finding] = (),
    ) -> None:
        """Prepare the runner.

        ``repeat`` gives the command that repeats a check. ``gone`` says why the nodes are no longer ours, '' while they
        are. ``known`` is what doctor found before the run.
        """
        self._known = known
        self._options, self._repeat, self._run, self._expectations = options, repeat, run, expectations
        self._tell, self._control, self._gone = tell, control, gone
        self._started_s = 0.0  # the longest time that a job of this run took to start all its ranks

    def run(self, check: Check, team: Team, number: int, total: int) -> tuple[CheckResult, JobOutcome]:
        """Run a check, measure again what stands out, and search for the node that makes it hang or crash.

        Returns:
            The result, and the outcome of the job that it is about.
        """
        place = f"{self._run.record.run_id}-{number}"

        def tell_start(deadline_s: float) -> None:
            self._tell(CheckStarted(check.name, number, total, deadline_s))

        first, outcome = self._attempt(check, team, place, on_start=tell_start)
        if first.is_bad and self._gone():
            return first, outcome
        result = self._expectations.assess(first)
        held = throttled(outcome.lines, team.site)
        if held:  # by the kernel's own count, so neither a second run nor a search has to confirm it
            return with_throttling(result, held), outcome
        attempts = itertools.count(_CONFIRMING)
        if first.verdict is Verdict.PASS:
            outcomes = [outcome]

            def take(wanted: Check = check) -> CheckResult:
                found, last = self._attempt(wanted, team, place, next(attempts))
                outcomes.append(last)
                return found

            result = confirming.confirmed(
                check,
                first,
                result,
                take,
                lambda words: self._tell(CheckProgress(check.name, words)),
                self._expectations,
                self._options.patience_s,
            )
            outcome = outcomes[-1]
        result = explained_on_the_spot(result, outcome, team, self._control, self._tell)
        result = explained_by_known(result, self._known)
        if self._options.searches and bisect.is_wanted(result, outcome):
            result = self.searched(check, team, number, result, max(_SEARCHING, next(attempts)))
        return result, outcome

    def searched(
        self,
        check: Check,
        team: Team,
        number: int,
        result: CheckResult,
        attempt: int = _AT_THE_END,
        *,
        wrong: bool = False,
    ) -> CheckResult:
        """Launch the check on ever fewer nodes, and blame those that make it hang, crash or get wrong values.

        ``attempt`` is the number of the first launch. With ``wrong``, wrong values are searched for.
        """
        place = f"{self._run.record.run_id}-{number}"
        attempts = itertools.count(attempt)

        def launch(group: tuple[str, ...], launcher: str, stop: threading.Event) -> Launch:
            started = team.launched_by(launcher, group)
            found, outcome = self._attempt(check, started, place, next(attempts), stop)
            launch = bisect.launched(group, found, outcome, wrong=wrong)
            return launch.model_copy(update={"launch_node": launcher})

        search = bisect.find(
            check.name,
            tuple(team.nodes),
            launch,
            lambda words: self._tell(CheckProgress(check.name, words)),
            launcher=team.launch_node,
            switches=team.site.switches,
        )
        blamed = tuple(dict.fromkeys(name for culprit in search.culprits for name in culprit.blamed))
        return result.model_copy(
            update={
                "search": search,
                "culprits": search.culprits,
                "hosts": blamed or result.hosts,
                "next_step": "",
                "reason": f"{search.words}; {result.reason}",
            }
        )

    def _attempt(
        self,
        check: Check,
        team: Team,
        place: str,
        attempt: int = _FIRST,
        stop: threading.Event | None = None,
        on_start: Callable[[float], None] = lambda _deadline_s: None,
    ) -> tuple[CheckResult, JobOutcome]:
        """Launch a check once, judge it and keep its log; ``stop`` ends the job once it is set."""
        again = f"-{attempt}" if attempt > _FIRST else ""
        job = self._job(check, team, f"{place}{again}", stacks=attempt == _FIRST)
        on_start(job.deadline_s)
        began = time.monotonic()
        logins = team.logins(self._control)
        outcome = supervised_job.run(
            logins[team.launch_node],
            job.spec,
            peers=[login for name, login in logins.items() if name != team.launch_node],
            on_line=_RankCounter(check.name, job.processes, None if stop else self._tell),
            stop=stop,
        )
        judgement = judging.of_check(check, job.site, outcome)
        if judgement.verdict is not Verdict.PASS and outcome.ending == "exited" and not outcome.sweeps:
            # mpirun may lose a whole node and end with code 0; then the nodes have not been swept yet
            outcome = replace(outcome, sweeps=supervised_job.sweep(list(logins.values()), job.spec.job))
            judgement = judging.of_check(check, job.site, outcome)
        starts = [one.value for one in judgement.measurements if one.name == STARTED]
        self._started_s = max([self._started_s, *starts])
        log = f"logs/{check.name}{again}.log"
        files.write_atomically(self._run.folder / log, _log(job.spec, outcome, job.site, job.notes))
        left = [f"{one.host}: {words}" for one in outcome.sweeps for words in (*one.left, one.problem) if words]
        return judgement.result(
            check.name,
            seconds=round(time.monotonic() - began, 3),
            deadline_s=job.deadline_s,
            command=outcome.argv or job.spec.argv,
            repeat=self._repeat(check.name),
            stacks=outcome.stacks,
            log=log,
            left_behind=tuple(left),
        ), outcome

    def _job(self, check: Check, team: Team, name: str, *, stacks: bool) -> _Job:
        """Return the job of a check; ``stacks`` asks for the stacks of ranks that are stuck at the deadline."""
        site = base.placed(check, team.site)
        deadline = self._options.timeout_s or base.deadline_s(check, site, self._started_s)
        told = mpirun_output.ENDS_ARE_TOLD if mpirun.dialect(site.version) is mpirun.Dialect.PRRTE else {}
        wanted = mpirun_job.MpirunJob(
            program=check.program(site, deadline),
            job=name,
            per_node=check.per_node,
            path=self._options.path,
            mca={**_MPI_PARAMETERS, **told},
        )
        environment = team.environment
        via = self._options.via
        if via is not None and via.by_srun:
            line = srun.line(team.members, site.slots, wanted, team.launch_node, via.mpi)
            environment = {**environment, **line.environment}
        else:
            line = mpirun_job.line(team.members, site.slots, wanted, team.launch_node)
        spec = supervised_job.JobSpec(
            job=name,
            argv=line.argv,
            deadline_s=deadline,
            environment=environment,
            stacks=stacks,
        )
        processes = len(site.slots) if check.per_node else len(site.placement)
        site = replace(site, unused_rdma=line.path.unused_rdma)
        return _Job(spec, site, deadline, processes, line.path.notes)


class _RankCounter:
    """Counts the ranks that are up and those that have answered, and tells each change."""

    def __init__(self, check: str, ranks: int, tell: Callable[[ValidationEvent], None] | None) -> None:
        self._check, self._ranks, self._tell = check, ranks, tell
        self._up: set[str] = set()
        self._done: set[str] = set()

    def __call__(self, line: OutputLine) -> None:
        before = len(self._up), len(self._done)
        self._up.update(_STARTED.findall(line.text))
        self._done.update(_ANSWERED.findall(line.text))
        now = len(self._up), len(self._done)
        if now != before and self._tell is not None:
            self._tell(CheckProgress(self._check, f"{now[0]} of {self._ranks} ranks up, {now[1]} have answered"))


def _log(spec: supervised_job.JobSpec, outcome: JobOutcome, site: base.Site, notes: Iterable[str] = ()) -> str:
    """Return the log of a job: command, hostfile, end and lines; ``notes`` tell the place of each rank."""
    ended = {name: getattr(outcome, name) for name in ("ending", "rc", "ending_s", "seconds", "problem")}
    head = [
        f"# job      {spec.job}",
        f"# command  {shlex.join(outcome.argv or spec.argv)}",
        f"# hostfile {json.dumps(dict(site.slots))}",
        f"# outcome  {json.dumps(ended)}",
    ]
    head += [f"# place    {note}" for note in notes]
    for sweep in outcome.sweeps:
        found = [f"killed {words}" for words in sweep.killed] + [f"LEFT {words}" for words in sweep.left]
        head.append(f"# sweep    {sweep.host}: {sweep.problem or '; '.join(found) or 'nothing left'}")
    lines = [f"{line.at_s:9.3f} {line.stream} {line.text}" for line in outcome.lines]
    return "\n".join([*head, *lines]) + "\n"
