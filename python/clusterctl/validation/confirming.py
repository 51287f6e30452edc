"""From a run of a check that passed by itself to its verdict: measured on, or measured once more.

Suspected pairs are measured on after a check's tournament, until a sequential test decides or the time is up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clusterctl.analysis import agreement, speed_verdict
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import CheckResult, Culprit
    from clusterctl.validation.checks.base import Check, MeasuresOn


_BY_CHANCE = 0.0005  # links that chance may put into all runs; above it, those that are named need one more run
_MOST_RUNS = 4


class Judges(Protocol):
    """What figures are held against (:class:`clusterctl.validation.expectations.Expectations`)."""

    @property
    def policy(self) -> OutlierPolicy:
        """When a node or a link stands out."""

    def assess(self, found: CheckResult) -> CheckResult:
        """Return the result with comparisons and culprits."""

    def confirmed(self, first: CheckResult, second: CheckResult) -> CheckResult:
        """Return the second run of a check, blamed only for what the first run shows as well."""


def confirmed(
    check: Check,
    first: CheckResult,
    assessed: CheckResult,
    take: Callable[..., CheckResult],
    tell: Callable[[str], None],
    judges: Judges,
    patience_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> CheckResult:
    """Measure on what is undecided, for as long as the user is patient, and once more what else stands out.

    Args:
        check: the check.
        first: a run of it that passed by itself, not assessed.
        assessed: the same, assessed.
        take: runs the check once more, or another check in its place.
        tell: hears what is measured, and why.
        judges: what figures are held against.
        patience_s: how long the user waits for a fine judgement.
        clock: tells seconds.
    """
    named: tuple[Culprit, ...] = ()
    result, runs, number = assessed, [assessed.culprits], 1
    if isinstance(check, base.MeasuresOn) and check.measure_on and not patience_s:
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
    """A run whose suspects were measured on.

    Attributes:
        result: what is known now, assessed.
        named: whom the test named; they need no second run.
        is_open: whether a second run has to confirm something else.
        is_final: whether a further job ended badly by itself, so that ``result`` is about that job.
    """

    result: CheckResult
    named: tuple[Culprit, ...] = ()
    is_open: bool = True
    is_final: bool = False


class MeasuringOn:
    """Takes further jobs for the pairs that the test asks for."""

    def __init__(
        self,
        check: MeasuresOn,
        take: Callable[[Check], CheckResult],
        tell: Callable[[str], None],
        policy: OutlierPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            check: the check that measured the tournament.
            take: runs a check as one further job.
            tell: hears what is measured on.
            policy: when a node or a link stands out.
            clock: tells seconds.
        """
        self._check, self._take, self._tell, self._policy, self._clock = check, take, tell, policy, clock

    def pursued(self, first: CheckResult, assessed: CheckResult) -> Pursued:
        """Measure on after a run that passed by itself.

        Args:
            first: the run, not assessed.
            assessed: the same, assessed.
        """
        from clusterctl.analysis import sequential  # noqa: PLC0415 - numpy, for runs that measure

        matrices = sequential.chosen(assessed)
        seconds, a_round_s = self._check.measure_on * first.deadline_s, self._check.round_s(first)
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
