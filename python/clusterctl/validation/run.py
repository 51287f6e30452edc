"""The verb validate: prove that the cluster computes, and name what is wrong.

The story: read the inventory, look at every node, leave out whoever does not answer or was never provisioned (and say
so in a verdict of its own), then launch one check after the other through mpirun on one of the nodes, each under its
own deadline, and keep verdicts and raw output.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clusterctl import __version__
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.trend import noise_of
from clusterctl.diagnosis import training_stack
from clusterctl.inventory import ansible_inventory
from clusterctl.launch import hostfile, mpirun
from clusterctl.model import nodeset
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.results import (
    CheckFinished,
    CheckProgress,
    CheckResult,
    CheckStarted,
    ValidationRecord,
    Verdict,
    worst,
)
from clusterctl.remote import ssh, supervised_job
from clusterctl.state import files, locks, paths, runs
from clusterctl.state import history as store
from clusterctl.suite import DEFAULT, GATE
from clusterctl.support.errors import ConfigError, ExitCode
from clusterctl.validation import bisect, expectations, suites
from clusterctl.validation import gate as ground
from clusterctl.validation.checks import base, network, registry

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.model.facts import NodeFacts, Probe
    from clusterctl.model.hosts import Inventory
    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.results import Launch, ValidationEvent
    from clusterctl.suite import Suite
    from clusterctl.validation.checks.base import Check

_MPI_PARAMETERS = {"mpi_yield_when_idle": "1"}  # answers count here, not speed, and slots may outnumber the cores
_MOST_NAMED = 6
# A rank's first and its last line; torchrun's ranks are announced before they exist, so they are counted by number.
_STARTED = re.compile(r'"event": "started", [^{}]*"rank": (\d+)')
_ANSWERED = re.compile(r'(?:"event": "result", [^{}]*|\{)"rank": (\d+)')


@dataclass(frozen=True)
class ValidationOptions:
    """What the user asked for.

    ``suite`` says which checks run, how long they measure and what their figures are to be; ``checks`` takes only some,
    None all of them. ``timeout_s`` replaces every check's own deadline. ``gate`` lets nothing be launched on nodes that
    differ. ``search`` looks for whoever made a check hang or crash; None does so except in the suite smoke, which is to
    be quick. ``remembered`` keeps the run in the history and compares it with that. ``argv`` is the command as it may
    be shown and kept. ``probe`` are facts that somebody has already gathered (with the watch entries of
    :func:`clusterctl.validation.gate.watch_entries`); None gathers them.
    """

    inventory: InventoryOptions = field(default_factory=InventoryOptions)
    launch_node: str | None = None
    suite: Suite = field(default_factory=suites.default)
    checks: tuple[str, ...] | None = None
    timeout_s: float | None = None
    gate: bool = True
    search: bool | None = None
    remembered: bool = True
    argv: tuple[str, ...] = ()
    probe: Probe | None = None


@dataclass(frozen=True)
class _Team:
    """The nodes that take part in a check, as the check sees them, and which of them launches."""

    launch_node: str
    version: str
    site: base.Site


@dataclass(frozen=True)
class _Jobs:
    """What it takes to launch a check, again and again: its nodes, its number in the run, and shared connections."""

    check: Check
    nodes: Mapping[str, ground.ReadyNode]
    number: int
    control: Path


def validate(
    path: Path, options: ValidationOptions | None = None, on_event: Callable[[ValidationEvent], None] | None = None
) -> ValidationRecord:
    """Validate the cluster of an inventory, and keep the record in the folder of this run.

    Args:
        path: the inventory.
        options: what the user asked for.
        on_event: hears what happens, as it happens.

    Returns:
        The record. Its verdict is ERROR where nothing could be launched: nobody answered, or nobody was provisioned.

    Raises:
        ConfigError: the inventory, an option or a check's name is wrong, or another run holds a host.
    """
    options = options or ValidationOptions()
    checks = registry.select(options.checks, options.suite)
    cluster = ansible_inventory.load(path, options.inventory)
    _refuse_unknown_launch_node(cluster, options)
    command = " ".join(options.argv) or f"clusterctl validate {path}"
    with locks.HostLock(cluster.selected_hosts, command):
        run = runs.start("validate", cluster.path, options.argv, runs.versions())
        try:
            record = _Validation(cluster, options, checks, run, on_event or _nobody).go()
        except KeyboardInterrupt:
            run.update(outcome="interrupted", exit_code=int(ExitCode.INTERRUPTED), finished=_now())
            raise
        except BaseException as error:
            run.update(outcome="failed", exit_code=int(ExitCode.BAD_CONFIG), message=str(error), finished=_now())
            raise
        finally:
            run.close()
        outcome: Literal["done", "failed"] = "done" if record.verdict is Verdict.PASS else "failed"
        run.update(
            outcome=outcome,
            exit_code=int(exit_code(record)),
            message="; ".join(f"{check.check}: {check.reason}" for check in record.checks if check.is_bad),
            finished=_now(),
        )
    return record


def exit_code(record: ValidationRecord) -> ExitCode:
    """Return what the command line ends with: 0, 10 (something is wrong) or 11 (it could not run)."""
    codes = {Verdict.PASS: ExitCode.OK, Verdict.FAIL: ExitCode.VALIDATION_FAILED}
    return codes.get(record.verdict, ExitCode.VALIDATION_ERROR)


class _Validation:
    """One run, from the facts to the record."""

    def __init__(
        self,
        cluster: Inventory,
        options: ValidationOptions,
        checks: Sequence[Check],
        run: runs.Run,
        tell: Callable[[ValidationEvent], None],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._checks = checks
        self._run = run
        self._tell = tell
        self._results: dict[str, CheckResult] = {}
        self._total = len(checks) + len(GATE)
        self._started = _now()
        self._nodes: dict[str, ground.ReadyNode] = {}
        self._launch_node = ""
        self._slots: dict[str, int] = {}
        self._version = ""
        self._versions: dict[str, str] = {}
        self._fabric: dict[str, str] = {}
        paths.private_folder(paths.logs_dir(run.folder))

    def go(self) -> ValidationRecord:
        looked = ground.Ground(
            self._cluster, self._tell, gate=self._options.gate, repeat=self._repeat(None), total=self._total
        )
        probe, alike = looked.judge(self._options.probe)
        self._nodes, self._results = looked.nodes, looked.results
        self._run.facts({name: node.model_dump(mode="json") for name, node in probe.facts.items()})
        nodes = {name: node.facts for name, node in self._nodes.items()}
        self._versions = training_stack.versions(nodes)
        asked = expectations.MeasuredRun(
            paths.cluster_id(self._cluster.path), len(self._cluster.selected_hosts), self._versions
        )
        self._appraiser = expectations.Appraiser(self._options.suite, asked, nodes, remembered=self._options.remembered)
        self._fabric = {name: words for name, node in nodes.items() if (words := _way(node))}
        try:
            if self._nodes and not alike:
                self._skip_all("the nodes differ; --no-gate runs it nevertheless")
            elif self._nodes:
                self._choose_launch_node()
                self._run_checks()
            else:
                self._skip_all("no node can take part")
        except BaseException:
            self._skip_all("the run was interrupted", Verdict.ERROR)  # what was left undone makes no PASS
            self._save(self._record())
            raise
        record = self._save(self._record())
        return self._save(self._remembered(record)) if self._options.remembered else record

    def _remembered(self, record: ValidationRecord) -> ValidationRecord:
        """Put the run beside earlier ones, which adds what changed since them."""
        history = self._options.suite.history
        noise = noise_of(history)
        record, warnings = store.remember(paths.cluster_id(self._cluster.path), record, noise=noise)
        return record.model_copy(update={"notes": (*record.notes, *warnings)})

    # --- the checks ---------------------------------------------------------------------------------------------------

    def _choose_launch_node(self) -> None:
        wanted = self._options.launch_node
        if wanted is not None and wanted not in self._nodes:
            self._skip_all(f"the launch node {wanted} cannot take part", Verdict.ERROR)
            return
        self._launch_node = wanted or next(iter(self._nodes))
        self._place()

    def _place(self) -> None:
        """Work out the hostfile for the nodes that are left."""
        team = self._team(self._nodes)
        self._slots, self._version = dict(team.site.slots), team.version

    def _team(self, nodes: Mapping[str, ground.ReadyNode]) -> _Team:
        """Return how these nodes run a check together; the first launches where the launch node is not among them."""
        first = self._launch_node if self._launch_node in nodes else next(iter(nodes))
        version = nodes[first].facts.artifact("openmpi").version
        return _Team(
            launch_node=first,
            version=version,
            site=base.Site(
                version=version,
                slots=hostfile.ordered({name: node.slots for name, node in nodes.items()}, first),
                names={**{node.facts.hostname: name for name, node in nodes.items()}, **{name: name for name in nodes}},
                platforms={name: node.facts.platform for name, node in nodes.items()},
                libraries={name: node.facts.artifact("openmpi").target for name, node in nodes.items()},
                cores={name: node.facts.cores for name, node in nodes.items()},
                stack={name: node.stack for name, node in nodes.items()},
                fabric={name: way for name, node in nodes.items() if (way := network.path(node.facts))},
            ),
        )

    def _run_checks(self) -> None:
        with ssh.control_folder() as control:
            for number, check in enumerate(self._checks, start=len(GATE) + 1):
                if check.name in self._results:
                    continue
                if not self._nodes:
                    self._skip_all("no node is left that answers")
                    return
                whys = {name: check.absent(node.stack) for name, node in self._nodes.items()}
                left_out = {name: why for name, why in whys.items() if why}
                nodes = {name: node for name, node in self._nodes.items() if name not in left_out}
                if not nodes:
                    why = "; ".join(f"{words} on {names}" for words, names in _by_reason(left_out).items())
                    self._finish(ground.skipped(check.name, why).model_copy(update={"left_out": left_out}))
                    continue
                jobs = _Jobs(check, nodes, number, control)
                result, outcome = self._appraised(jobs, *self._run_check(jobs))
                if left_out:
                    others = "; ".join(f"not on {names}: {words}" for words, names in _by_reason(left_out).items())
                    result = result.model_copy(update={"left_out": left_out, "reason": f"{result.reason}; {others}"})
                self._finish(result)
                lost = self._drop_silent(outcome, check)
                if (
                    check.name == "hello"
                    and result.verdict is not Verdict.PASS
                    and outcome.ending != "exited"
                    and not lost
                ):
                    self._skip_all("'hello' did not come to its end, and every other check would wait for the same")
                    return

    def _appraised(self, jobs: _Jobs, result: CheckResult, outcome: JobOutcome) -> tuple[CheckResult, JobOutcome]:
        """Hold the figures against references and each other; who stands out has to do so in a second run as well."""
        judged = self._appraiser.assess(result)
        if speed_verdict.suspects(judged):
            self._tell(CheckProgress(jobs.check.name, f"measured once more, since {judged.reason}"))
            again, outcome = self._run_check(jobs, attempt=2)
            judged = self._appraiser.confirmed(judged, again)
        wanted = self._options.suite.name != DEFAULT if self._options.search is None else self._options.search
        if wanted and bisect.is_wanted(judged, outcome):
            judged = self._hunted(jobs, judged)
        return judged, outcome

    def _hunted(self, jobs: _Jobs, result: CheckResult) -> CheckResult:
        """Launch the check on ever fewer of its nodes, and blame whom that names."""
        attempts = itertools.count(3)

        def launch(group: tuple[str, ...], stop: threading.Event) -> Launch:
            some = replace(jobs, nodes={name: jobs.nodes[name] for name in group})
            return bisect.launched(group, *self._run_check(some, attempt=next(attempts), stop=stop))

        search = bisect.find(
            result.check, tuple(jobs.nodes), launch, lambda words: self._tell(CheckProgress(result.check, words))
        )
        blamed = tuple(dict.fromkeys(name for culprit in search.culprits for name in culprit.nodes))
        return result.model_copy(
            update={
                "search": search,
                "culprits": (*search.culprits, *result.culprits),
                "hosts": blamed or result.hosts,
                "reason": f"{search.words}; {result.reason}",
            }
        )

    def _run_check(
        self, jobs: _Jobs, attempt: int = 1, stop: threading.Event | None = None
    ) -> tuple[CheckResult, JobOutcome]:
        """Run a check on its nodes, and keep its log.

        Args:
            jobs: the check and its nodes.
            attempt: counts the runs of this check; 2 is for figures that are to be confirmed, from 3 on it is a search.
            stop: ends the job once it is set.
        """
        check, nodes, number = jobs.check, jobs.nodes, jobs.number
        again = f"-{attempt}" if attempt > 1 else ""
        team = self._team(nodes)
        site = base.placed(check, team.site)
        deadline = self._options.timeout_s or base.deadline_s(check, site)
        if attempt == 1:
            self._tell(CheckStarted(check.name, number, self._total, deadline))
        launch = mpirun.MpirunLaunch(
            version=team.version,
            hostfile="{work_dir}/hostfile",
            slots=site.slots,
            program=check.program(site, deadline),
            job=f"{self._run.record.run_id}-{number}{again}",
            per_node=check.per_node,
            mca=_MPI_PARAMETERS,
        )
        logins = {
            name: supervised_job.JobLogin(node.host, node.as_user, jobs.control if name == self._launch_node else None)
            for name, node in nodes.items()
        }
        first = nodes[team.launch_node]
        spec = supervised_job.JobSpec(
            job=launch.job,
            argv=tuple(mpirun.argv(launch)),
            deadline_s=deadline,
            environment=mpirun.environment(team.version, first.as_user or first.facts.user.name),
            files={"hostfile": hostfile.render(site.slots)},
            stacks=attempt == 1,
        )
        expected = len(site.slots) if check.per_node else len(site.placement)
        heard = _Listener(check.name, expected, self._tell if stop is None else _nobody)
        began = time.monotonic()
        outcome = supervised_job.run(
            logins[team.launch_node],
            spec,
            peers=[login for name, login in logins.items() if name != team.launch_node],
            on_line=heard,
            stop=stop,
        )
        judgement = check.judge(site, outcome)
        if judgement.verdict is not Verdict.PASS and outcome.ending == "exited" and not outcome.sweeps:
            # mpirun may lose a whole node and end with code 0, so that nobody has looked after the nodes yet
            outcome = replace(outcome, sweeps=supervised_job.sweep(list(logins.values()), spec.job))
            judgement = check.judge(site, outcome)
        log = f"logs/{check.name}{again}.log"
        files.write_atomically(self._run.folder / log, _log_text(spec, outcome, site))
        return CheckResult(
            check=check.name,
            verdict=judgement.verdict,
            reason=judgement.reason,
            hosts=judgement.hosts,
            seconds=round(time.monotonic() - began, 3),
            deadline_s=deadline,
            command=outcome.argv or spec.argv,
            repeat=self._repeat(check.name),
            ranks=judgement.ranks,
            measurements=judgement.measurements,
            figures=judgement.figures,
            matrices=judgement.matrices,
            stacks=outcome.stacks,
            log=log,
            evidence=judgement.evidence,
            left_behind=tuple(
                f"{sweep.host}: {words}" for sweep in outcome.sweeps for words in (*sweep.left, sweep.problem) if words
            ),
        ), outcome

    def _drop_silent(self, outcome: JobOutcome, check: Check) -> bool:
        """Leave out nodes that no longer answer, so that the remaining checks tell about the remaining nodes."""
        gone = [sweep.host for sweep in outcome.sweeps if sweep.problem and sweep.host in self._nodes]
        if not gone:
            return False
        before = self._results[registry.REACHABLE]
        why = [f"{name} stopped answering during '{check.name}'" for name in gone]
        reason = "; ".join([before.reason, *why] if before.verdict is Verdict.FAIL else why)
        changed = {
            "verdict": Verdict.FAIL,
            "reason": reason,
            "hosts": (*before.hosts, *gone),
            "evidence": (*before.evidence, *(f"{s.host}: {s.problem}" for s in outcome.sweeps if s.host in gone)),
        }
        self._finish(before.model_copy(update=changed))
        for name in gone:
            del self._nodes[name]
        if self._launch_node not in self._nodes and self._nodes:
            self._launch_node = next(iter(self._nodes))
        if self._nodes:
            self._place()
        return True

    # --- the record ---------------------------------------------------------------------------------------------------

    def _finish(self, result: CheckResult) -> None:
        self._results[result.check] = result
        self._tell(CheckFinished(result))

    def _skip_all(self, why: str, verdict: Verdict = Verdict.SKIP) -> None:
        for check in self._checks:
            if check.name not in self._results:
                self._finish(ground.skipped(check.name, why, verdict))
                verdict = Verdict.SKIP

    def _repeat(self, check: str | None) -> str:
        words = ["clusterctl", "validate", str(self._cluster.path)]
        options = self._options
        if options.suite.name != DEFAULT:
            words += ["--suite", options.suite.name]
        if options.suite.path and Path(options.suite.path).parent != self._cluster.path.parent:
            words += ["--suite-file", options.suite.path]
        if options.inventory.limit is not None:
            words += ["--limit", options.inventory.limit]
        if options.inventory.user is not None:
            words += ["--user", options.inventory.user]
        if options.inventory.private_key is not None:
            words += ["--private-key", options.inventory.private_key]
        if options.launch_node is not None:
            words += ["--launch-node", options.launch_node]
        if options.timeout_s is not None:
            words += ["--timeout", f"{options.timeout_s:g}"]
        words += [] if options.gate else ["--no-gate"]
        return shlex.join([*words, *(["--checks", check] if check else [])])

    def _record(self) -> ValidationRecord:
        return ValidationRecord(
            clusterctl_version=__version__,
            run_id=self._run.record.run_id,
            inventory=str(self._cluster.path),
            started=self._started,
            finished=_now(),
            launch_node=self._launch_node,
            hosts=tuple(host.name for host in self._cluster.selected_hosts),
            slots=self._slots,
            openmpi_version=self._version,
            suite=self._options.suite.name,
            versions=self._versions,
            fabric=self._fabric,
            notes=tuple(self._appraiser.notes),
            folder=str(self._run.folder),
            verdict=worst(self._results.values()),
            checks=tuple(self._results.values()),
        )

    def _save(self, record: ValidationRecord) -> ValidationRecord:
        files.write_atomically(paths.validation_record(self._run.folder), record.model_dump_json(indent=1) + "\n")
        return record


class _Listener:
    """Count the ranks that are up and those that have answered, and tell whenever it says something new."""

    def __init__(self, check: str, ranks: int, tell: Callable[[ValidationEvent], None]) -> None:
        self._check, self._ranks, self._tell = check, ranks, tell
        self._up: set[str] = set()
        self._done: set[str] = set()

    def __call__(self, line: OutputLine) -> None:
        before = len(self._up), len(self._done)
        self._up.update(_STARTED.findall(line.text))
        self._done.update(_ANSWERED.findall(line.text))
        now = len(self._up), len(self._done)
        if now != before:
            self._tell(CheckProgress(self._check, f"{now[0]} of {self._ranks} ranks up, {now[1]} have answered"))


def _refuse_unknown_launch_node(cluster: Inventory, options: ValidationOptions) -> None:
    names = [host.name for host in cluster.selected_hosts]
    if options.launch_node is not None and options.launch_node not in names:
        shown = ", ".join(names[:_MOST_NAMED]) + (" and more" if len(names) > _MOST_NAMED else "")
        raise ConfigError(f"The launch node '{options.launch_node}' is none of the selected hosts: {shown}.")


def _log_text(spec: supervised_job.JobSpec, outcome: JobOutcome, site: base.Site) -> str:
    ended = {name: getattr(outcome, name) for name in ("ending", "rc", "ending_s", "seconds", "problem")}
    head = [
        f"# job      {spec.job}",
        f"# command  {shlex.join(outcome.argv or spec.argv)}",
        f"# hostfile {json.dumps(dict(site.slots))}",
        f"# outcome  {json.dumps(ended)}",
    ]
    for sweep in outcome.sweeps:
        found = [f"killed {words}" for words in sweep.killed] + [f"LEFT {words}" for words in sweep.left]
        head.append(f"# sweep    {sweep.host}: {sweep.problem or '; '.join(found) or 'nothing left'}")
    lines = [f"{line.at_s:9.3f} {line.stream} {line.text}" for line in outcome.lines]
    return "\n".join([*head, *lines]) + "\n"


def _way(node: NodeFacts) -> str:
    """Return the interface and the network that carry a node's jobs, empty where that was never decided."""
    return " ".join((node.fabric.interface, *node.fabric.cidrs)) if node.fabric is not None else ""


def _by_reason(left_out: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes of each reason, as one word."""
    nodes: dict[str, list[str]] = {}
    for name, why in left_out.items():
        nodes.setdefault(why, []).append(name)
    return {why: nodeset.folded(names) for why, names in nodes.items()}


def _nobody(_event: ValidationEvent) -> None:
    """Hear an event for somebody who does not listen."""


def _now() -> datetime:
    return datetime.now(timezone.utc)
