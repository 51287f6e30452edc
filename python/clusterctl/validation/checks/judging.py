"""Judging the outcome of a job: every rank answers, rightly, with the right MPI library, in time."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.model.findings import majority
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Measurement, Verdict
from clusterctl.validation.checks import base, causes, mpirun_output, overcommitted_nodes, rank_output, wrong_data
from clusterctl.validation.checks.base import BEATS, Judgement, unique
from clusterctl.validation.checks.causes import Cause, Fault, named, wrong_words
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.results import RankReport
    from clusterctl.validation.checks.base import Site


# Ranks that MPI started alone: each is a world of size 1, ends with code 0, and has proved nothing.
#
# srun does so to Open MPI 5.0 without PMIx, and where Slurm's PMIx and Open MPI's do not meet.

# In the result of a rank, and in the line of the C program, whose size follows its rank.
_SIZE = re.compile(
    r'\{"(?:clusterctl": 1, "event": "result", [^{}]{0,600}|rank": \d{1,9}, )"size": (?P<size>\d{1,9})[,}]'
)
_CURE = "run 'clusterctl doctor' on the nodes, and see 'srun --mpi=list'; mpirun needs no PMIx of Slurm's"


@dataclass(frozen=True)
class Alone:
    """What is wrong in words, and the hosts where it is known that not all are concerned."""

    words: str
    hosts: tuple[str, ...] = ()


def found(site: Site, outcome: JobOutcome) -> Alone | None:
    """Return the fault of a job whose ranks are worlds of their own, None where they are one world.

    A job of one rank is a world of size 1 rightly.
    """
    ranks = len(site.placement)
    sizes = [int(match["size"]) for line in outcome.lines for match in _SIZE.finditer(line.text)]
    small = [size for size in sizes if size < ranks]
    if not small:
        return None
    by = "srun" if outcome.argv[:1] == ("srun",) else "mpirun"
    many = "each rank" if len(small) >= ranks and set(small) == {1} else f"{len(small)} ranks"
    world = "a world of size 1" if set(small) == {1} else f"in a world of size {min(small)}"
    return Alone(f"{many} is {world} instead of {ranks}: {by}'s PMIx and Open MPI's did not meet; {_CURE}")


# Whether the files that ranks really use have the content that was installed, and MPI's the same on all nodes.

_ARTIFACT = re.compile(r"(?:/\w[\w.+-]*)+?/(?:openmpi|mpi4py|python_env|nccl|horovod)-[\w.+-]+(?=/)")


@dataclass(frozen=True)
class Changed:
    """The nodes whose libraries have another content, and what to do."""

    reason: str
    hosts: tuple[str, ...]
    cure: str


@dataclass(frozen=True)
class _Mapped:
    files: Mapping[str, str]  # sha256 by name
    changed: tuple[str, ...]


def changed(site: Site, lines: Iterable[OutputLine]) -> Changed | None:
    """Return the nodes that map another content than was installed, or than other nodes of their platform map.

    The manifest of the installed artifact decides. Where it tells nothing, the majority of the platform does.
    """
    mapped = _read(site, lines)
    wrong = {host: found.changed for host, found in mapped.items() if found.changed}
    if wrong:
        first, paths = next(iter(wrong.items()))
        names = ", ".join(PurePosixPath(path).name for path in paths)
        folder = _ARTIFACT.match(paths[0])
        files = "file" if len(paths) == 1 else "files"
        reason = f"{names} on {folded(wrong)} is not the {files} that was installed: the content has changed"
        place = folder[0] if folder else site.libraries.get(first, "")
        return Changed(reason, tuple(wrong), _repair(tuple(wrong), place))
    for platform in dict.fromkeys(site.platforms.get(host, "") for host in mapped):
        alike = {host: found for host, found in mapped.items() if site.platforms.get(host, "") == platform}
        for name in dict.fromkeys(name for found in alike.values() for name in found.files):
            odd = majority({host: found.files[name] for host, found in alike.items() if found.files.get(name)})
            if odd.others:
                hosts = tuple(host for host in alike if host in odd.odd)
                usual = "than on most nodes" if odd.usual is not None else "with no majority"
                reason = f"{name} has another content on {folded(hosts)} {usual}"
                return Changed(reason, hosts, _repair(hosts, site.libraries.get(hosts[0], "")))
    return None


def _repair(hosts: tuple[str, ...], folder: str) -> str:
    place = folder or "the folder of Open MPI"
    return (
        f"On {folded(hosts)}, remove {place} and run 'clusterctl provision' again; look for errors of disk and memory."
    )


def _read(site: Site, lines: Iterable[OutputLine]) -> dict[str, _Mapped]:
    found = {}
    for event in events_of(lines, "mapped"):
        host = site.names.get(str(event.get("host", "")), str(event.get("host", "")))
        files, names = event.get("files"), event.get("changed")
        if isinstance(files, dict) and isinstance(names, list):
            digests = {str(name): str(digest) for name, digest in files.items()}
            found[host] = _Mapped(digests, tuple(str(name) for name in names))
    return found


_ERROR = re.compile(r"\w+Error: ")
_MISSED_BEATS = 3  # a rank is silent after so many missed signs of life, since a busy node is late with one
_MOST_EVIDENCE, _MOST_REASON = 40, 2000
STARTED = "all_ranks_started"  # the measurement of the seconds until every rank was up


def of_check(check: base.Check, site: Site, outcome: JobOutcome) -> Judgement:
    """Return what a check judges; an ERROR where its ranks answered in a form that its program does not have."""
    try:
        return check.judge(site, outcome)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        found = judge(site, outcome, with_mpi=False)
        words = f"its ranks answered in another form than its program ({type(error).__name__}: {error}); see the log"
        reason = words if found.verdict is Verdict.PASS else f"{found.reason}; {words}"
        return replace(found, verdict=Verdict.ERROR, reason=reason[:_MOST_REASON])


def judge(site: Site, outcome: JobOutcome, *, with_mpi: bool = True, per_node: bool = False) -> Judgement:
    """Judge what all checks have in common.

    A job without output from any rank is an ERROR, since it proves nothing, unless the launcher names the node of a
    rank that a signal ended. Any other fault is a FAIL that names ranks and hosts. With ``with_mpi``, every rank must
    have mapped the libmpi that was installed for it. With ``per_node``, mpirun starts one process per node, which
    starts the node's ranks itself.
    """
    output = rank_output.read(outcome.lines, site.placement, site.names, _until_s(outcome))
    told = _with_first_end(causes_told(site, outcome), site, outcome, output, per_node=per_node)
    verdict, reason, hosts = _verdict(site, outcome, output, told, with_mpi=with_mpi)
    lonely = found(site, outcome) if with_mpi and not per_node else None
    if lonely is not None:
        verdict, reason, hosts, told = Verdict.FAIL, lonely.words, lonely.hosts, ()
    crowd = (
        None
        if verdict is Verdict.PASS or lonely is not None
        else overcommitted_nodes.crowd(
            overcommitted_nodes.machines(site.placement, site.cores, site.machines),
            outcome,
            output,
            _silent(outcome, output.ranks),
        )
    )
    if crowd is not None:
        verdict, reason, hosts, told = Verdict.ERROR, crowd.words, (), ()
    given = tuple(
        one for one in _given(told) if set(one.hosts) <= set(hosts) and (not one.is_consequence or one.kind == "pair")
    )
    judgement = Judgement(
        verdict=verdict,
        reason=reason,
        hosts=hosts,
        ranks=output.ranks,
        culprits=() if verdict is Verdict.PASS else causes.culprits(given),
        measurements=_measurements(outcome, output),
        next_step=crowd.next_step if crowd is not None else "",
        evidence=() if verdict is Verdict.PASS else tuple(mpirun_output.without_noise(output.other)[-_MOST_EVIDENCE:]),
    )
    change = changed(site, outcome.lines)
    if change is None:
        return judgement
    named = ((host, change.reason, change.cure) for host in change.hosts)
    return base.blamed(judgement, f"{change.reason}; {change.cure}", named)


def causes_told(site: Site, outcome: JobOutcome) -> tuple[Cause, ...]:
    """Return the causes that the launcher gave for the end of a job."""
    until_s = _until_s(outcome)
    said = (line.text for line in outcome.lines if line.at_s <= until_s)
    return mpirun_output.read(said, site.names, next(iter(site.slots), ""))


def _with_first_end(
    told: tuple[Cause, ...], site: Site, outcome: JobOutcome, output: rank_output.Output, *, per_node: bool
) -> tuple[Cause, ...]:
    """Return the launcher's causes with the rank whose end made mpirun end the job.

    Where ranks or nodes tell more, they come first. A rank that a signal ended, and a rank that ended before it was
    up, did not end because it lost another one. At a deadline, what mpirun said before it counts.
    """
    if not (outcome.ending == "deadline" or (outcome.ending == "exited" and outcome.rc)) or _unanswering(outcome):
        return told
    end = mpirun_output.first_end(output.other, outcome)
    places = tuple(site.slots) if per_node else site.placement
    wrong = tuple(report for report in output.in_state("answered") if not report.ok)
    if end is None or end.process >= len(places) or not all(causes.lost_a_peer(report) for report in wrong):
        return told
    host = places[end.process]
    reports = [one for one in output.ranks if (one.host == host if per_node else one.rank == end.process)]
    is_up = any(report.state != "absent" for report in reports)
    given = [one for one in _given(told) if one.subject != mpirun_output.PEER]
    if not end.host and (given or (is_up and not end.by_signal)):
        return told
    who = "the process that mpirun started" if per_node else f"rank {end.process}"
    cause = f"{who} {end.how}{'' if is_up else ' before it was up'}"
    cure = "read this node's kernel log ('journalctl -k')"
    others = tuple(one for one in told if not one.hosts or one.hosts == (host,))  # the rest follows from this end
    subject = mpirun_output.KILLED if end.by_signal else ""
    return (*others, Cause((host,), cause, cure, line=end.line, subject=subject))


def _until_s(outcome: JobOutcome) -> float:
    """Return the time after which the words of ranks do not count; ranks that are ended die in many ways."""
    return outcome.ending_s if outcome.ending == "deadline" else math.inf


def _verdict(
    site: Site, outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause], *, with_mpi: bool
) -> tuple[Verdict, str, tuple[str, ...]]:
    if outcome.ending in {"not_started", "lost", "stopped"} or not output.in_state("started", "waiting", "answered"):
        return _no_verdict(outcome, told, output)
    wrong = tuple(report for report in output.in_state("answered") if not report.ok)
    if wrong:
        return Verdict.FAIL, *_wrong(outcome, output, told, wrong)
    if len(output.in_state("answered")) < len(output.ranks):
        return Verdict.FAIL, *_missing(outcome, output, told)
    if outcome.ending != "exited" or outcome.rc != 0:
        return Verdict.FAIL, *(_foreign(site, output, with_mpi=with_mpi) or _unended(outcome, output, told))
    fault = _foreign(site, output, with_mpi=with_mpi) or _warned(output, told)
    return (Verdict.FAIL, *fault) if fault else (Verdict.PASS, _success(output.ranks), ())


def _foreign(site: Site, output: rank_output.Output, *, with_mpi: bool) -> Fault | None:
    return _foreign_libraries(site, output.ranks) if with_mpi else None


def _warned(output: rank_output.Output, told: Sequence[Cause]) -> Fault | None:
    """Return the faults that the launcher names after a good end: without shared memory, other jobs die or are slow."""
    given = tuple(cause for cause in _given(told) if not cause.is_consequence)
    return (causes.reason(given, _success(output.ranks)), causes.hosts(given)) if given else None


def _wrong(
    outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause], wrong: tuple[RankReport, ...]
) -> Fault:
    """Blame the ranks with wrong answers; where they are all of all nodes, it is not known with which it began.

    Ranks that only lost a peer do not count where a node is gone, the launcher names one, or all silent ranks are on
    one node.
    """
    killed = tuple(report for report in wrong if _was_killed(report))  # the others lost a peer by that
    found = () if killed else wrong_data.traces(output.ranks)
    if found:
        return wrong_data.fault(found, wrong, output.ranks)
    if killed or any(problem.expected != causes.NO_ANSWER for report in wrong for problem in report.problems):
        wrong = killed or wrong
        return wrong_words(wrong), _unless_all(wrong, output)
    gone, given = _unanswering(outcome), _given(told)
    if gone:
        return f"{_gone_words(gone)}; {wrong_words(wrong)}", gone
    raised = tuple(report for report in wrong if _raised(report))
    if raised and all(cause.is_consequence for cause in given):
        wrong, given = raised, ()
    if given:
        return causes.reason(given, wrong_words(wrong)), causes.hosts(given)
    if all(causes.lost_a_peer(report) for report in wrong):
        silent = output.in_state("absent", "started", "waiting")
        hosts = unique(report.host for report in silent)
        words = f"no answer from {_ranks(silent, output)}; {wrong_words(wrong)}" if silent else wrong_words(wrong)
        return words, hosts if len(hosts) == 1 else ()
    return wrong_words(wrong), _unless_all(wrong, output)


def _given(told: Sequence[Cause]) -> tuple[Cause, ...]:
    """Return the launcher's causes that name a node."""
    return tuple(cause for cause in told if cause.hosts)


