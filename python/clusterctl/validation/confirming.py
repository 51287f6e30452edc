"""From a run of a check that passed by itself to its verdict: measured on, or measured once more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from clusterctl.analysis import speed_verdict
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.measuring_on import MeasuringOn
from clusterctl.validation.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.analysis.significance import OutlierPolicy
    from clusterctl.model.culprits import Culprit
    from clusterctl.model.results import CheckResult
    from clusterctl.validation.checks.base import Check


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
            from clusterctl.analysis import agreement  # noqa: PLC0415 - numpy, for runs that measure

            runs.append(judges.assess(again).culprits)
            is_open = agreement.by_chance(result.culprits, runs) > _BY_CHANCE
    return speed_verdict.with_named(result, named)
