"""``clusterctl history``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import VERDICT_STYLES, Format
from clusterctl.model import nodeset
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from clusterctl.model.node_states import NodeHealth
    from clusterctl.model.results import Trend
    from clusterctl.report.run_overview import History

_SHOWN = 20
_MOST_CHANGES = 12


def history(
    which: options.InventoriesGroup,
    check: Annotated[str | None, typer.Option("--check", metavar="NAME", help="Only this check.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, metavar="N", help="The last N runs.")] = _SHOWN,
    keep_runs: Annotated[
        int | None, typer.Option("--keep-runs", min=1, metavar="N", help="First forget all but the newest N.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", min=0, metavar="N", help="First forget what is older than N days.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="json: runs and trends, on stdout.")] = Format.TEXT,
) -> int:
    """Show the runs of a cluster, their verdicts and what changed.

    Oldest first. Needs no node; a run's id, or the beginning of it, is what 'compare' and 'baseline accept' take. The
    newest and the accepted run are never forgotten.
    """
    from clusterctl.report import run_overview  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = which.sources
    gone = 0
    if keep_runs is not None or keep_days is not None:
        gone = run_overview.forget(inventory, keep_runs, keep_days)
    found = run_overview.overview(inventory, check, last)
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return ExitCode.OK
    _show(found, check)
    if gone:
        output.console().print(f"{output.plural(gone, 'older run')} forgotten.")
    return ExitCode.OK


def _show(found: History, check: str | None) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    console = output.console()
    table = Table(box=None, pad_edge=False)
    for column in ("RUN", "SUITE", "VERDICT"):
        table.add_column(column, no_wrap=True, vertical="top")
    table.add_column("WHAT CHANGED" if check is None else "REASON", overflow="fold", vertical="top")
    for line in found.runs:
        words = "; ".join(line.changes) if check is None else line.reason
        if line.accepted:
            words = "; ".join(word for word in ("baseline", words) if word)
        verdict = output.text((line.verdict.value, VERDICT_STYLES[line.verdict.value]))
        table.add_row(line.run_id, line.suite, verdict, words)
    console.print(table)
    if check is not None:
        _show_trends(console, found.trends)
    else:
        _show_changes(console, found.trends)
    _show_nodes(found.nodes)
    for words in found.drifts:
        output.line(words)
    for job in found.stopped_jobs:
        words = f"Job of {job.at.astimezone():%Y-%m-%d %H:%M}: {job.sentence}. Its record: {job.record}"
        output.line(words)
    if found.total > len(found.runs):
        console.print(f"{output.plural(found.total, 'run')} are kept; --last shows more of them.")
    if found.baseline is not None and not found.baseline.run_id:
        console.print(f"References begin anew at {found.baseline.begins.astimezone():%Y-%m-%d %H:%M}.")
    for note in found.notes:
        output.line(f"Note: {note}")


def _show_nodes(nodes: tuple[NodeHealth, ...]) -> None:
    """Show the nodes that are not healthy; nodes of one reason are one line."""
    lines: dict[str, list[str]] = {}
    for one in nodes:
        if one.state != "healthy":
            lines.setdefault(_state_words(one), []).append(one.node)
    for words, names in lines.items():
        output.line(f"{nodeset.folded(names)} {words}.")


def _state_words(state: NodeHealth) -> str:
    checks = ", ".join(state.checks)
    if state.state == "failed":
        return f"failed {checks} in {state.run_id}"
    whys = [f"named by {checks} in {state.run_id}"] if checks else []
    if state.doctor is not None:
        found = ", ".join(state.doctor.checks)
        whys.append(f"doctor found errors ({found}) on {state.doctor.at.astimezone():%Y-%m-%d %H:%M}")
    return f"is not proved: {'; '.join(whys) or 'no check has passed with it'}"


def _show_changes(console: Console, trends: tuple[Trend, ...]) -> None:
    changed = [one for one in trends if one.changed_at]
    for trend in changed[:_MOST_CHANGES]:
        output.line(_sentence(trend))
    if len(changed) > _MOST_CHANGES:
        console.print(f"{len(changed) - _MOST_CHANGES} more figures changed; --check NAME shows those of a check.")


def _show_trends(console: Console, trends: tuple[Trend, ...]) -> None:
    if not trends:
        return
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import figure_words  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in ("FIGURE", "NOW", "LEAST", "MEDIAN", "MOST", "RUNS"):
        table.add_column(column, justify="left" if column == "FIGURE" else "right", no_wrap=column != "FIGURE")
    table.add_column("CHANGED WITH", no_wrap=True)
    for trend in trends:
        values = sorted(point.value for point in trend.points)
        shown = (trend.figure.value, values[0], values[len(values) // 2], values[-1])
        words = [figure_words.figure(value, trend.figure.unit) for value in shown]
        table.add_row(figure_words.about_nodes(trend.figure), *words, str(len(values)), trend.changed_at)
    console.print()
    console.print(table)


def _sentence(trend: Trend) -> str:
    from clusterctl.report import figure_words  # noqa: PLC0415 - text output only

    now, before = figure_words.now_and_before(trend)
    about = figure_words.about_nodes(trend.figure)
    return f"{trend.check}: {about} is {now} since {trend.changed_at}; before, {before}."
