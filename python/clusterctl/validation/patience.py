"""Measuring on: several runs of a check as one, until it judges finely enough or the time is up."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

from clusterctl.analysis import robust_stats
from clusterctl.analysis.packet_loss import SENT_AGAIN
from clusterctl.analysis.speed_verdict import GOAL
from clusterctl.model.results import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.model.results import CheckResult, Figure, PairMatrix

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
        """Prepare; the time counts from here.

        Args:
            seconds: how long it may go on.
            take: runs the check once more.
            tell: hears in words how finely the runs judge so far.
            clock: tells seconds.
        """
        self._seconds, self._take, self._tell, self._clock = seconds, take, tell, clock
        self._began = clock()
        self._longest_s = 0.0

    def measured_on(self, first: CheckResult, assess: Callable[[CheckResult], CheckResult]) -> tuple[CheckResult, int]:
        """Add runs to the first one while they judge too coarsely.

        Args:
            first: a run that passed, not assessed.
            assess: adds verdict and fineness.

        Returns:
            All runs as one, assessed, and their number. A run that does not pass by itself is returned alone, with 0.
        """
        runs, result = [first], assess(first)
        self._longest_s = first.seconds
        while result.verdict is Verdict.PASS and is_coarse(result) and self._has_time(_FOR_FIRST):
            self._tell(
                f"measured on after {len(runs)} run{'s' if len(runs) > 1 else ''}, since it judged to {_shown(result)}"
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
    return f"±{100 * max(one.fraction for one in result.fineness):.0f} %"


def _numbered(result: CheckResult, runs: int) -> CheckResult:
    """Say with a result of several runs how many they were."""
    return result if runs == 1 else result.model_copy(update={"reason": f"{result.reason}; {runs} runs together"})
