"""Measure the wall time of each stage of a run; a stage lasts until the next one begins."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from clusterctl.model.events import Finished, HostResult, StageStarted
from clusterctl.model.run_record import RunTiming, StageTiming
from clusterctl.provisioning.critical_path import END, PathFinder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.model.events import Event
    from clusterctl.provisioning.host_run import AskingObserver

START = "start of Ansible"
_ASKING = "asking the user"
TOTAL = "total"

PreviewT = TypeVar("PreviewT")


@dataclass
class _Stage:
    wall_s: float = 0.0
    run: int = 0
    skipped: int = 0

    def timing(self, name: str) -> StageTiming:
        return StageTiming(stage=name, wall_s=round(self.wall_s, 2), run=self.run, skipped=self.skipped)


class Stopwatch:
    """Adds up what each stage takes."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin; ``clock`` gives the seconds since 1970."""
        self._clock = clock
        self._stages: dict[str, _Stage] = {}
        self._now = ""
        self._since = clock()
        self._path = PathFinder(clock)

    def begin(self, name: str, at: float | None = None) -> None:
        """End the present stage and begin another, at a time in seconds since 1970 (None: now)."""
        if name != self._now:
            self._path.begin(name, at)
            self._enter(name, at)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block as a stage."""
        self.begin(name)
        try:
            yield
        finally:
            self.begin("")

    def take(self, event: Event) -> None:
        """Take an event into account."""
        self._path.take(event)
        if isinstance(event, StageStarted):
            self._enter(event.stage, event.at)
        elif isinstance(event, HostResult):
            stage = self._of(event.stage)
            stage.run += event.outcome != "skipped"
            stage.skipped += event.outcome == "skipped"
        elif isinstance(event, Finished):
            self._enter(END, event.at)

    def timing(self) -> RunTiming:
        """Return what was measured until now, for the record; a stage that took no time is left out."""
        self._end(self._clock())
        stages = tuple(stage.timing(name) for name, stage in self._stages.items())
        return RunTiming(
            stages=tuple(stage for stage in stages if stage.wall_s or stage.run or stage.skipped),
            total=_total(self._stages.values()).timing(TOTAL),
            critical_path=self._path.path(),
        )

    def _enter(self, name: str, at: float | None) -> None:
        """End the present stage and begin another, if it is another."""
        if name != self._now:
            self._end(self._clock() if at is None else at)
            self._now = name

    def _of(self, name: str) -> _Stage:
        return self._stages.setdefault(name, _Stage())

    def _end(self, at: float) -> None:
        """Add the time since the last call to the present stage."""
        wall_s, self._since = max(0.0, at - self._since), max(at, self._since)
        if self._now:
            self._of(self._now).wall_s += wall_s


class TimedObserver(Generic[PreviewT]):
    """Passes a run on to another observer, and measures its stages."""

    def __init__(self, observer: AskingObserver[PreviewT], watch: Stopwatch) -> None:
        """Begin."""
        self._observer, self._watch = observer, watch

    def phase(self, text: str) -> None:
        """Begin a stage."""
        self._watch.begin(text)
        self._observer.phase(text)

    def event(self, event: Event) -> None:
        """Take the event into account."""
        self._watch.take(event)
        self._observer.event(event)

    def stopping(self, requests: int) -> None:
        """Pass it on."""
        self._observer.stopping(requests)

    def confirm(self, preview: PreviewT) -> bool:
        """Ask; the user's time is a stage of its own."""
        self._watch.begin(_ASKING)
        answer = self._observer.confirm(preview)
        self._watch.begin(START)
        return answer


def _total(stages: Iterable[_Stage]) -> _Stage:
    total = _Stage()
    for stage in stages:
        total.wall_s += stage.wall_s
        total.run += stage.run
        total.skipped += stage.skipped
    return total
