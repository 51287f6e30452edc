"""Judging the outcome of a job: every rank answers, rightly, with the right MPI library, in time."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.model.results import Measurement, Verdict
from clusterctl.validation.checks import mpirun_output, rank_output, startup
from clusterctl.validation.checks.base import BEATS, Judgement, unique
from clusterctl.validation.checks.blame import Fault, named, wrong_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport
    from clusterctl.validation.checks.base import Site

_MISSED_BEATS = 3  # a rank is silent after so many missed signs of life, since a busy node is late with one
_MOST_EVIDENCE = 40
STARTED = "all_ranks_started"  # the measurement of the seconds until every rank was up


def judge(site: Site, outcome: JobOutcome, *, with_mpi: bool = True) -> Judgement:
    """Judge what all checks have in common.

    A job without output from any rank is an ERROR, since it proves nothing. Any other fault is a FAIL that names ranks
    and hosts.

    Args:
        site: where it ran.
        outcome: how it ended, and all its output.
        with_mpi: whether every rank must have mapped the libmpi that was installed for it.
    """
    output = rank_output.read(outcome.lines, site.placement, site.names, _until_s(outcome))
    verdict, reason, hosts = _verdict(site, outcome, output, with_mpi=with_mpi)
    crowd = None if verdict is Verdict.PASS else startup.crowd(site, outcome, output, _silent(outcome, output.ranks))
    if crowd is not None:
        verdict, reason, hosts = Verdict.ERROR, crowd.words, ()
    return Judgement(
        verdict=verdict,
        reason=reason,
        hosts=hosts,
        ranks=output.ranks,
        measurements=_measurements(outcome, output),
        next_step=crowd.next_step if crowd is not None else "",
        evidence=() if verdict is Verdict.PASS else tuple(mpirun_output.without_noise(output.other)[-_MOST_EVIDENCE:]),
    )


def _until_s(outcome: JobOutcome) -> float:
    """Return the time after which the words of ranks do not count; ranks that are ended die in many ways."""
    return outcome.ending_s if outcome.ending == "deadline" else math.inf


def _verdict(
    site: Site, outcome: JobOutcome, output: rank_output.Output, *, with_mpi: bool
) -> tuple[Verdict, str, tuple[str, ...]]:
    if outcome.ending in {"not_started", "lost", "stopped"} or not output.in_state("started", "waiting", "answered"):
        return _no_verdict(site, outcome, output)
    wrong = tuple(report for report in output.in_state("answered") if not report.ok)
    if wrong:
        wrong = tuple(report for report in wrong if _was_killed(report)) or wrong  # the others lost a peer by that
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
    """Whether a signal ended the rank; SIGTERM is mpirun's own when it ends a job."""
    return any(problem.got.startswith("killed by") and "SIGTERM" not in problem.got for problem in report.problems)


def _unended(site: Site, outcome: JobOutcome, output: rank_output.Output) -> Fault:
    """Say what went wrong after every answer was right; blame ranks that fell silent before the others."""
    hosts = _unanswering(outcome) or mpirun_output.mentioned(output.other, site.slots)
    if outcome.ending != "deadline":
        reason = f"every answer was right, but mpirun ended with {mpirun_output.code(outcome)}"
        return mpirun_output.with_cause(reason, output.other), hosts
    reason = f"every answer was right, but the job did not end within {outcome.ending_s:.0f} s"
    silent = _silent(outcome, output.ranks)
    if silent and len(silent) < len(output.ranks):
        return f"{reason}: {named(silent)} fell silent before the end", unique(report.host for report in silent)
    return mpirun_output.with_cause(reason, output.other), hosts


def _silent(outcome: JobOutcome, reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Return the ranks that gave no more signs of life when the deadline passed."""
    patience = outcome.ending_s * _MISSED_BEATS / BEATS
    return tuple(r for r in reports if r.state == "absent" or outcome.ending_s - r.seen_s > patience)


def _no_verdict(site: Site, outcome: JobOutcome, output: rank_output.Output) -> tuple[Verdict, str, tuple[str, ...]]:
    """Say why the job cannot be judged."""
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
        reason = f"mpirun ended with {mpirun_output.code(outcome)} before any rank came up"
    if gone:
        reason += f"; {', '.join(gone)} no longer answers ssh"
    hosts = gone or mpirun_output.mentioned(output.other, site.slots)
    return Verdict.ERROR, mpirun_output.with_cause(reason, output.other), hosts


def _unanswering(outcome: JobOutcome) -> tuple[str, ...]:
    """Return the nodes that no longer answer, so that leftovers could not be cleared there."""
    return tuple(sweep.host for sweep in outcome.sweeps if sweep.problem)


def _missing(outcome: JobOutcome, output: rank_output.Output) -> Fault:
    """Blame ranks for answers that never came."""
    missing = output.in_state("absent", "started", "waiting")
    if outcome.ending == "deadline":
        return _missing_at_deadline(outcome, missing)
    return _missing_at_exit(outcome, output, missing)


def _missing_at_exit(outcome: JobOutcome, output: rank_output.Output, missing: Sequence[RankReport]) -> Fault:
    died = mpirun_output.death(output.other)
    if died is not None:
        host = next((report.host for report in output.ranks if str(report.rank) == died["rank"]), died["host"])
        return f"rank {died['rank']} on {host} {died['how']}; no answer from {named(missing)}", (host,)
    ended = f"mpirun ended with {mpirun_output.code(outcome)}"
    unheard = output.in_state("absent")
    # PRRTE does not report a rank that dies while others are still being launched.
    if mpirun_output.ending_signal(outcome) and 0 < len(unheard) < len(missing):
        return f"{named(unheard)} never came up, and {ended}", unique(report.host for report in unheard)
    reason = f"no answer from {named(missing)}; {ended}"
    gone = _unanswering(outcome)
    if gone:
        reason = f"{', '.join(gone)} no longer answers ssh; {reason}"
    return mpirun_output.with_cause(reason, output.other), gone or unique(report.host for report in missing)


def _missing_at_deadline(outcome: JobOutcome, missing: Sequence[RankReport]) -> Fault:
    """Blame the ranks that gave no sign of life; the others wait for them."""
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
    hosts = unique(report.host for report in silent or waiting)
    gone = tuple(host for host in _unanswering(outcome) if host in hosts)
    if gone:
        reason += f"; {', '.join(gone)} no longer answers ssh"
    return reason, gone or hosts


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
