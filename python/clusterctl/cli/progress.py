"""Shows a run while it goes on: a live page on a terminal, the same as plain lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli import output
from clusterctl.model.run_record import Finished, HostResult, Note, StageStarted, TaskStartedOnHost
from clusterctl.provisioning.task_results import Stopwatch
from clusterctl.support.words import and_more, escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Group
    from rich.live import Live
    from typing_extensions import Self

    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.run_record import Event
    from clusterctl.provisioning.preview import MembersPreview, Preview, SwitchPreview, UninstallPreview

    AnyPreview = Preview | SwitchPreview | MembersPreview | UninstallPreview

_NOTE_EVERY_S = 10.0
_REFRESH_PER_S = 5
_MOST_ROWS = 24
_TIME_AND_GAPS = 12  # columns of a time and between columns
_MOST_STEPS = 5
_LEAST_STEP_S = 5.0
_LEAST_LEFT_S = 5.0
# What a build is at: the software, the step and, if any, how many files or checks are done. The rest is a raw line.
_BUILDING = re.compile(r"(?P<name>[\w.-]+): (?P<step>\w+): (?P<count>\d+ (?:files|checks))?")
_DOES = {
    "preflight": "check",
    "hosts": "write names",
    "ssh_mesh": "exchange keys",
    "fabric": "choose the network",
    "environment": "set paths and limits",
    **dict.fromkeys(("software", "openmpi", "nccl", "ucx", "python_env", "mpi4py", "horovod"), "install"),
    "validation": "install the checks",
}


@dataclass
class _HostLine:
    """What a host is at."""

    task: str = ""
    stage: str = ""
    since: float = 0.0  # 0: it waits for the others
    note: str = ""
    builds: str = ""  # the software that is compiled there
    note_printed: float = 0.0
    failed: str = ""
    changed: int = 0


class _Board:
    """The state of a run as its events tell it; both ways of showing it read from here."""

    def __init__(self, look: Showing) -> None:
        self._look = look
        self._left: dict[str, float] | None = None  # stage → seconds from its begin to the end, in an earlier run
        self.started: set[str] = set()  # hosts that began the present task
        self.ended: set[str] = set()  # and those of them that ended it
        self.began = time.time()
        self.stage = ""
        self.stage_began = self.began
        self.past: list[tuple[str, float]] = []
        self.hosts: dict[str, _HostLine] = {}
        self.path = Stopwatch()
        self._plays: set[str] = set()  # shown since the last phase
        self._diffs: dict[tuple[str, str], str] = {}  # task and diff → the host that showed it

    def diff(self, event: HostResult) -> str:
        """Return the diff of a task on a host; one that another host has shown is a reference to it."""
        first = self._diffs.setdefault((event.task, event.diff), event.host)
        head = escaped(f"--- {event.host}: {event.task}")
        return f"{head}\n{event.diff}\n" if first == event.host else f"{head}: as on {first}\n"

    def phase(self, text: str, at: float) -> None:
        self._plays.clear()
        self.path.begin(text, at)
        self._show(text, at)

    def _show(self, text: str, at: float) -> None:
        if text == self.stage:
            return
        if self.stage:
            self.past.append((self.stage, at - self.stage_began))
        self.stage, self.stage_began = text, at

    def take(self, event: Event) -> None:
        self.path.take(event)
        if isinstance(event, StageStarted):
            self._begin(event)
        elif isinstance(event, TaskStartedOnHost):
            line = self.hosts.setdefault(event.host, _HostLine())
            line.task, line.stage, line.since, line.note = event.task, event.stage, event.at, ""
            self.started.add(event.host)
        elif isinstance(event, Note):
            line = self.hosts.setdefault(event.host, _HostLine())
            line.note, build = event.text, _BUILDING.match(event.text)
            line.builds = build["name"] if build else ""
            if build and not self._look.raw:
                line.note = f"{build['name']}: {build['step']}" + (f", {build['count']}" if build["count"] else "")
        elif isinstance(event, HostResult):
            line = self.hosts.setdefault(event.host, _HostLine())
            line.since, line.note, line.builds = 0.0, "", ""
            self.ended.add(event.host)
            line.changed += event.outcome == "changed"
            if event.outcome in {"failed", "unreachable"}:
                line.failed = f"{event.outcome} in {event.stage}: {event.message}"

    def _begin(self, event: StageStarted) -> None:
        """Show a stage. A play's own tasks behind its roles are no stage again; the name of a role is one word."""
        self.started, self.ended = set(), set()
        if event.stage.isidentifier() or event.stage not in self._plays:
            self._show(event.stage, event.at)
        self._plays.add(event.stage)

    def doing(self) -> str:
        """Return the stage and what it does: 'nccl: install on 4 hosts, 1 done' or 'openmpi: compile on node1'."""
        builds = [f"{line.builds}: compile on {name}" for name, line in self.hosts.items() if line.builds]
        if builds:
            return and_more(builds, 2)
        does = f"{self.stage}: {_DOES[self.stage]}" if self.stage in _DOES else self.stage
        count = len(self.started or self.hosts) if self.stage in _DOES else 0
        words = f"{does} on {output.plural(count, 'host')}" if count else does
        return f"{words}, {len(self.ended)} done" if count > 1 and self.started else words

    def left(self, now: float) -> str:
        """Return about how long the run goes on, where an earlier one knows it; else ''."""
        if self._left is None:
            self._left = self._look.left()
        left_s = self._left.get(self.stage, 0.0) - (now - self.stage_began)
        return f"about {output.duration(left_s)} left" if left_s >= _LEAST_LEFT_S else ""

    def critical_path(self) -> str:
        """Return the longest steps until now in words; '' where none was long."""
        steps = self.path.longest(_MOST_STEPS, _LEAST_STEP_S)
        return " → ".join(
            f"{step.change or step.stage}{f' on {step.host}' if step.host else ''} {output.duration(step.wall_s)}"
            for step in steps
        )

    def waited_for(self) -> list[str]:
        return [name for name, line in self.hosts.items() if line.since]