def _gone_words(gone: Sequence[str]) -> str:
    return f"{', '.join(gone)} no longer answer{'s' if len(gone) == 1 else ''} ssh"


def _unless_all(reports: Sequence[RankReport], output: rank_output.Output) -> tuple[str, ...]:
    """Return the hosts of these ranks; empty where they are all hosts of the job, since that names no node."""
    hosts = unique(report.host for report in reports)
    everywhere = {report.host for report in output.ranks}
    return () if len(everywhere) > 1 and set(hosts) == everywhere else hosts


def _was_killed(report: RankReport) -> bool:
    """Whether a signal ended the rank; SIGTERM is mpirun's own when it ends a job."""
    return any(problem.got.startswith("killed by") and "SIGTERM" not in problem.got for problem in report.problems)


def _raised(report: RankReport) -> bool:
    """Whether an error of Python ended the rank, such as MemoryError; the others lost a peer by that.

    The errors of mpi4py are named Exception: what MPI tells a rank may have begun at any other.
    """
    return not causes.lost_a_peer(report) and any(_ERROR.match(problem.got) for problem in report.problems)


def _unended(outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause]) -> Fault:
    """Say what went wrong after every answer was right; blame ranks that fell silent before the others."""
    if outcome.ending != "deadline":
        reason = f"every answer was right, but mpirun ended with {mpirun_output.code(outcome)}"
        return _blamed(outcome, output, told, reason)
    reason = f"every answer was right, but the job did not end within {outcome.ending_s:.0f} s"
    silent = _silent(outcome, output.ranks)
    if silent and len(silent) < len(output.ranks):
        return f"{reason}: {named(silent)} fell silent before the end", unique(report.host for report in silent)
    return _blamed(outcome, output, told, reason)


