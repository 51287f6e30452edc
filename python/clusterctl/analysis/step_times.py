"""Which rank's own part of a training step is late, and the step times that ranks send or print.

Ranks that step together all have the same step time. A step's own part is its time without waiting for other ranks.
Each rank has one figure, the median over its reports, and the figures are compared as those of nodes are
(:mod:`clusterctl.analysis.outliers`). The reports are judged in two halves. A rank is late when both halves name it,
and when it is late by a noticeable part of the step.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model.results import Figure

# Own parts of healthy ranks differ by some per cent, and 5 % of the step is what a user would wait for.
POLICY = OutlierPolicy(floor=0.1)
LEAST_PART = 0.05
FEWEST_RANKS = 3  # two differ, and nothing says which of them is late
FEWEST_REPORTS = 6  # three in each half
_SHORTEST_S = 1e-6


class StepReport(NamedTuple):
    """What a rank tells of some steps: how many, their seconds, and the seconds of these in which it waited."""

    rank: int
    host: str
    steps: int
    whole_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """The own part of one step."""
        return max(_SHORTEST_S, (self.whole_s - self.waited_s) / self.steps)

    @property
    def step_s(self) -> float:
        return self.whole_s / self.steps


@dataclass(frozen=True)
class LateRank:
    """A rank whose own part takes ``own_s`` seconds of each step, while that of the others takes ``usual_s``."""

    rank: int
    host: str
    own_s: float
    usual_s: float


@dataclass(frozen=True)
class Pace:
    """The steps of a job."""

    ranks: int  # how many ranks reported
    step_s: float  # the time of a step, the median over the ranks
    own_s: Mapping[int, float]  # the own part of each rank
    late: tuple[LateRank, ...] = ()  # the late ranks, the latest first
    # a rank is named from this share above the others on (0.3: 30 % more); None where it is not known
    finest: float | None = None
    unknown: str = ""  # why nobody can be named; empty where the ranks were compared


def judge(reports: Mapping[int, Sequence[StepReport]]) -> Pace:
    """Return who is late.

    The reports of a rank are in the order in which they came; there is one at least.
    """
    counted = min(map(len, reports.values()))
    own = {rank: statistics.median(one.own_s for one in each) for rank, each in reports.items()}
    step_s = statistics.median(one.step_s for each in reports.values() for one in each)
    if not any(one.waited_s for each in reports.values() for one in each):
        why = "no rank told what it waits for; put the collective or the backward pass into 'with pace.waiting():'"
    elif len(reports) < FEWEST_RANKS:
        why = f"{len(reports)} ranks are too few to tell which of them is late"
    elif counted < FEWEST_REPORTS:
        why = f"the job was too short: a rank sent {counted} of the {FEWEST_REPORTS} reports that a comparison takes"
    else:
        return _compared(reports, own, step_s, counted)
    return Pace(len(reports), step_s, own, unknown=why)


def _compared(
    reports: Mapping[int, Sequence[StepReport]], own: Mapping[int, float], step_s: float, counted: int
) -> Pace:
    from clusterctl.analysis import outliers  # noqa: PLC0415 - numpy, for ranks that tell their steps

    last = {rank: each[-counted:] for rank, each in reports.items()}
    halves = [_figures(last, slice(0, counted // 2)), _figures(last, slice(counted // 2, None))]
    first, second = ({one.nodes[0] for one in outliers.among_nodes(half, POLICY)} for half in halves)
    named = {rank for rank in reports if str(rank) in first & second}
    usual_s = statistics.median(value for rank, value in own.items() if rank not in named)
    late = [
        LateRank(rank, reports[rank][-1].host, own[rank], usual_s)
        for rank in named
        if own[rank] - usual_s >= LEAST_PART * step_s
    ]
    distances = [outliers.finest_node(half, POLICY) for half in halves]
    known = [one for one in distances if one is not None]
    finest = max(math.expm1(max(known)), LEAST_PART * step_s / usual_s) if len(known) == len(halves) else None
    return Pace(len(reports), step_s, own, tuple(sorted(late, key=lambda one: -one.own_s)), finest)


def _figures(reports: Mapping[int, Sequence[StepReport]], part: slice) -> list[Figure]:
    figures = []
    for rank, each in reports.items():
        samples = tuple(one.own_s for one in each[part])
        value = statistics.median(samples)
        figures.append(
            Figure(quantity="time", nodes=(str(rank),), value=value, unit="s", samples=samples, better="lower")
        )
    return figures


# --- Step times in lines of a job's output: by the user's regular expression, or by the usual lines of training loops -
# A regular expression names what it finds by groups: :data:`TIMES`, ``waiting``, ``step`` and ``rank``.

# The time of one step by one of these groups, and how many seconds its unit has; None: steps in a second.
TIMES: dict[str, float | None] = {"seconds": 1.0, "milliseconds": 1e-3, "per_second": None}
_GROUPS = (*TIMES, "waiting", "step", "rank")
_MOST_DIGITS = 12
_LONGEST = 4096  # characters of a line; a longer one tells of no step
_NUMBER = r"\d{1,9}(?:\.\d{1,12})?(?:[eE][-+]?\d{1,2})?"
_STEP = r"(?:global[ _]step|step|iter(?:ation)?|batch)"

# Each has the time of a step with its unit; a number without a unit may be anything.
USUAL: tuple[re.Pattern[str], ...] = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        rf"(?P<per_second>{_NUMBER}) ?(?:it|steps?|batch(?:es)?)/s(?:ec)?\b",  # tqdm
        rf"(?P<seconds>{_NUMBER}) ?s(?:ec)?/(?:it|{_STEP})\b",  # tqdm of slow steps
        rf"(?P<milliseconds>{_NUMBER}) ?ms/(?:it|{_STEP})\b",  # Keras
        rf"{_STEP}s?/sec(?:ond)?[:= ] ?(?P<per_second>{_NUMBER})",  # TensorFlow's estimators
        rf"time per {_STEP} \(ms\)[:= ] ?(?P<milliseconds>{_NUMBER})",  # Megatron-LM
        rf"\b{_STEP}[ _]?time(?: ?\(s\))?[:= ] ?(?P<seconds>{_NUMBER}) ?s(?:ec(?:onds)?)?\b",
        rf"\b{_STEP}[ _]?time(?: ?\(ms\))?[:= ] ?(?P<milliseconds>{_NUMBER}) ?ms\b",
        rf"\b{_STEP}[ :=#]+(?P<step>\d{{1,12}})\b.{{0,200}}?\btime[:= ] ?(?P<milliseconds>{_NUMBER}) ?ms\b",  # nanoGPT
        rf"\b{_STEP}[ :=#]+(?P<step>\d{{1,12}})\b.{{0,200}}?\btime[:= ] ?(?P<seconds>{_NUMBER}) ?s(?:ec(?:onds)?)?\b",
    )
)


class StepLine(NamedTuple):
    """What a line tells of one step, in seconds; None where it does not tell.

    ``waited_s`` is the part in which the rank waited.
    """

    whole_s: float
    waited_s: float | None = None
    step: int | None = None
    rank: int | None = None


def compiled(text: str) -> re.Pattern[str]:
    """Return the user's regular expression.

    Raises:
        ValueError: it is invalid, or does not name what is needed; the text is a sentence for the user.
    """
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the regular expression is invalid: {error}") from None
    unknown = [name for name in pattern.groupindex if name not in _GROUPS]
    if unknown:
        raise ValueError(f"the group '{unknown[0]}' is unknown; the groups are {', '.join(_GROUPS)}")
    if sum(name in pattern.groupindex for name in TIMES) != 1:
        raise ValueError(
            f"it needs one of the groups {', '.join(TIMES)} for the time of a step, as in 'step took "
            r"(?P<seconds>[\d.]+) s'"
        )
    return pattern


def read(line: str, patterns: tuple[re.Pattern[str], ...] = USUAL) -> StepLine | None:
    """Return what a line tells of a step, by the first pattern that finds something; None where it tells nothing."""
    if len(line) > _LONGEST:
        return None
    for pattern in patterns:
        if found := pattern.search(line):
            return _read(found.groupdict())
    return None


def _read(words: dict[str, str | None]) -> StepLine | None:
    name = next(name for name in TIMES if name in words)
    unit, value = TIMES[name], _number(words[name])
    if value is None or value <= 0:
        return None
    whole_s = 1 / value if unit is None else value * unit
    waiting = _number(words.get("waiting"))
    waited_s = None if waiting is None else waiting * (unit or 1.0)
    if waited_s is not None and waited_s > whole_s:
        return None  # one of the two is something else
    return StepLine(whole_s, waited_s, _count(words.get("step")), _count(words.get("rank")))


def _number(word: str | None) -> float | None:
    try:
        value = float(word or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _count(word: str | None) -> int | None:
    return int(word) if word and word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS else None
