"""``run --pace``: take the ranks' reports of their steps out of the output, and name the rank that is late.

The program calls ``clusterctl.pace``. A report is a line on the standard error of the rank; the user does not see it.
Without reports, the step times that ranks print are read.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.analysis import step_times
from clusterctl.analysis.step_times import StepReport
from clusterctl.jobs import run as jobs
from clusterctl.model import units
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.analysis.step_times import Pace, StepLine
    from clusterctl.jobs.output_lines import Take
    from clusterctl.jobs.run import RankPlaces, RunOptions
    from clusterctl.model.hosts import AnyInventory


_MARK = b"clusterctl-pace "
# A whole report, with the prefix of --prefix where there is one; and the begin of one whose rest has not come yet.
_REPORT = re.compile(
    rb"(?:(?:(?<=\n)|\A)\[[^\]\n]{1,255}\] )?"
    rb"clusterctl-pace 1 (\d{1,9}|-) ([A-Za-z0-9._-]{1,255}) (\d{1,12}) (\d{1,12}\.\d{1,9}) (\d{1,12}\.\d{1,9})\r?\n"
)
_LONGEST = 400  # bytes of a report
_KEPT = 60  # reports of each rank
_JUDGED_EVERY = 10
_MOST_RANKS = 65536
_MOST_NAMED = 6


def run(
    inventory: AnyInventory,
    options: RunOptions,
    take: Take,
    tell: Callable[[str], None],
    pattern: re.Pattern[str] | None = None,
) -> int:
    """Run the user's program as :func:`clusterctl.jobs.run.run`, and tell which rank is late while it runs and after.

    The wish of ``options`` has ``pace``. ``pattern`` reads the step times that ranks print; without it the usual lines
    of training loops are read.

    Returns:
        The exit code of the job; a late rank does not change it.
    """
    taker = PaceTaker(take, tell, pattern)
    if pattern is not None:
        options = replace(options, hear=taker.hear)
    try:
        code = jobs.run(inventory, options, taker, tell, taker.know)
    finally:
        taker.flush()
    taker.conclude()
    return code


class PaceTaker:
    """Pass on the output of a job without the reports of its ranks, and judge these."""

    def __init__(self, take: Take, tell: Callable[[str], None], pattern: re.Pattern[str] | None = None) -> None:
        self._printed = PrintedSteps(pattern)
        self._take, self._tell = take, tell
        self._held: dict[str, bytes] = {}
        self._reports: dict[int, deque[StepReport]] = {}
        self._new = 0
        self._unnumbered = 0
        self._told: frozenset[int] = frozenset()
        self._places = jobs.RankPlaces((), {})

    def know(self, places: RankPlaces) -> None:
        """Learn where the ranks are; before that, a node has the name that it calls itself."""
        self._places = places

    def __call__(self, stream: str, data: bytes) -> None:
        """Take some output; what may become a report waits for its end."""
        text = self._held.pop(stream, b"") + data
        left: list[bytes] = []
        at = 0
        for found in _REPORT.finditer(text):
            left.append(text[at : found.start()])
            at = found.end()
            self._heard(found)
        rest = text[at:]
        cut = _begin(rest)
        self._held[stream] = rest[cut:]
        left.append(rest[:cut])
        if whole := b"".join(left):
            if not self._places.heard:
                self._printed.take(stream, whole)
            self._take(stream, whole)

    def hear(self, rank: int, line: bytes) -> None:
        """Hear a line of a rank, where the launcher tells which rank prints."""
        self._printed.hear(rank, line)

    def flush(self) -> None:
        for stream, rest in self._held.items():
            if rest:
                self._take(stream, rest)
        self._held = {}

    def conclude(self) -> None:
        """Tell the pace of the last minutes of the job."""
        if self._unnumbered:
            self._tell("Pace: a process has no rank number in its environment, so its steps were left out.")
        if not self._reports and (reports := self._printed.reports(self._places.node)):
            self._reports.update({rank: deque(each, maxlen=_KEPT) for rank, each in reports.items()})
        if self._reports:
            pace = step_times.judge(self._reports_of_all())
            self._tell(f"Pace: {_steps(pace)}; {self._verdict(pace)}.")
        else:
            self._tell(f"Pace: {self._printed.words()}.")

    def _reports_of_all(self) -> dict[int, list[StepReport]]:
        return {rank: list(each) for rank, each in sorted(self._reports.items())}

    def _heard(self, found: re.Match[bytes]) -> None:
        rank, host, steps, whole_s, waited_s = (word.decode("ascii") for word in found.groups())
        if not rank.isdigit() or int(steps) == 0 or len(self._reports) > _MOST_RANKS:
            self._unnumbered += 1
            return
        node = self._places.node(int(rank), host)
        report = step_times.StepReport(int(rank), node, int(steps), float(whole_s), float(waited_s))
        self._reports.setdefault(report.rank, deque(maxlen=_KEPT)).append(report)
        self._new += 1
        if self._new >= _JUDGED_EVERY * len(self._reports):
            self._new = 0
            self._look()

    def _look(self) -> None:
        """Tell who is late now, where that is news."""
        pace = step_times.judge({rank: each[-2 * _JUDGED_EVERY :] for rank, each in self._reports_of_all().items()})
        late = frozenset(one.rank for one in pace.late)
        if late - self._told:
            self._tell(f"Pace: {_late_words(pace)}.")
        if not pace.unknown:
            self._told = late

    def _verdict(self, pace: Pace) -> str:
        if pace.unknown:
            return pace.unknown
        if pace.late:
            return _late_words(pace)
        fine = "" if pace.finest is None else f"; one that takes {units.percent(pace.finest)} longer would be named"
        return f"no rank is late{fine}"


def _begin(rest: bytes) -> int:
    """Return where a report may begin whose end is missing; the length of ``rest`` where there is none."""
    line = max(rest.rfind(b"\n") + 1, len(rest) - _LONGEST)
    at = rest.find(_MARK, line)
    if at >= 0:
        return _prefixed(rest, at)
    for length in range(min(len(_MARK) - 1, len(rest) - line), 0, -1):
        if rest.endswith(_MARK[:length]):
            return _prefixed(rest, len(rest) - length)
    return len(rest)


def _prefixed(rest: bytes, at: int) -> int:
    """Return the begin of the line where nothing but a prefix stands before the report."""
    line = rest.rfind(b"\n", 0, at) + 1
    return line if re.fullmatch(rb"\[[^\]\n]{1,255}\] ", rest[line:at]) else at


def _steps(pace: Pace) -> str:
    own = sorted(pace.own_s.values())
    least, most = (units.value_words(value, "s") for value in (own[0], own[-1]))
    return f"{pace.ranks} ranks, {units.value_words(pace.step_s, 's')} a step, own part {least} to {most}"


def _late_words(pace: Pace) -> str:
    named = [f"rank {one.rank} on {one.host} ({units.value_words(one.own_s, 's')})" for one in pace.late]
    verb = "is late: its" if len(named) == 1 else "are late: their"
    usual = units.value_words(pace.late[0].usual_s, "s")
    return f"{and_more(named, _MOST_NAMED)} {verb} own part of a step takes longer than the {usual} of the other ranks"


# --- The step times that ranks print, collected from the lines of a job's output --------------------------------------
#
# Ranks that train together have equal step times, because the fast ones wait for the slow one. So a rank can be named
# only where its lines tell how long it waited as well.

_MOST_REPORTS = 60  # of each rank
_KEPT_LINES = 6000  # steps of each rank
_REPORT_S = 1.0  # steps of so long are one report, as clusterctl.pace sends them
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
        self._steps: dict[int, deque[StepLine]] = defaultdict(lambda: deque(maxlen=_KEPT_LINES))
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

        ``node_of`` returns the node of a rank, or the given name where it is not known.
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
