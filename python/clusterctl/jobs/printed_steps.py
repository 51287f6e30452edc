"""The step times that ranks print, collected from the lines of a job's output.

Ranks that train together have equal step times, because the fast ones wait for the slow one. So a rank can be named
only where its lines tell how long it waited as well.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from clusterctl.analysis import step_times
from clusterctl.analysis.step_times import StepReport
from clusterctl.model import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.analysis.step_times import StepLine

_MOST_REPORTS = 60  # of each rank
_KEPT = 6000  # steps of each rank
_REPORT_S = 1.0  # steps of so long are one report, as clusterctl.pace sends them
_MOST_RANKS = 65536
_MOST_HELD = 4096  # bytes of a line without its end
_ENDS = re.compile(rb"[\r\n]")  # a progress bar ends its line with a carriage return
_PREFIX = re.compile(r"\[(\d{1,9})\] ")  # of --prefix rank


class PrintedSteps:
    """The last steps that each rank has printed; -1 is a rank that is not known."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        """Begin with nothing; without the user's ``pattern`` the usual lines of training loops are read."""
        self._own = pattern is not None
        self._patterns = step_times.USUAL if pattern is None else (pattern,)
        self._held: dict[str, bytes] = defaultdict(bytes)
        self._steps: dict[int, deque[StepLine]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._count = 0

    def take(self, stream: str, data: bytes) -> None:
        """Take some output of unknown ranks; the last, incomplete line waits for its end."""
        *lines, rest = _ENDS.split(self._held.pop(stream, b"") + data)
        for line in lines:
            self.hear(-1, line)
        self._held[stream] = rest[-_MOST_HELD:]

    def hear(self, rank: int, line: bytes) -> None:
        """Hear a line of a rank, of which a progress bar may have written several into one."""
        for part in _ENDS.split(line):
            self._add(rank, part.decode("utf-8", "replace"))

    def _add(self, rank: int, text: str) -> None:
        found = step_times.read(text, self._patterns)
        if found is None:
            return
        tagged = _PREFIX.match(text) if rank < 0 else None
        told = int(tagged[1]) if tagged else rank
        whose = found.rank if found.rank is not None else told
        if whose not in self._steps and len(self._steps) >= _MOST_RANKS:
            return
        steps = self._steps[whose]
        if found.step is not None and whose >= 0 and steps and steps[-1].step == found.step:
            steps.pop()  # the same step is printed again
        else:
            self._count += 1
        steps.append(found)

    def reports(self, node_of: Callable[[int, str], str]) -> dict[int, list[StepReport]]:
        """Return the steps of the ranks whose lines tell how long they waited, oldest first.

        Args:
            node_of: returns the node of a rank, or the given name where it is not known.
        """
        found: dict[int, list[StepReport]] = {}
        for rank, steps in self._steps.items():
            node = node_of(rank, "an unknown node") if rank >= 0 else ""
            if rank >= 0 and (own := _in_reports(rank, node, steps)):
                found[rank] = own
        return found

    def words(self) -> str:
        """Return what the lines tell where nobody can be compared, as a clause."""
        steps = [one for each in self._steps.values() for one in each]
        if not steps and self._own:
            return "no rank told of its steps: no line of the output matches --pace-pattern"
        if not steps:
            return (
                "no rank told of its steps; the program has to call clusterctl.pace.step() in its loop, or "
                "--pace-pattern has to match the step times that it prints"
            )
        usual = units.value_words(statistics.median(one.whole_s for one in steps), "s")
        seen = f"{usual} a step, by {self._count} lines of the output"
        if any(one.waited_s is not None for one in steps):
            return (
                f"{seen}; these do not tell which rank printed them, so nobody is named; add the group 'rank' to "
                "--pace-pattern"
            )
        return (
            f"{seen}; the own part of a rank is not known, so nobody is named: ranks that step together have equal "
            "step times; call clusterctl.pace.step(), or print the time that a rank waits, as the group 'waiting' of "
            "--pace-pattern"
        )


def _in_reports(rank: int, node: str, steps: Iterable[StepLine]) -> list[StepReport]:
    """Return the steps of the last minute, a second of them in one report: one late second must not blame a rank."""
    found: list[StepReport] = []
    count, whole_s, waited_s = 0, 0.0, 0.0
    for one in steps:
        if one.waited_s is None:
            continue
        count, whole_s, waited_s = count + 1, whole_s + one.whole_s, waited_s + one.waited_s
        if whole_s >= _REPORT_S:
            found.append(StepReport(rank, node, count, whole_s, waited_s))
            count, whole_s, waited_s = 0, 0.0, 0.0
    if not found and count:
        found.append(StepReport(rank, node, count, whole_s, waited_s))
    return found[-_MOST_REPORTS:]
