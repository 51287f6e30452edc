"""Step times in lines of a job's output: by the user's regular expression, or by the usual lines of training loops.

A regular expression names what it finds by groups: :data:`TIMES`, ``waiting``, ``step`` and ``rank``.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

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
