"""From a run of a check that passed by itself to its verdict: measured on, or measured once more.

Suspected pairs are measured on after a check's tournament, until a sequential test decides or the time is up.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.analysis import agreement, robust_stats, speed_verdict
from clusterctl.analysis.packet_loss import SENT_AGAIN
from clusterctl.analysis.speed_verdict import GOAL
from clusterctl.model.results import Verdict
from clusterctl.validation.checks.pairs import Pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import CheckResult, Culprit, Figure, PairMatrix
    from clusterctl.validation.checks.base import Check
    from clusterctl.validation.expectations import Expectations


# Measuring on: several runs of a check as one, until it judges finely enough or the time is up.

_DIGITS = 6
_FOR_FIRST = 0.5  # of the time; what stands out has to stand out in further runs


class Patience:
    """Takes runs of one check until it judges finely enough, or the time is up."""

    def __init__(
        self,
        seconds: float,
        take: Callable[[], CheckResult],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the time counts from here."""
        self._seconds, self._take, self._tell, self._clock = seconds, take, tell, clock
        self._began = clock()
        self._longest_s = 0.0

    def measured_on(self, first: CheckResult, assess: Callable[[CheckResult], CheckResult]) -> tuple[CheckResult, int]:
        """Add runs to the first one while they judge too coarsely.

        ``first`` passed and is not assessed; ``assess`` adds verdict and fineness.

        Returns:
            All runs as one, assessed, and their number. A run that does not pass by itself is returned alone, with 0.
        """
        runs, result = [first], assess(first)
        self._longest_s = first.seconds
        while result.verdict is Verdict.PASS and is_coarse(result) and self._has_time(_FOR_FIRST):
            self._tell(
                f"measured on after {len(runs)} run{'s' if len(runs) > 1 else ''}, since it can detect {_shown(result)}"
            )
            another = self._timed()
            if another.verdict is not Verdict.PASS:
                return another, 0
            runs.append(another)
            result = assess(pooled(runs))
        return _numbered(result, len(runs)), len(runs)

    def again(self, assess: Callable[[CheckResult], CheckResult]) -> CheckResult:
        """Return further runs as one: until they name somebody or judge finely, and at least one.

        A run that does not pass by itself is returned alone.
        """
        runs: list[CheckResult] = []
        while not runs or (self._has_time(1.0) and is_coarse(assess(pooled(runs)))):
            another = self._timed()
            if another.verdict is not Verdict.PASS:
                return another
            runs.append(another)
        return pooled(runs)

    def _timed(self) -> CheckResult:
        found = self._take()
        self._longest_s = max(self._longest_s, found.seconds)
        return found

    def _has_time(self, share: float) -> bool:
        """Whether another run would end within that share of the time."""
        return self._clock() - self._began + self._longest_s <= share * self._seconds


def is_coarse(result: CheckResult) -> bool:
    """Whether a fault of ten per cent might have stayed unseen."""
    return any(one.fraction > GOAL for one in result.fineness)


def pooled(runs: Sequence[CheckResult]) -> CheckResult:
    """Return several runs of a check that passed as one: medians of its figures and links over the runs."""
    last = runs[-1]
    if len(runs) == 1:
        return last
    return last.model_copy(
        update={
            "figures": tuple(_figures([figure for run in runs for figure in run.figures], len(runs))),
            "matrices": tuple(
                _matrix([other for run in runs for other in run.matrices if _same(other, matrix)])
                for matrix in last.matrices
            ),
            "seconds": round(math.fsum(run.seconds for run in runs), 3),
        }
    )


def _figures(figures: Iterable[Figure], runs: int) -> Iterable[Figure]:
    """Return each figure with the samples of all runs; lost segments count where most runs lost some."""
    groups: dict[object, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.identity, []).append(figure)
    for group in groups.values():
        samples = tuple(value for figure in group for value in figure.samples)
        if group[0].quantity == SENT_AGAIN and 2 * len(group) <= runs:
            continue
        values = samples or tuple(figure.value for figure in group)
        confidence = max(figure.confidence for figure in group) or 0.95
        yield group[-1].model_copy(update={"samples": samples, **robust_stats.summary(values, confidence)})


def _same(one: PairMatrix, other: PairMatrix) -> bool:
    return (one.quantity, one.size_bytes, one.nodes) == (other.quantity, other.size_bytes, other.nodes)


def _matrix(runs: Sequence[PairMatrix]) -> PairMatrix:
    """Return the matrix of the medians of each link, for the links that any run has measured."""
    links = sorted({link for run in runs for link in zip(run.first, run.second, strict=True)})
    update: dict[str, object] = {
        "first": tuple(first for first, _ in links),
        "second": tuple(second for _, second in links),
        "complete": any(run.complete for run in runs),
    }
    for name in ("value", "spread", "forward", "backward"):
        columns = [
            dict(zip(zip(run.first, run.second, strict=True), getattr(run, name), strict=True))
            for run in runs
            if getattr(run, name)
        ]
        known = columns and all(any(link in column for column in columns) for link in links)
        update[name] = tuple(_median(column[link] for column in columns if link in column) for link in links if known)
    return runs[-1].model_copy(update=update)


