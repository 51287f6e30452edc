"""Running one check on a team: launch, judge, measure again, search for the bad node, and keep the log."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launch import mpirun, mpirun_job, srun
from clusterctl.model.results import CheckProgress, CheckStarted, Verdict
from clusterctl.remote import supervised_job
from clusterctl.state import files
from clusterctl.validation import bisect, confirming, on_the_spot
from clusterctl.validation.checks import base, held_back, mpirun_output, startup
from clusterctl.validation.checks.judging import STARTED

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.results import CheckResult, Launch, ValidationEvent
    from clusterctl.state.runs import Run
    from clusterctl.validation.checks.base import Check
    from clusterctl.validation.expectations import Expectations
    from clusterctl.validation.options import ValidationOptions
    from clusterctl.validation.team import Team

_MPI_PARAMETERS = {"mpi_yield_when_idle": "1"}  # ranks may outnumber the cores, and the checks are about answers
_FIRST, _CONFIRMING, _SEARCHING = 1, 2, 3  # attempts at a check; a search counts on from its number, or from the last
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
    ) -> None:
        """Prepare the runner.

        Args:
            options: deadline and search of the user.
            repeat: gives the command that repeats a check.
            run: the folder that keeps the logs.
            expectations: what figures are held against.
            tell: hears of the progress.
            control: the folder of the ssh connections that jobs share.
            gone: says why the nodes are no longer ours, '' while they are; a failed check asks.
        """
        self._options, self._repeat, self._run, self._expectations = options, repeat, run, expectations
        self._tell, self._control, self._gone = tell, control, gone
        self._started_s = 0.0  # the longest time that a job of this run took to start all its ranks

    def run(self, check: Check, team: Team, number: int, total: int) -> tuple[CheckResult, JobOutcome]:
        """Run a check, measure again what stands out, and search for the node that makes it hang or crash.

        Args:
            check: the check.
            team: the nodes that run it.
            number: its place among the checks of the run.
            total: the number of checks in the run.

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
        held = held_back.found(outcome.lines, team.site)
        if held:  # by the kernel's own count, so neither a second run nor a search has to confirm it
            return held_back.explained(result, held), outcome
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
        result = on_the_spot.explained(result, outcome, team, self._control, self._tell)
        if self._options.searches and bisect.is_wanted(result, outcome):
            result = self._searched(check, team, place, result, max(_SEARCHING, next(attempts)))
        return result, outcome

    def _searched(self, check: Check, team: Team, place: str, result: CheckResult, number: int) -> CheckResult:
        """Launch the check on ever fewer nodes, and blame the node or nodes that make it hang or crash."""
        attempts = itertools.count(number)

        def launch(group: tuple[str, ...], launcher: str, stop: threading.Event) -> Launch:
            started = team.launched_by(launcher, group)
            found, outcome = self._attempt(check, started, place, next(attempts), stop)
            return bisect.launched(group, found, outcome).model_copy(update={"launch_node": launcher})

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
                "culprits": (*search.culprits, *result.culprits),
                "hosts": blamed or result.hosts,
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
        judgement = check.judge(job.site, outcome)
        if judgement.verdict is not Verdict.PASS and outcome.ending == "exited" and not outcome.sweeps:
            # mpirun may lose a whole node and end with code 0; then the nodes have not been swept yet
            outcome = replace(outcome, sweeps=supervised_job.sweep(list(logins.values()), job.spec.job))
            judgement = check.judge(job.site, outcome)
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
        deadline = self._options.timeout_s or startup.deadline_s(check, site, self._started_s)
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
