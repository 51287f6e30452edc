"""Parser for a user's own check: a regular expression, or a path into the JSON that it prints."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from clusterctl.analysis import robust_stats
from clusterctl.model.results import Figure
from clusterctl.validation.checks.parsers import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.suite import ExternalCheck

_CONFIDENCE = 0.95
_STEP = re.compile(r"\[(\d+)\]|([\w-]+)")
_BEGIN = re.compile(r"^[{\[]", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MOST_SHOWN = 60


def figure(check: ExternalCheck, text: str, nodes: tuple[str, ...] = ()) -> Figure:
    """Return the figure that a program printed; of several values, the median.

    Args:
        check: with ``regex`` or ``json_path``.
        text: its output.
        nodes: the nodes that the figure is about.

    Raises:
        UnreadableError: the value is missing or is not a number.
    """
    printed = _matched(check.regex, text) if check.regex else _led_to(check, text)
    found = tuple(_number(value * check.scale) for value in printed)
    return Figure(
        quantity=check.measures,
        nodes=nodes,
        unit=check.unit,
        samples=found,
        better=check.better,
        **robust_stats.summary(found, _CONFIDENCE),
    )


def _matched(expression: str, text: str) -> list[float]:
    compiled = re.compile(expression, re.MULTILINE)
    group: str | int = "value" if "value" in compiled.groupindex else 1
    found = [_number(match[group]) for match in compiled.finditer(text)]
    if not found:
        raise UnreadableError(f"no line of its output matches '{_short(expression)}'")
    return found


def _led_to(check: ExternalCheck, text: str) -> list[float]:
    """Return the values at the path in the last JSON document that has it; other lines do not matter."""
    steps = [int(index) if index else key for index, key in _STEP.findall(check.json_path.removeprefix("$"))]
    documents = list(_documents(text))
    for document in reversed(documents):
        value = _at(document, steps)
        if value is not None:
            return [_number(one) for one in value] if isinstance(value, list) and value else [_number(value)]
    if not documents:
        raise UnreadableError("its output does not hold a whole JSON document")
    raise UnreadableError(f"the JSON in its output has no value at '{check.json_path}'")


def _documents(text: str) -> Iterator[Any]:
    """Yield the objects and lists that begin at the start of a line; incomplete documents are left out."""
    at = 0
    while (match := _BEGIN.search(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, match.start())
        except ValueError:  # also for a number of thousands of digits
            at = match.end()
        except RecursionError:
            return
        else:
            yield value


def _at(value: Any, steps: Iterable[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _number(found: object) -> float:
    """Return a finite number.

    Raises:
        UnreadableError: it is not a finite number.
    """
    try:
        value = math.nan if isinstance(found, bool) else float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise UnreadableError(f"'{_short(str(found))}' in its output is not a number")
    return value


def _short(words: str) -> str:
    return words if len(words) <= _MOST_SHOWN else f"{words[: _MOST_SHOWN - 3]}..."
