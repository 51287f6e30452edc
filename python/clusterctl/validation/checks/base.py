"""What all checks share: the cluster they run on, and how an outcome becomes a verdict."""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from clusterctl.analysis import robust_stats
from clusterctl.launch import hostfile
from clusterctl.model.results import Figure, Measurement, Verdict
from clusterctl.validation.checks import rank_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import PairMatrix, RankReport

PYTHON = "/usr/local/python_env/bin/python"
PROGRAMS = "/usr/local/libexec/clusterctl"

_BEATS = 15  # signs of life that a waiting rank gives within the deadline
_MISSED_BEATS = 3  # so many without one make a rank silent, for a busy node may be late
_SECONDS_PER_RANK = 0.05
_SHARING_NCCL = (2, 30, 3)  # NCCL_MULTI_RANK_GPU_ENABLE
_OWN_GRADIENT = "its own first gradient"  # as rank_program.py calls it
_MOST_NAMED = 8
_SIGNALLED = 128  # a shell's way, and mpirun's, to tell of a signal in an exit code
_MOST_EVIDENCE = 40
_MOST_LINES = 4
_MOST_WORDS = 300
# What mpirun of both series says of a rank that a signal ended.
_DIED = re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) (?P<how>exited on signal[^.]*)\.")
_NOISE = re.compile(
    r"^[-=*\s]*$|setpgid\(|more processes? (has|have) sent help message|Set MCA parameter \"orte_base_help_aggregate"
    r"|^Warning: Permanently added|help-aggregate",
)


@dataclass(frozen=True)
class FabricPath:
    """The interfaces of a node that the cluster's own networks reach, the chosen one first, and these networks."""

    interfaces: tuple[str, ...]
    cidrs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Site:
    """The nodes that a check runs on.

    ``slots`` are in hostfile order. ``names`` maps the host names that nodes give themselves to the inventory's names.
    ``platforms``, ``libraries``, ``cores``, ``stack`` and ``fabric`` are by inventory name: the platform's id, the
    folder in which the node's libmpi must lie (links resolved), its processor cores, what it has for training, and the
    interfaces that are to carry jobs (nodes of which that was never decided are not in it).
    """

    version: str
    slots: Mapping[str, int]
    names: Mapping[str, str] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    stack: Mapping[str, NodeStack] = field(default_factory=dict)
    fabric: Mapping[str, FabricPath] = field(default_factory=dict)

    @property
    def placement(self) -> tuple[str, ...]:
        """The node of each rank."""
        return hostfile.placement(self.slots)

    @property
    def ranks_per_core(self) -> float:
        """How many ranks share a core on the busiest node, 1 at least."""
        shares = [slots / max(1, self.cores.get(node, slots)) for node, slots in self.slots.items()]
        return max([1.0, *shares])


@dataclass(frozen=True)
class Judgement:
    """A verdict with what led to it."""

    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    evidence: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    matrices: tuple[PairMatrix, ...] = ()


