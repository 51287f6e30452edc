"""Commands on earlier runs: ``history``, ``compare`` and ``baseline``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output, report
from clusterctl.cli.output import VERDICT_STYLES, Format
from clusterctl.model import nodeset
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console
    from rich.text import Text

    from clusterctl.model.findings import NodeHealth
    from clusterctl.model.results import Trend
    from clusterctl.report.baseline import InForce, References
    from clusterctl.report.run_comparison import Difference, RunComparison
    from clusterctl.report.run_overview import History


_SHOWN = 20
_MOST_CHANGES = 12


def history(
    words: options.RunWords = None,
    inventory: options.WhoseRuns = None,
    check: Annotated[
        str | None, typer.Option("--check", metavar="NAME", help="Show only this check, without provisions.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, metavar="N", help="Show the last N runs.")] = _SHOWN,
    keep_runs: Annotated[
        int | None, typer.Option("--keep-runs", min=1, metavar="N", help="Forget all but the newest N first.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", min=0, metavar="N", help="Forget what is older than N days first.")
    ] = None,
    past: Annotated[
        str | None,
        typer.Option(
            "--past",
            metavar="NAME",
            help="Let this inventory go on with the past NAME first; 'new' begins without one.",
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Print text, or runs and trends as JSON on stdout.")
    ] = Format.TEXT,
) -> int:
    """Show the runs of a cluster, their verdicts and what changed.

    Oldest first, with the runs that changed the cluster between them. A run stands for its cluster. Needs no node. A
    run's id, or the beginning of it, is what 'compare' and 'baseline accept' take. The newest and the accepted run are
    never forgotten.
    """
    from clusterctl.report import run_overview, run_resolver  # noqa: PLC0415 - see cli.main: --help stays quick

    given, runs = options.inventory_and_runs(words, inventory)
    if past is not None:
        if given is None or runs:
            raise typer.BadParameter("it goes with an inventory, and without a run", param_hint="--past")
        if past == run_overview.NEW_PAST and (check, keep_runs, keep_days) != (None, None, None):
            raise typer.BadParameter(
                f"'{past}' has no runs yet; leave out --check, --keep-runs and --keep-days", param_hint="--past"
            )
        run_overview.choose_past(given, past)
        if past == run_overview.NEW_PAST:
            output.line(f"{given} begins anew with its next run.")
            if form is Format.JSON:
                output.data(run_overview.without_runs(given).model_dump_json())
            return ExitCode.OK
    whose = given if given is not None and not runs else run_resolver.of_run(runs[0], given)
    gone = 0
    if keep_runs is not None or keep_days is not None:
        gone = run_overview.forget(whose, keep_runs, keep_days)
    found = run_overview.overview(whose, check, last)
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return ExitCode.OK
    _show(found, check)
    if gone:
        output.answer().print(f"{output.plural(gone, 'older run')} forgotten.")
    return ExitCode.OK


def _show(found: History, check: str | None) -> None:
    console = output.answer()
    _show_runs(found, check)
    if check is not None:
        _show_trends(console, found.trends)
    else:
        _show_changes(console, found.trends)
    _show_nodes(found.nodes)
    for words in found.drifts:
        output.answer_line(words)
    for job in found.stopped_jobs:
        output.answer_line(f"Job of {report.moment(job.at)}: {job.sentence}. Its record: {job.record}")
    if found.total > len(found.runs):
        console.print(f"{output.plural(found.total, 'run')} are kept; --last shows more of them.")
    if found.baseline is not None and not found.baseline.run_id:
        console.print(f"References begin anew at {report.moment(found.baseline.begins)}.")
    for note in found.notes:
        output.answer_line(f"Note: {note}")


def _show_runs(found: History, check: str | None) -> None:
    """Show the validations and the changes in one table, under the newest of them."""
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(box=None, pad_edge=False)
    for column in ("RUN", "SUITE", "VERDICT"):
        table.add_column(column, no_wrap=True)
    table.add_column("WHAT CHANGED" if check is None else "REASON", overflow="fold")
    rows: list[tuple[datetime, str, str, str | Text, str]] = []
    for line in found.runs:
        words = "; ".join(line.changes) if check is None else line.reason
        if line.accepted:
            words = "; ".join(word for word in ("baseline", words) if word)
        verdict = output.text((line.verdict.value, VERDICT_STYLES[line.verdict.value]))
        rows.append((line.started, line.run_id, line.suite, verdict, words))
    rows += [(one.started, one.run_id, one.verb, one.outcome, one.words) for one in found.changes]
    rows.sort(key=lambda row: row[0])
    for _, *cells in rows:
        table.add_row(*cells)
    started, run_id, *_ = rows[-1]
    output.answer_line(f"{found.inventory}  {run_id}  {report.moment(started)}", "bold")
    output.answer().print(table)


def _show_nodes(nodes: tuple[NodeHealth, ...]) -> None:
    """Show the nodes that are not healthy; nodes of one reason are one line."""
    lines: dict[str, list[str]] = {}
    for one in nodes:
        if one.state != "healthy":
            lines.setdefault(_state_words(one), []).append(one.node)
    for words, names in lines.items():
        output.answer_line(f"{nodeset.folded(names)} {words}.")


def _state_words(state: NodeHealth) -> str:
    checks = ", ".join(state.checks)
    if state.state == "failed":
        return f"failed {checks} in {state.run_id}"
    whys = [f"named by {checks} in {state.run_id}"] if checks else []
    if state.doctor is not None:
        found = ", ".join(state.doctor.checks)
        whys.append(f"doctor found errors ({found}) on {report.moment(state.doctor.at)}")
    return f"is not proved: {'; '.join(whys) or 'no check has passed with it'}"


def _show_changes(console: Console, trends: tuple[Trend, ...]) -> None:
    changed = [one for one in trends if one.changed_at]
    for trend in changed[:_MOST_CHANGES]:
        output.answer_line(_sentence(trend))
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


# --- ``clusterctl baseline``: from where on earlier runs say what figures are to be -----------------------------------

app = typer.Typer(no_args_is_help=True, help="Accept, show or reset the runs that figures are compared with.")

_FAR = 1.0  # beyond this, a factor is easier to read than a percentage

Output = Annotated[Format, typer.Option("--format", help="Print text, or JSON on stdout.")]


@app.command(short_help="Let the history begin with a run.")
def accept(
    which: options.OneInventoryGroup,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help=f"Begin with this run. {options.A_RUN} Default: last.")
    ] = None,
    form: Output = Format.TEXT,
) -> None:
    """Let the history begin with a run; its figures count as good, for any verdict."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory, run = which.and_run(run)
    found = baseline.accept(inventory, run or "last")
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return
    output.answer_line(
        f"History begins with {found.run_id} ({found.verdict.value}); earlier runs are kept and no longer count.",
    )