@dataclass(frozen=True)
class Showing:
    """How a run is shown.

    Attributes:
        raw: also the lines that a build prints.
        inventory: whose earlier provisions say how long the stages take; None for a run of another kind.
    """

    raw: bool = False
    inventory: InventorySources | None = None

    def left(self) -> dict[str, float]:
        """Return by stage the seconds from its begin to the end, in the last provision that changed something.

        It counts only where it was the same command, the values of variables left aside: they are in no record.
        """
        from clusterctl.state import paths, runs  # noqa: PLC0415 - only where a run is shown

        for run in runs.read_runs(self.inventory) if self.inventory is not None else ():
            if run.verb == "provision" and run.outcome == "done" and any(host.changed for host in run.hosts):
                if _names(run.argv) != _names(("clusterctl", *sys.argv[1:])):
                    return {}
                with contextlib.suppress(OSError, ValueError, KeyError):
                    return _left_of(paths.events_file(Path(run.folder)))
        return {}


def _names(argv: Sequence[str]) -> list[str]:
    """Return the words of a command, of a variable its name alone."""
    return [word.partition("=")[0] for word in argv]


def _left_of(events: Path) -> dict[str, float]:
    began: dict[str, float] = {}
    last, end = "", 0.0
    with events.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"event": "StageStarted"'):
                event = json.loads(line)
                if event["stage"] != last:  # a role that plays twice is long the second time
                    last, began[event["stage"]] = event["stage"], event["at"]
            elif line.startswith('{"event": "Finished"'):
                end = json.loads(line)["at"]
    return {stage: end - at for stage, at in began.items()}


