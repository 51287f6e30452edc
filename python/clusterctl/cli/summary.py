"""The end of a run on the screen: problems, the table of hosts, where the time went, and the next step."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli import output
from clusterctl.state import paths
from clusterctl.support.errors import ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from clusterctl.model.run_record import CriticalPath, HostSummary, PathStep, Problem, RunRecord, StageTiming

_MOST_SINGLE_ROWS = 24
_MOST_CHANGES = 6
_STYLES = {"ok": "green", "changed": "yellow", "failed": "red", "unreachable": "red", "not run": "dim"}
_STAGE_COLUMNS = ("STAGE", "WALL", "RUN", "SKIPPED")
_PATH_COLUMNS = ("STEP", "HOST", "WALL", "OTHERS WAITED")
_LEAST_S = 0.05  # a shorter stage without a result is no row


def show(record: RunRecord) -> None:
    """Print a finished run."""
    if record.problems:
        _problems(record.problems)
    elif record.hosts:
        _hosts(record.hosts)
    for warning in record.warnings:
        output.line(f"Warning: {warning}", style="yellow")
    for line in closing_lines(record):
        output.line(line)


def _problems(problems: tuple[Problem, ...]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(title="What stands in the way", title_justify="left", box=None, pad_edge=False)
    for column in ("HOST", "WHAT", "PROBLEM"):
        table.add_column(column, overflow="fold", vertical="top")
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for problem in problems:
        grouped.setdefault((problem.subject, problem.problem, problem.cure), []).append(problem.host)
    for (subject, words, cure), hosts in grouped.items():
        table.add_row(
            output.text((output.folded(dict.fromkeys(hosts)), "red")),
            subject.replace("_", " "),
            output.text(words, *([f"→ {cure}"] if cure else [])),
        )
    output.console().print(table)


def _hosts(hosts: tuple[HostSummary, ...]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(box=None, pad_edge=False)
    for column in ("HOST", "RESULT", "CHANGED", "TIME", "WHAT"):
        right = column in {"CHANGED", "TIME"}
        table.add_column(column, overflow="fold", vertical="top", justify="right" if right else "left")
    said: dict[str, str] = {}  # what happened → the row that tells it, for the rows after it
    for names, host in _rows(hosts):
        what = _what(host)
        first = said.setdefault(what, names)
        table.add_row(
            names,
            output.text((host.outcome, _STYLES[host.outcome])),
            str(len(host.changes)),
            output.duration(host.seconds) if host.seconds else "",
            f"as {first}" if what and first != names else what,
        )
    output.console().print(table)


def _rows(hosts: tuple[HostSummary, ...]) -> list[tuple[str, HostSummary]]:
    """Return one row per host, or, of many hosts, one per kind of result."""
    if len(hosts) <= _MOST_SINGLE_ROWS:
        return [(host.host, host) for host in hosts]
    alike: dict[tuple[str, str], list[HostSummary]] = {}
    for host in hosts:
        alike.setdefault((host.outcome, _what(host)), []).append(host)
    return [
        (output.folded(host.host for host in group), max(group, key=lambda host: host.seconds))
        for group in alike.values()
    ]


def _what(host: HostSummary) -> str:
    if host.outcome in {"failed", "unreachable"}:
        return f"{host.failed_stage}, {host.failed_task}: {host.message}" if host.failed_task else host.message
    return and_more(host.changes, _MOST_CHANGES)


def closing_lines(record: RunRecord) -> list[str]:
    """Return how the run ended and what to do next."""
    took = (record.finished - record.started).total_seconds() if record.finished else 0.0
    changed = sum(host.outcome == "changed" for host in record.hosts)
    count = output.plural(len(record.hosts), "host")
    again = shlex.join(record.argv)
    log = paths.ansible_log(Path(record.folder))
    lost = [host.host for host in record.hosts if host.outcome in {"failed", "unreachable"}]
    bad = [name for name in lost if name not in record.left_out]
    if record.outcome == "nothing to do":
        if record.message:
            return [record.message]
        return [*record.told, f"Nothing to do: {count} as the last run left them, 0 changed ({output.duration(took)})."]
    if record.exit_code == ExitCode.OK:
        word = "would change" if "--check" in record.argv else "changed"
        return [*record.told, f"Done: {count}, {changed} {word} ({output.duration(took)})."]
    if record.outcome == "interrupted":
        return [record.message or f"Interrupted after {output.duration(took)}; '{again}' goes on from here."]
    lines = [f"{record.message}"] if record.message else []
    if record.problems and not any(host.changed for host in record.hosts):
        return [_stopped_early(record, again)]
    if bad:
        others = ", the others finished" if len(bad) < len(record.hosts) and not record.message else ""
        lines.append(
            f"{output.folded(bad)} did not get through{others}. Ansible's output: {log}. "
            f"When the cause is gone, '{again}' goes on from here."
        )
    if record.left_out:
        lines.append(
            f"Left out, for they cannot be reached: {output.folded(record.left_out)}. "
            f"When they answer, '{again}' {'brings them in' if record.verb == 'provision' else 'cleans them'}."
        )
    return lines


def _stopped_early(record: RunRecord, again: str) -> str:
    if record.left_out:  # more than --max-fail allows
        return f"{record.message} Put this right or allow more, then repeat '{again}'."
    return f"Stopped before anything was changed. Put this right, then repeat '{again}'.{_ways_on(record)}"


def _ways_on(record: RunRecord) -> str:
    """Return the options by which a provision goes on without hosts that cannot be reached."""
    unreachable = {problem.host for problem in record.problems if problem.kind == "unreachable"}
    if record.verb not in {"provision", "uninstall"} or not unreachable or len(unreachable) == len(record.hosts):
        return ""
    if "--skip-unreachable" in record.argv:  # something else stands in the way as well
        return ""
    if record.verb == "uninstall":
        return " '--skip-unreachable' cleans the others now."
    return " '--skip-unreachable' provisions the others now; with '--max-fail N|P%' so many may be lost, and not more."


def show_timing(record: RunRecord) -> None:
    """Print where the time of a run went; nothing where it was not measured."""
    if record.timing is None:
        return
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(title="Seconds by stage", title_justify="left", box=None, pad_edge=False)
    for column in _STAGE_COLUMNS:
        table.add_column(column, overflow="fold", vertical="top", justify="left" if column == "STAGE" else "right")
    for stage in record.timing.stages:
        if stage.run or stage.wall_s >= _LEAST_S:
            table.add_row(*stage_row(stage))
    table.add_section()
    table.add_row(*stage_row(record.timing.total), style="bold")
    output.console().print(table)
    if record.timing.critical_path is not None:
        _show_path(record.timing.critical_path)


def _show_path(path: CriticalPath) -> None:
    """Print the steps that decided the wall time, in the order of the run."""
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(
        title="Critical path: what decided the wall time, in order", title_justify="left", box=None, pad_edge=False
    )
    for column in _PATH_COLUMNS:
        left = column in {"STEP", "HOST"}
        table.add_column(column, overflow="fold", vertical="top", justify="left" if left else "right")
    for step in path.steps:
        table.add_row(*path_row(step))
    if path.others:
        table.add_row(f"{output.plural(path.others, 'shorter step')} together", "", f"{path.others_s:.1f}", "")
    output.console().print()
    output.console().print(table)


def path_row(step: PathStep) -> tuple[str, ...]:
    """Return the words of a step of the critical path, one for each column."""
    what = f"{step.tasks} short tasks" if step.tasks > 1 else step.task
    words = f"{step.stage}: {what}" if what else step.stage
    return (
        f"{words} ({step.change})" if step.change else words,
        step.host,
        f"{step.wall_s:.1f}",
        f"{step.waited_s:.1f}" if step.waited_s >= _LEAST_S else "",
    )


def stage_row(stage: StageTiming) -> tuple[str, ...]:
    """Return the words of a stage, one for each column."""
    is_task = bool(stage.run or stage.skipped)
    return (
        stage.stage,
        f"{stage.wall_s:.1f}",
        str(stage.run) if is_task else "",
        str(stage.skipped) if is_task else "",
    )