@app.command(short_help="Let the history begin anew with the next run.")
def reset(which: options.InventoriesGroup, form: Output = Format.TEXT) -> None:
    """Let the history begin anew: no run up to now counts, all are kept and can be accepted."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick

    count = baseline.reset(which.sources)
    if form is Format.JSON:
        output.data(f'{{"kept": {count}}}')
        return
    output.answer().print(
        f"History begins anew with the next run; {output.plural(count, 'run')} up to now kept, none of them counts.",
        markup=False,
    )


@app.command()
def show(
    which: options.InventoriesGroup,
    check: Annotated[str | None, typer.Option("--check", metavar="NAME", help="Show only this check.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show figures of single nodes and links, too.")] = False,
    form: Output = Format.TEXT,
) -> None:
    """Show what the next run's figures are held against."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.suite import beside  # noqa: PLC0415 - the same
    from clusterctl.validation.checks import registry  # noqa: PLC0415 - the same

    inventory = which.sources
    found = baseline.in_force(inventory, check, registry.load(beside(inventory)).history)
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return
    _show_baseline(found, everything=everything)


def _show_baseline(found: References, *, everything: bool) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import figure_words  # noqa: PLC0415

    console = output.answer()
    shown = [one for one in found.entries if everything or not one.figure.nodes]
    if shown:
        table = Table(box=None, pad_edge=False)
        for column in ("CHECK", "FIGURE", "MEDIAN", "MAD", "RUNS", "LIMIT"):
            table.add_column(column, justify="right" if column in {"MEDIAN", "MAD", "RUNS"} else "left")
        for one in shown:
            unit = one.figure.unit
            values = (figure_words.figure(one.median, unit), figure_words.figure(one.mad, unit), str(one.runs))
            table.add_row(one.check, figure_words.about_nodes(one.figure), *values, _limit(one, found.at_least))
        console.print(table)
    if found.baseline is None:
        console.print("All runs count; 'clusterctl baseline accept' lets history begin with one of them.")
    elif found.baseline.run_id:
        output.answer_line(f"History begins with {found.baseline.run_id}.")
    else:
        console.print(f"History begins anew at {report.moment(found.baseline.begins)}.")
    if not found.entries:
        console.print("No figure has a good run yet, so nothing is in force.")
    elif len(shown) < len(found.entries):
        console.print(f"{len(found.entries) - len(shown)} more of single nodes and links; --all shows them.")
    for note in found.notes:
        output.answer_line(f"Note: {note}")


