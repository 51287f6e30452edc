"""Read what the pods of a validation print: which check runs, its ranks' lines, and how it ended in each pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.job_outcome import Ending

_MARK = '{"clusterctl_pod"'
_RANK = '{"clusterctl"'
_MOST_LAST = 200
_MOST_LINES = 200_000  # of a check
_MOST_PARTS = 4096  # of a pod; a plan has some dozens
_MOST_TEXT, _MOST_OF_LINE = 1 << 28, 1 << 17  # characters of all lines, and of one
_LONGEST_S = 1e9


@dataclass
class _PodPart:
    """One check in one pod."""

    check: str
    began_s: float
    lines: list[OutputLine] = field(default_factory=list)
    end: Mapping[str, Any] | None = None


class PodOutput:
    """The output of all pods so far.

    A check may run more than once; its runs are told apart by their number, from 0.
    """

    def __init__(self, speakers: int) -> None:
        """Begin with nothing heard; ``speakers`` pods print results."""
        self._speakers = speakers
        self._parts: dict[str, list[_PodPart]] = {}
        self._done: set[str] = set()
        self._kept = 0
        self.up: dict[str, Mapping[str, Any]] = {}  # by pod, what its image has
        self.lacks: dict[str, str] = {}  # by pod, what is missing for the checks
        self.last: dict[str, str] = {}  # by pod, the last line outside of checks that is not ours

    @property
    def is_done(self) -> bool:
        """Whether every pod that speaks has ended its part, or one cannot begin."""
        return len(self._done) >= self._speakers or bool(self.lacks)

    def take(self, pod: str, text: str, at_s: float) -> None:
        """Take a line of a pod's log."""
        event = _event(text)
        parts = self._parts.setdefault(pod, [])
        if event is None:
            if parts and parts[-1].end is None and text.strip() and self._has_room(parts[-1], text):
                stream = "stdout" if _RANK in text else "stderr"
                parts[-1].lines.append(OutputLine(stream, at_s - parts[-1].began_s, text[:_MOST_OF_LINE]))
            elif text.strip():
                self.last[pod] = text.strip()[:_MOST_LAST]
            return
        kind = event.get("event")
        if kind == "up":
            self.up[pod] = event
        elif kind == "lacks":
            self.lacks[pod] = str(event.get("what", ""))
        elif kind == "begin" and len(parts) < _MOST_PARTS:
            parts.append(_PodPart(str(event.get("check", "")), at_s))
        elif kind == "end" and parts:
            parts[-1].end = event
        elif kind == "done":
            self._done.add(pod)

    def _has_room(self, part: _PodPart, text: str) -> bool:
        self._kept += min(len(text), _MOST_OF_LINE)
        return self._kept <= _MOST_TEXT and len(part.lines) < _MOST_LINES

    def running(self) -> str:
        """Return the check that runs, empty between checks."""
        last = [parts[-1] for parts in self._parts.values() if parts]
        return next((part.check for part in last if part.end is None), "")

    def has_ended(self, number: int) -> bool:
        """Tell whether the check of this number, in the order of the plan, has ended in every pod that speaks."""
        ends = [parts[number].end for parts in self._parts.values() if len(parts) > number]
        return len(ends) >= self._speakers and all(end is not None for end in ends)

    def outcome(self, number: int) -> JobOutcome | None:
        """Return how the check of this number went in all pods together, None where it did not begin."""
        parts = [found[number] for found in self._parts.values() if len(found) > number]
        if not parts:
            return None
        lines = tuple(sorted((line for part in parts for line in part.lines), key=lambda line: line.at_s))
        ends = [part.end for part in parts if part.end is not None]
        last_s = max((line.at_s for line in lines), default=0.0)
        if len(ends) < self._speakers:
            return JobOutcome("lost", last_s, lines=lines, problem="its pods ended in the middle of this check")
        worst = max(ends, key=_badness)
        ending = _ending(worst)
        return JobOutcome(
            ending,
            _number(worst, "seconds"),
            _number(worst, "ending_s"),
            rc=_code(worst, "rc"),
            signal=_code(worst, "signal"),
            lines=lines,
            problem=str(worst.get("problem", "")),
        )


def _badness(end: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Order ends of one check: a program that did not start, a deadline, a code."""
    return _ending(end) == "not_started", _ending(end) == "deadline", _code(end, "rc") != 0


def _ending(end: Mapping[str, Any]) -> Ending:
    word = end.get("ending")
    return "not_started" if word == "not_started" else "deadline" if word == "deadline" else "exited"


def _number(end: Mapping[str, Any], name: str) -> float:
    value = end.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value <= _LONGEST_S else 0.0


def _code(end: Mapping[str, Any], name: str) -> int | None:
    value = end.get(name)
    return value if type(value) is int else None  # False would count as success


def _event(text: str) -> dict[str, Any] | None:
    at = text.find(_MARK)
    if at < 0:
        return None
    try:
        value = node_json.loads(text[at:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