def _median(values: Iterable[float]) -> float:
    return float(f"{statistics.median(values):.{_DIGITS}g}")


def _shown(result: CheckResult) -> str:
    return f"{100 * max(one.fraction for one in result.fineness):.0f} %"


def _numbered(result: CheckResult, runs: int) -> CheckResult:
    """Say with a result of several runs how many they were."""
    return result if runs == 1 else result.model_copy(update={"reason": f"{result.reason}; {runs} runs together"})


_BY_CHANCE = 0.0005  # links that chance may put into all runs; above it, those that are named need one more run
_MOST_RUNS = 4


def confirmed(
    check: Check,
    first: CheckResult,
    assessed: CheckResult,
    take: Callable[..., CheckResult],
    tell: Callable[[str], None],
    judges: Expectations,
    patience_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> CheckResult:
    """Measure on what is undecided, for as long as the user is patient, and once more what else stands out.

    ``first`` passed by itself and is not assessed. ``take`` runs the check once more, or another check in its place.
    ``patience_s`` is how long the user waits for a fine judgement.
    """
    named: tuple[Culprit, ...] = ()
    result, runs, number = assessed, [assessed.culprits], 1
    if isinstance(check, Pairs) and check.options.measure_on and not patience_s:
        pursued = MeasuringOn(check, take, tell, judges.policy, clock).pursued(first, result)
        if pursued.is_final or not pursued.is_open:
            return pursued.result
        result, named = pursued.result, pursued.named
    patience = Patience(patience_s, take, tell, clock)
    if patience_s and result.verdict is Verdict.PASS:
        result, number = patience.measured_on(first, judges.assess)
        runs = [result.culprits]
    is_open = bool(number) and speed_verdict.suspects(result)
    while is_open:
        tell(f"measured once more, since {result.reason}")
        again = patience.again(judges.assess)
        result = judges.confirmed(result, again)
        is_open = len(runs) < _MOST_RUNS - 1 and again.verdict is Verdict.PASS and speed_verdict.suspects(result)
        if is_open:
            runs.append(judges.assess(again).culprits)
            is_open = agreement.by_chance(result.culprits, runs) > _BY_CHANCE
    return speed_verdict.with_named(result, named)


@dataclass(frozen=True)
class Pursued:
    """A run whose suspects were measured on."""

    result: CheckResult  # what is known now, assessed
    named: tuple[Culprit, ...] = ()  # whom the test named; they need no second run
    is_open: bool = True  # whether a second run has to confirm something else
    is_final: bool = False  # whether a further job ended badly by itself, so that ``result`` is about that job


class MeasuringOn:
    """Takes further jobs for the pairs that the test asks for."""

    def __init__(
        self,
        check: Pairs,
        take: Callable[[Check], CheckResult],
        tell: Callable[[str], None],
        policy: OutlierPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check, self._take, self._tell, self._policy, self._clock = check, take, tell, policy, clock

    def pursued(self, first: CheckResult, assessed: CheckResult) -> Pursued:
        """Measure on after a run that passed by itself."""
        from clusterctl.analysis import sequential  # noqa: PLC0415 - numpy, for runs that measure

        matrices = sequential.chosen(assessed)
        seconds, a_round_s = self._check.options.measure_on * first.deadline_s, self._check.round_s(first)
        if not matrices or seconds <= 0 or a_round_s is None:
            return Pursued(assessed)
        began, longest_s, jobs = self._clock(), 0.0, 0
        tried = [sequential.Undecided(one, sequential.bounds(self._policy, len(matrices))) for one in matrices]
        for number, one in enumerate(tried, start=1):
            until = began + seconds * number / len(tried)
            while True:
                left_s = until - self._clock() - longest_s
                ask = one.ask(max(0, int(left_s / a_round_s)))
                if ask is None:
                    break
                pairs = sum(len(each) for each in ask.rounds)
                self._tell(f"measures on: {pairs} pairs, {ask.repeats} times, since it is not decided who is slow")
                before = self._clock()
                found = self._take(self._check.measuring_on(one.about, ask.rounds, ask.repeats))
                jobs += 1
                overhead_s = self._clock() - before - ask.played * a_round_s
                longest_s = max(longest_s, overhead_s)
                if found.verdict is Verdict.FAIL:
                    return Pursued(found, is_final=True)
                if found.verdict is not Verdict.PASS:
                    break
                one.add(found.matrices)
        named = sequential.named_by(tried)
        if not jobs:
            return Pursued(assessed)
        told = first.model_copy(update={"reason": f"{first.reason}; {sequential.words(assessed, tried, named, jobs)}"})
        rest = sequential.still_open(assessed, tried)
        if rest or speed_verdict.failed_comparisons(assessed):
            return Pursued(speed_verdict.settled(told, assessed, rest, self._policy), named)
        return Pursued(speed_verdict.settled(told, assessed, named, self._policy), named, is_open=False)