def _limit(one: InForce, at_least: int) -> str:
    if one.figure.better == "none":
        return "never judged"
    if not one.in_force:
        return f"from {at_least} runs on" if one.runs < at_least else "none"
    limits = [limit for limit in (one.lower, one.upper) if limit is not None]
    return " ".join(f"{100 * limit:+.0f} %" if limit < _FAR else f"{1 + limit:.3g} times" for limit in limits)


# --- ``clusterctl compare`` -------------------------------------------------------------------------------------------

_CHECKS_SHOWN = 40
_ENDED = 0.0005  # a twentieth of a per cent reads as none


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INVENTORY|RUN",
            help=f"Name two runs, or one for the run before it, or an inventory for its last two. {options.A_RUN}",
        ),
    ] = None,
    inventory: options.WhoseRuns = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show figures of single nodes that did not move, too.")
    ] = False,
    form: Annotated[Format, typer.Option("--format", help="Print text, or all of it as JSON on stdout.")] = Format.TEXT,
) -> int:
    """Put the figures of two runs side by side.

    Versions that differ are named; a difference is marked where it is beyond the noise.
    """
    from clusterctl.report import run_comparison, run_resolver  # noqa: PLC0415 - see cli.main: --help stays quick

    whose, runs = options.inventory_and_runs(words, inventory, 2)
    two = runs if len(runs) > 1 else run_resolver.with_the_one_before(runs[0] if runs else "last", whose)
    found = run_comparison.compare(two[0], two[1], whose)
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return ExitCode.OK
    _show_comparison(found, everything=everything)
    return ExitCode.OK


def _show_comparison(found: RunComparison, *, everything: bool) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import figure_words  # noqa: PLC0415

    console = output.answer()
    for number, side in enumerate((found.first, found.second), 1):
        words = f"{number}  {side.inventory}  {side.run_id}  {report.moment(side.started)}"
        output.answer_line(f"{words}  {side.suite}  {side.verdict.value}  {output.folded(side.hosts)}", "bold")
    for name, (before, after) in found.versions.items():
        output.answer_line(f"{name}: {before or 'none'} → {after or 'none'}")
    for name, (before, after) in found.verdicts.items():
        words = f"{name}: {before or 'not run'} → {after or 'not run'}"
        output.answer_line(words)
    wanted = [one for one in found.figures if everything or one.beyond_noise or not one.nodes]
    shown = wanted if everything else sorted(wanted, key=lambda one: not one.beyond_noise)[:_CHECKS_SHOWN]
    if shown:
        table = Table(box=None, pad_edge=False)
        for column in ("CHECK", "FIGURE", "1", "2", "CHANGE", "NOISE", ""):
            table.add_column(column, justify="right" if column in {"1", "2", "CHANGE", "NOISE"} else "left")
        for one in shown:
            values = [figure_words.figure(value, one.unit) for value in (one.first, one.second)]
            table.add_row(
                one.check,
                figure_words.about_nodes(one.figure),
                *values,
                _change(one),
                f"{100 * one.noise:.0f} %",
                _mark(one),
            )
        console.print()
        console.print(table)
    moved = sum(one.beyond_noise for one in found.figures)
    worse = sum(one.worse for one in found.figures)
    console.print(
        f"{output.plural(len(found.figures), 'figure')} in both runs, {moved} beyond the noise, {worse} worse."
    )
    if len(wanted) > len(shown):
        console.print(f"{len(wanted) - len(shown)} more are shown by --all.")
    if found.only_first or found.only_second:
        console.print(
            f"Only in 1: {found.only_first}; only in 2: {found.only_second} (another size, node or rank count)."
        )
    for note in found.notes:
        output.answer_line(f"Note: {note}")


def _change(one: Difference) -> str:
    if one.change is None:
        return "from 0"
    return "0 %" if abs(one.change) < _ENDED else f"{100 * one.change:+.1f} %"


def _mark(one: Difference) -> str | Text:
    if not one.beyond_noise:
        return ""
    if one.better == "none":
        return "other"
    return output.text(("worse", "red") if one.worse else ("better", "green"))