def _blamed(
    outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause], reason: str, others: tuple[str, ...] = ()
) -> Fault:
    """Blame nodes that are gone, else those that the launcher names, else ``others``."""
    gone, given = _unanswering(outcome), _given(told)
    if gone:
        return f"{_gone_words(gone)}; {reason}", gone
    if given:
        return causes.reason(given, reason), causes.hosts(given)
    unplaced = [cause for cause in told if not cause.is_consequence or cause.subject == mpirun_output.PEER]
    if unplaced:
        return f"{reason}: {unplaced[0].cause}", others
    return mpirun_output.with_cause(reason, output.other), others


def _silent(outcome: JobOutcome, reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Return the ranks that gave no more signs of life when the deadline passed."""
    patience = outcome.ending_s * _MISSED_BEATS / BEATS
    return tuple(r for r in reports if r.state == "absent" or outcome.ending_s - r.seen_s > patience)


def _no_verdict(
    outcome: JobOutcome, told: Sequence[Cause], output: rank_output.Output
) -> tuple[Verdict, str, tuple[str, ...]]:
    """Say why the job cannot be judged. A rank that a signal ended on a known node was started, so this is a FAIL."""
    gone = _unanswering(outcome)
    if outcome.ending == "stopped":
        return Verdict.ERROR, "it was stopped before it ended", ()
    if outcome.ending == "not_started":
        return Verdict.ERROR, f"mpirun was not started: {outcome.problem}", gone
    if outcome.ending == "lost":
        reason = f"the connection to the launch node was lost: {outcome.problem}"
        if outcome.sweeps and not gone:  # it answered a new login afterwards
            reason += "; all nodes answer logins, so look at the load and memory of the launch node"
        return Verdict.ERROR, reason, gone
    if outcome.ending == "deadline":
        reason = f"no rank came up within {outcome.ending_s:.0f} s"
    else:
        reason = f"mpirun ended with {mpirun_output.code(outcome)} before any rank came up"
    was_killed = not gone and any(cause.subject == mpirun_output.KILLED for cause in told)
    return Verdict.FAIL if was_killed else Verdict.ERROR, *_blamed(outcome, output, told, reason)


def _unanswering(outcome: JobOutcome) -> tuple[str, ...]:
    """Return the nodes that no longer answer, so that leftovers could not be cleared there."""
    return tuple(sweep.host for sweep in outcome.sweeps if sweep.problem)


def _missing(outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause]) -> Fault:
    """Blame ranks for answers that never came."""
    missing = output.in_state("absent", "started", "waiting")
    if outcome.ending == "deadline":
        return _missing_at_deadline(outcome, output, told, missing)
    return _missing_at_exit(outcome, output, told, missing)


def _missing_at_exit(
    outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause], missing: Sequence[RankReport]
) -> Fault:
    reason = f"no answer from {_ranks(missing, output)}; mpirun ended with {mpirun_output.code(outcome)}"
    # With an error, mpirun ended the job for the end of a rank. The others are not to blame for their silence.
    others = () if outcome.rc else _unless_all(missing, output)
    if outcome.rc and not _unanswering(outcome) and not told:
        reason += ", and it is not known which rank ended first"
    return _blamed(outcome, output, told, reason, others)


def _ranks(reports: Sequence[RankReport], output: rank_output.Output) -> str:
    return f"any of the {len(reports)} ranks" if len(reports) == len(output.ranks) > 1 else named(reports)


def _missing_at_deadline(
    outcome: JobOutcome, output: rank_output.Output, told: Sequence[Cause], missing: Sequence[RankReport]
) -> Fault:
    """Blame the ranks that gave no sign of life; the others wait for them."""
    within = f"within {outcome.ending_s:.0f} s"
    silent = _silent(outcome, missing)
    waiting = tuple(report for report in missing if report not in silent)
    if silent:
        never = len([report for report in silent if report.state == "absent"])
        reason = f"no sign of life from {_ranks(silent, output)} {within}"
        if 0 < never < len(silent):
            reason += f" ({never} of them never came up)"
        if waiting:
            reason += f"; {len(waiting)} others wait, {_steps(waiting)}"
    else:
        reason = f"no answer from {_ranks(waiting, output)} {within}: {_steps(waiting)}"
    gone, given = _unanswering(outcome), _given(told)
    if gone:
        return f"{reason}; {_gone_words(gone)}", gone
    if given:
        return causes.reason(given, reason), causes.hosts(given)
    return reason, _unless_all(silent or waiting, output)


def _steps(waiting: Sequence[RankReport]) -> str:
    """Return the step in which most of the waiting ranks are."""
    step, count = Counter(report.step or "the start of the program" for report in waiting).most_common(1)[0]
    if count == len(waiting):
        return f"in {step}"
    first = next(report for report in waiting if (report.step or step) == step)
    return f"rank {first.rank} on {first.host} in {step}"


def _foreign_libraries(site: Site, reports: Sequence[RankReport]) -> Fault | None:
    """Find ranks that mapped another libmpi than the installed one."""
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
        figures.append(Measurement(name=STARTED, value=round(output.all_started_s, 3), unit="s"))
    slowest = max((report.seconds for report in answered), default=0.0)
    if slowest:
        figures.append(Measurement(name="slowest_rank", value=round(slowest, 6), unit="s"))
    return tuple(figures)