class Quiet:
    """Shows nothing but, when asked to, the stream of events as JSON lines on stdout."""

    def __init__(self, *, stream: bool) -> None:
        """``stream``: write each event as a line."""
        self._stream = stream

    def __enter__(self) -> Self:
        """Nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def event(self, event: Event) -> None:
        """Write the event, if asked to."""
        if self._stream:
            from clusterctl.state.runs import event_data  # noqa: PLC0415 - not needed for the other formats

            sys.stdout.write(json.dumps(event_data(event), default=str) + "\n")
            sys.stdout.flush()

    def confirm(self, _preview: AnyPreview) -> bool:
        """Go on: a program that reads JSON is not asked."""
        return True

    def accepts(self, _lines: Sequence[str]) -> bool | None:
        """Say that there is no user to ask."""
        return None

    def stopping(self, requests: int) -> None:
        """Say so on stderr."""
        output.say(_stopping_words(requests))


class Lines(Quiet):
    """Plain lines: one per stage, one per note at most every ten seconds, one per failure."""

    def __init__(self, look: Showing | None = None) -> None:
        """Start the clock."""
        super().__init__(stream=False)
        self._board = _Board(look or Showing())

    def phase(self, text: str) -> None:
        """Write what begins."""
        self._board.phase(text, time.time())
        self._write(text)

    def event(self, event: Event) -> None:
        """Write the event if it is worth a line."""
        stage = self._board.stage
        self._board.take(event)
        if self._board.stage != stage:
            left = self._board.left(event.at)
            self._write(self._board.doing() + (f" ({left})" if left else ""))
        if isinstance(event, Note):
            line = self._board.hosts[event.host]
            if event.at - line.note_printed >= _NOTE_EVERY_S:
                line.note_printed = event.at
                since = f" ({output.duration(event.at - line.since)})" if line.since else ""  # else in the background
                self._write(f"  {event.host}: {line.note}{since}")
        elif isinstance(event, HostResult):
            if event.outcome in {"failed", "unreachable"} and not event.data:  # data ends up in the table of problems
                self._write(f"  {event.host}: {event.outcome.upper()} in {event.stage}, {event.task}: {event.message}")
            if event.diff:
                output.show_diff(self._board.diff(event))
        elif isinstance(event, Finished) and event.status == "canceled":
            self._write("stopped; nothing of the run is left")

    def _write(self, text: str) -> None:
        elapsed = int(time.time() - self._board.began)
        output.say(f"[{elapsed // 60:2d}:{elapsed % 60:02d}] {text}")


class Page(Quiet):
    """The live page on a terminal."""

    def __init__(self, *, ask: bool, look: Showing | None = None) -> None:
        """``ask``: let the user confirm before anything is changed."""
        super().__init__(stream=False)
        self._board = _Board(look or Showing())
        self._ask = ask
        self._live: Live | None = None
        self._stopping = ""

    def __enter__(self) -> Self:
        """Take over the terminal's last lines."""
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self._close()

    def phase(self, text: str) -> None:
        """Show what begins."""
        self._board.phase(text, time.time())

    def event(self, event: Event) -> None:
        """Show the event; what must not scroll away is printed above the page."""
        self._board.take(event)
        if isinstance(event, HostResult) and event.diff and self._live is not None:
            self._live.console.print(output.text(*self._board.diff(event).splitlines()))

    def confirm(self, preview: AnyPreview) -> bool:
        """Show what is about to be done and ask."""
        if not self._ask:
            return True
        import typer  # noqa: PLC0415 - only where it asks

        self._close()
        for line in lines_of(preview):
            output.line(line)
        from clusterctl.provisioning.preview import UninstallPreview  # noqa: PLC0415 - only where it asks

        answer = typer.confirm("Go on?", default=not isinstance(preview, UninstallPreview), err=True)
        self._open()
        return answer

    def accepts(self, lines: Sequence[str]) -> bool | None:
        """Show what only the user can compare, and ask; --yes does not answer this."""
        if not output.is_interactive():
            return None
        import typer  # noqa: PLC0415 - only where it asks

        self._close()
        for line in lines:
            output.line(line)
        answer = typer.confirm("Is the shown key the machine's own?", default=False, err=True)
        self._open()
        return answer

    def stopping(self, requests: int) -> None:
        """Show that the request was heard."""
        self._stopping = _stopping_words(requests)

    def _open(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - on a terminal only

        self._live = Live(
            console=output.console(), get_renderable=self._page, refresh_per_second=_REFRESH_PER_S, transient=True
        )
        self._live.start()

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _page(self) -> Group:
        from rich.console import Group  # noqa: PLC0415 - on a terminal only
        from rich.table import Table  # noqa: PLC0415

        board, now = self._board, time.time()
        red, dim = partial(output.text, style="red"), partial(output.text, style="dim")
        head = output.text((f"● {board.doing()} {output.duration(now - board.stage_began)}", "bold cyan"))
        head.no_wrap, head.overflow = True, "ellipsis"
        head.append(f"   total {output.duration(now - board.began)}", style="dim")
        if left := board.left(now):
            head.append(f", {left}", style="dim")
        for name, seconds in reversed(board.past):  # the oldest are cut off first
            head.append_text(output.text((f"   ✓ {name} {output.duration(seconds)}", "green")))
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        waited_for = output.folded(board.waited_for())
        # failures first, then the busy ones: a host that waits is the least interesting
        order = sorted(board.hosts.items(), key=lambda item: (not item[1].failed, not item[1].since))
        names = max(map(len, board.hosts), default=0)
        stages = max((len(line.stage) for line in board.hosts.values()), default=0)
        room = max(output.console().width - names - stages - _TIME_AND_GAPS, 10)  # or rich takes it from all columns
        for name, line in order[:_MOST_ROWS]:
            if line.failed:
                table.add_row(*map(red, (name, "✗", "", output.cut(line.failed, room))))
            elif line.since:
                words = line.note or line.task
                table.add_row(name, line.stage, output.duration(now - line.since), output.cut(words, room))
            else:
                words = line.note or (f"waits for {waited_for}" if waited_for and waited_for != name else "")
                table.add_row(*map(dim, (name, line.stage, "", output.cut(words, room))))
        parts: list[Any] = [head]
        if path := board.critical_path():
            parts.append(dim(f"  longest: {path}"))
            parts[-1].no_wrap, parts[-1].overflow = True, "ellipsis"
        parts.append(table)
        if len(order) > _MOST_ROWS:
            parts.append(dim(f"and {len(order) - _MOST_ROWS} more"))
        if self._stopping:
            parts.append(output.text(self._stopping, style="yellow"))
        return Group(*parts)


def lines_of(preview: AnyPreview) -> list[str]:
    """Return what a run is about to do, as lines."""
    from clusterctl.provisioning.preview import (  # noqa: PLC0415 - only where it asks
        MembersPreview,
        Preview,
        UninstallPreview,
    )

    if isinstance(preview, MembersPreview):
        return list(preview.lines)
    if isinstance(preview, UninstallPreview):
        return uninstall_lines(preview)
    return preview_lines(preview) if isinstance(preview, Preview) else switch_lines(preview)


def uninstall_lines(preview: UninstallPreview) -> list[str]:
    """Return what an uninstall is about to do, as lines: hosts with the same changes together, and what stays."""
    lines = [f"{preview.inventory}: everything that clusterctl brought goes, and files become what they were."]
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, changes in preview.changes.items():
        alike.setdefault(changes, []).append(host)
    for changes, hosts in alike.items():
        lines.append(f"  {output.folded(hosts)}:")
        lines += [f"    {change}" for change in changes]
    return lines + [f"  {sentence}" for sentence in preview.told]


def switch_lines(preview: SwitchPreview) -> list[str]:
    """Return what a rollback is about to switch, as lines: hosts with the same changes together."""
    left = f"{preview.left.astimezone():%Y-%m-%d %H:%M}"
    lines = [f"{preview.inventory}: back to the links that {preview.run_id} left at {left}."]
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, changes in preview.changes.items():
        alike.setdefault(changes, []).append(host)
    return lines + [f"  switch    {output.folded(hosts)}: {', '.join(changes)}" for changes, hosts in alike.items()]


def preview_lines(preview: Preview) -> list[str]:
    """Return what a run is about to do, as lines: platforms, builds, installations, and files with their reasons."""
    from clusterctl.provisioning.preview import ALWAYS, OPTIONAL  # noqa: PLC0415 - only where it asks

    called = {**ALWAYS, **OPTIONAL}
    count = output.plural(sum(len(hosts) for hosts in preview.platforms.values()), "host")
    lines = [f"{preview.inventory}: {count} will be provisioned."]
    lines += [f"  platform  {output.folded(hosts)}: {platform}" for platform, hosts in preview.platforms.items()]
    for builders, names in preview.builds.items():
        software, where = ", ".join(called[name] for name in names), output.folded(builders)
        lines.append(f"  build     {software}: once, on {where}, since the cache lacks it")
    lines += [
        f"  install   {output.folded(hosts)}: {', '.join(called[name] for name in names)}"
        for names, hosts in preview.installs.items()
    ]
    if any(name in names for names in preview.installs for name in ALWAYS):
        *others, last = OPTIONAL.values()
        lines.append(f"            and {', '.join(others)} and {last}, where the inventory asks for them")
    why: dict[str, list[str]] = {}
    for host, reason in preview.reasons.items():
        why.setdefault(reason, []).append(host)
    return lines + [f"  files     {output.folded(hosts)}: {reason}" for reason, hosts in why.items()]


def _stopping_words(requests: int) -> str:
    if requests > 1:
        return "Killing what is left."
    return "Stopping; the hosts' running steps are ended. Ctrl-C again hurries."