class Check(Protocol):
    """One thing to prove: what to launch and how to read what it printed."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def title(self) -> str:
        """What it proves, in a few words."""

    @property
    def deadline_s(self) -> float:
        """Seconds it may take on a few ranks with a core each."""

    @property
    def per_node(self) -> bool:
        """Whether mpirun starts one process a node, which fills the node's slots by itself."""

    def absent(self, stack: NodeStack) -> str:
        """Return why a node with this stack cannot take part ("no PyTorch"), empty when it can."""

    def program(self, site: Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of one process."""

    def judge(self, site: Site, outcome: JobOutcome) -> Judgement:
        """Turn the raw outcome into a verdict."""


@runtime_checkable
class Lasting(Protocol):
    """A check whose measuring takes longer the more nodes there are."""

    def measuring_s(self, site: Site) -> float:
        """Seconds of measuring there, beside what ``deadline_s`` allows for."""


@runtime_checkable
class Placed(Protocol):
    """A check that has its own mind about how many ranks a node takes."""

    def ranks_on(self, site: Site) -> Mapping[str, int]:
        """Return the ranks of each node, in hostfile order."""


def placed(check: Check, site: Site) -> Site:
    """Return the site as the check fills it."""
    return replace(site, slots=dict(check.ranks_on(site))) if isinstance(check, Placed) else site


def deadline_s(check: Check, site: Site) -> float:
    """Return the seconds that a check may take there: starting ranks takes time, and so does sharing a core."""
    measuring_s = check.measuring_s(site) if isinstance(check, Lasting) else 0.0
    return round(check.deadline_s * site.ranks_per_core + measuring_s + _SECONDS_PER_RANK * len(site.placement), 3)


def one_a_node(site: Site) -> Site:
    """Return the site as a check with ``per_node`` fills it: one rank on each node."""
    return replace(site, slots=dict.fromkeys(site.slots, 1))


def rank_program(program: str, check: str, deadline: float, *more: str) -> tuple[str, ...]:
    """Return the argv of one process of a check.

    Args:
        program: file name of one of the role's programs.
        check: the value of its option ``--check``.
        deadline: seconds after which the job is ended.
        more: further options.
    """
    limits = ("--deadline", f"{deadline:g}", "--heartbeat", f"{deadline / _BEATS:.3g}")
    return (PYTHON, f"{PROGRAMS}/{program}", "--check", check, *limits, *more)


def judge(site: Site, outcome: JobOutcome, *, with_mpi: bool = True) -> Judgement:
    """Judge what is common to all checks: every rank answered, rightly, with the right library, in time.

    No output from any rank is an ERROR: nothing was proved and nothing refuted. Everything else that is not right is a
    FAIL that names ranks and hosts.

    Args:
        site: where it ran.
        outcome: how it ended, and all it printed.
        with_mpi: whether every rank is to have mapped the libmpi that was installed for it.
    """
    output = rank_output.read(outcome.lines, site.placement, site.names, _until_s(outcome))
    verdict, reason, hosts = _verdict(site, outcome, output, with_mpi=with_mpi)
    return Judgement(
        verdict=verdict,
        reason=reason,
        hosts=hosts,
        ranks=output.ranks,
        measurements=_measurements(outcome, output),
        evidence=() if verdict is Verdict.PASS else tuple(_without_noise(output.other)[-_MOST_EVIDENCE:]),
    )


def figures(
    measured: Iterable[rank_output.Measured], confidence: float = 0.95, *, together: bool = False
) -> tuple[Figure, ...]:
    """Return what ranks measured (``ranks.read(...).measured``) as figures: medians with their intervals.

    Args:
        measured: one for each figure.
        confidence: probability that the interval of each median shall have; too few samples have none.
        together: the figures are about all nodes and not about the one whose rank printed them, as in a collective.
    """
    found = []
    for one in measured:
        ends = (one.host, one.peer) if one.peer else (one.host,)
        found.append(
            Figure(
                quantity=one.quantity,
                operation=one.operation,
                backend=one.backend,
                algorithm=one.algorithm,
                size_bytes=one.size_bytes,
                nodes=() if together else ends,
                unit=one.unit,
                samples=one.samples,
                better=one.better,
                **robust_stats.summary(one.samples, confidence),
            )
        )
    return tuple(found)


def _until_s(outcome: JobOutcome) -> float:
    """Return the time from which on nothing counts that ranks say: one that is ended late dies in many ways."""
    return outcome.ending_s if outcome.ending == "deadline" else math.inf


def fail(judgement: Judgement, reason: str, hosts: Iterable[str]) -> Judgement:
    """Return the judgement turned into a FAIL."""
    return replace(judgement, verdict=Verdict.FAIL, reason=reason, hosts=unique(hosts))


def passed(judgement: Judgement, reason: str, *figures: Measurement) -> Judgement:
    """Return a PASS with other words and more figures."""
    measurements = (*judgement.measurements, *figures)
    return replace(judgement, verdict=Verdict.PASS, reason=reason, hosts=(), measurements=measurements, evidence=())


def without_pytorch(stack: NodeStack) -> str:
    """Return why a node cannot run PyTorch, empty when it can."""
    return "" if stack.framework == "pytorch" else "no PyTorch"


def gpus(site: Site) -> bool:
    """Whether every rank can work with PyTorch on a GPU, be it one that it shares with ranks beside it."""
    return bool(site.stack) and all(
        stack.framework_cuda and stack.gpus and (stack.gpus >= site.slots[node] or _can_share(stack))
        for node, stack in site.stack.items()
    )


def _can_share(stack: NodeStack) -> bool:
    """Whether the NCCL that PyTorch loads lets several ranks work on one GPU."""
    numbers = re.findall(r"\d+", stack.framework_nccl or stack.nccl)[:3]
    return tuple(int(number) for number in numbers) >= _SHARING_NCCL


def misplaced(site: Site, reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find nodes that have another number of ranks than slots, though the hostfile gives every slot one."""
    seen = Counter(report.host for report in reports)
    odd = [node for node in unique((*site.slots, *seen)) if seen[node] != site.slots.get(node, 0)]
    if not odd:
        return None
    words = ", ".join(f"{node} has {seen[node]} of {site.slots.get(node, 0)}" for node in odd)
    return f"ranks are not where the hostfile puts them: {words}", tuple(odd)


def carried_by(reports: Sequence[RankReport], expected: str) -> tuple[str, tuple[str, ...]] | None:
    """Find ranks whose answers another backend carried, by their fact ``backend``."""
    other = [report for report in reports if report.facts.get("backend") != expected]
    if not other:
        return None
    found = other[0].facts.get("backend") or "a backend that gave no name"
    verb = "was" if len(other) == 1 else "were"
    return f"{named(other)} {verb} carried by {found} and not by {expected}", unique(report.host for report in other)


def blame(judgement: Judgement) -> Judgement:
    """Name the ranks whose own gradient is wrong: averages have carried their mistake to everybody's answers."""
    own = [report for report in judgement.ranks if any(wrong.what == _OWN_GRADIENT for wrong in report.problems)]
    if judgement.verdict is not Verdict.FAIL or not own or len(own) == len(judgement.ranks):
        return judgement
    return fail(judgement, wrong_words(own), [report.host for report in own])


def unique(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return each host once, in order."""
    return tuple(dict.fromkeys(hosts))


def named(reports: Sequence[RankReport]) -> str:
    """Return 'rank 3 on node2, ranks 4 and 5 on node3', as many nodes as one can read."""
    by_host: dict[str, list[str]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(str(report.rank))
    words = [
        f"rank {numbers[0]} on {host}" if len(numbers) == 1 else f"ranks {_listed(numbers)} on {host}"
        for host, numbers in list(by_host.items())[:_MOST_NAMED]
    ]
    more = len(by_host) - len(words)
    return ", ".join(words) + (f" and those on {more} more nodes" if more else "")


def _listed(numbers: Sequence[str]) -> str:
    shown = list(numbers[:_MOST_NAMED])
    if len(numbers) > len(shown):
        return ", ".join(shown) + f" and {len(numbers) - len(shown)} more"
    return ", ".join(shown[:-1]) + f" and {shown[-1]}"


def _verdict(
    site: Site, outcome: JobOutcome, output: rank_output.Output, *, with_mpi: bool
) -> tuple[Verdict, str, tuple[str, ...]]:
    if outcome.ending in {"not_started", "lost", "stopped"} or not output.in_state("started", "waiting", "answered"):
        return _no_verdict(site, outcome, output)
    wrong = tuple(report for report in output.in_state("answered") if not report.ok)
    if wrong:
        wrong = tuple(report for report in wrong if _was_killed(report)) or wrong  # others lost their peer by that
        return Verdict.FAIL, wrong_words(wrong), unique(report.host for report in wrong)
    if len(output.in_state("answered")) < len(output.ranks):
        return Verdict.FAIL, *_missing(outcome, output)
    foreign = _foreign_libraries(site, output.ranks) if with_mpi else None
    if foreign is not None:
        return Verdict.FAIL, *foreign
    if outcome.ending == "exited" and outcome.rc == 0:
        return Verdict.PASS, _success(output.ranks), ()
    return Verdict.FAIL, *_unended(site, outcome, output)


def _was_killed(report: RankReport) -> bool:
    """Whether a signal ended the rank, other than mpirun's own when it ends a job."""
    return any(problem.got.startswith("killed by") and "SIGTERM" not in problem.got for problem in report.problems)


def _unended(site: Site, outcome: JobOutcome, output: rank_output.Output) -> tuple[str, tuple[str, ...]]:
    """Say what went wrong after every answer was right, and blame whoever has fallen silent while others still beat."""
    hosts = _unanswering(outcome) or _mentioned(output.other, site.slots)
    if outcome.ending != "deadline":
        reason = f"every answer was right, but mpirun ended with {_code(outcome)}"
        return _joined(reason, _essence(output.other)), hosts
    reason = f"every answer was right, but the job did not end within {outcome.ending_s:.0f} s"
    silent = _silent(outcome, output.ranks)
    if silent and len(silent) < len(output.ranks):
        return f"{reason}: {named(silent)} fell silent before the end", unique(report.host for report in silent)
    return _joined(reason, _essence(output.other)), hosts


def _silent(outcome: JobOutcome, reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Return the ranks that had stopped giving signs of life when the deadline passed."""
    patience = outcome.ending_s * _MISSED_BEATS / _BEATS
    return tuple(r for r in reports if r.state == "absent" or outcome.ending_s - r.seen_s > patience)


def _no_verdict(site: Site, outcome: JobOutcome, output: rank_output.Output) -> tuple[Verdict, str, tuple[str, ...]]:
    """Say why there is nothing to judge."""
    gone = _unanswering(outcome)
    if outcome.ending == "stopped":
        return Verdict.ERROR, "it was stopped before it ended", ()
    if outcome.ending == "not_started":
        return Verdict.ERROR, f"mpirun was not started: {outcome.problem}", gone
    if outcome.ending == "lost":
        return Verdict.ERROR, f"the connection to the launch node was lost: {outcome.problem}", gone
    if outcome.ending == "deadline":
        reason = f"no rank came up within {outcome.ending_s:.0f} s"
    else:
        reason = f"mpirun ended with {_code(outcome)} before any rank came up"
    if gone:
        reason += f"; {', '.join(gone)} no longer answers ssh"
    return Verdict.ERROR, _joined(reason, _essence(output.other)), gone or _mentioned(output.other, site.slots)


def _unanswering(outcome: JobOutcome) -> tuple[str, ...]:
    """Return the nodes that could not be swept."""
    return tuple(sweep.host for sweep in outcome.sweeps if sweep.problem)


def _missing(outcome: JobOutcome, output: rank_output.Output) -> tuple[str, tuple[str, ...]]:
    """Name who is to blame for answers that never came: whoever gave no sign of life, for the others wait for them."""
    missing = output.in_state("absent", "started", "waiting")
    if outcome.ending != "deadline":
        died = _DIED.search(" ".join(output.other))
        if died is not None:
            host = next((report.host for report in output.ranks if str(report.rank) == died["rank"]), died["host"])
            return f"rank {died['rank']} on {host} {died['how']}; no answer from {named(missing)}", (host,)
        unheard = output.in_state("absent")
        # PRRTE says nothing of a rank that dies while others are still being launched.
        if _signal(outcome) and 0 < len(unheard) < len(missing):
            reason = f"{named(unheard)} never came up, and mpirun ended with {_code(outcome)}"
            return reason, unique(report.host for report in unheard)
        reason = f"no answer from {named(missing)}; mpirun ended with {_code(outcome)}"
        gone = _unanswering(outcome)
        if gone:
            reason = f"{', '.join(gone)} no longer answers ssh; {reason}"
        return _joined(reason, _essence(output.other)), gone or unique(report.host for report in missing)
    within = f"within {outcome.ending_s:.0f} s"
    silent = _silent(outcome, missing)
    waiting = tuple(report for report in missing if report not in silent)
    if silent:
        never = len([report for report in silent if report.state == "absent"])
        reason = f"no sign of life from {named(silent)} {within}"
        if 0 < never < len(silent):
            reason += f" ({never} of them never came up)"
        if waiting:
            reason += f"; {len(waiting)} others wait, {_steps(waiting)}"
    else:
        reason = f"no answer from {named(waiting)} {within}: {_steps(waiting)}"
    blamed = silent or waiting
    hosts = unique(report.host for report in blamed)
    gone = tuple(host for host in _unanswering(outcome) if host in hosts)
    if gone:
        reason += f"; {', '.join(gone)} no longer answers ssh"
    return reason, gone or hosts


def _steps(waiting: Sequence[RankReport]) -> str:
    """Return what most of the waiting ranks are busy with."""
    step, count = Counter(report.step or "the start of the program" for report in waiting).most_common(1)[0]
    if count == len(waiting):
        return f"in {step}"
    first = next(report for report in waiting if (report.step or step) == step)
    return f"rank {first.rank} on {first.host} in {step}"


def wrong_words(wrong: Sequence[RankReport]) -> str:
    """Return the first wrong answer of the first of these ranks, and which the others are."""
    first = wrong[0]
    where = f"rank {first.rank} on {first.host}"
    if first.problems:
        answer = first.problems[0]
        words = f"{where}: {answer.what}: expected {answer.expected}, got {answer.got}"
    else:
        words = f"{where} compared {first.compared} values"
    others = [f"{report.rank}" for report in wrong[1:]]
    if others:
        words += f"; wrong answers also at rank{'s' if len(others) > 1 else ''} {', '.join(others[:_MOST_NAMED])}"
        words += " and more" if len(others) > _MOST_NAMED else ""
    return words


def _foreign_libraries(site: Site, reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find ranks that have mapped another libmpi than the one that was installed for them."""
    foreign = [
        report
        for report in reports
        if report.host in site.libraries and not report.library_path.startswith(site.libraries[report.host] + "/")
    ]
    if not foreign:
        return None
    first = foreign[0]
    found = first.library_path or "no libmpi at all"
    verb = "has" if len(foreign) == 1 else "have"
    reason = (
        f"{named(foreign)} {verb} not mapped the installed libmpi: {found} is not below {site.libraries[first.host]}"
    )
    return reason, unique(report.host for report in foreign)


def _success(reports: Sequence[RankReport]) -> str:
    nodes = len({report.host for report in reports})
    compared = sum(report.compared for report in reports)
    words = f"{len(reports)} ranks on {nodes} node{'s' if nodes != 1 else ''}"
    return f"{words}, {compared:,} values right" if compared else words


def _measurements(outcome: JobOutcome, output: rank_output.Output) -> tuple[Measurement, ...]:
    answered = output.in_state("answered")
    figures = [
        Measurement(name="total", value=round(outcome.seconds, 3), unit="s"),
        Measurement(name="ranks_answered", value=len(answered), unit="ranks"),
        Measurement(name="nodes_answered", value=len({report.host for report in answered}), unit="nodes"),
    ]
    if output.all_started_s:
        figures.append(Measurement(name="all_ranks_started", value=round(output.all_started_s, 3), unit="s"))
    slowest = max((report.seconds for report in answered), default=0.0)
    if slowest:
        figures.append(Measurement(name="slowest_rank", value=round(slowest, 6), unit="s"))
    return tuple(figures)


def _code(outcome: JobOutcome) -> str:
    if outcome.rc is None:
        return "a signal"
    name = _signal(outcome)
    return f"code {outcome.rc} ({name})" if name else f"code {outcome.rc}"


def _signal(outcome: JobOutcome) -> str:
    """Return the signal that ended a rank, as mpirun's exit code tells it, empty where it tells of none."""
    return {_SIGNALLED + known: known.name for known in signal.Signals}.get(outcome.rc or 0, "")


def _joined(reason: str, said: str) -> str:
    return f"{reason}: {said}" if said else reason


def _without_noise(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not _NOISE.search(line)]


def _essence(lines: Sequence[str]) -> str:
    """Return the first words that matter of what mpirun said; its help messages begin with the cause."""
    text = " ".join(" ".join(_without_noise(lines)[:_MOST_LINES]).split())
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 3] + "..."


def _mentioned(lines: Sequence[str], hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes that mpirun's complaint names, apart from the tags in front of its lines."""
    text = " ".join(re.sub(r"^\[[^]]*\]", "", line) for line in _without_noise(lines))
    return tuple(host for host in hosts if re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", text))
