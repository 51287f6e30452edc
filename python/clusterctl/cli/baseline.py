"""``clusterctl baseline``: from where on earlier runs say what figures are to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import Format

if TYPE_CHECKING:
    from clusterctl.report.baseline import InForce, References

app = typer.Typer(no_args_is_help=True, help="Accept, show or reset the runs that figures are compared with.")

_FAR = 1.0  # beyond this, a factor is easier to read than a percentage

Output = Annotated[Format, typer.Option("--format", help="json: on stdout.")]


@app.command()
def accept(
    which: options.OneInventoryGroup,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=f"{options.RUN_HELP} Default: last.")] = None,
    form: Output = Format.TEXT,
) -> None:
    """Let the history begin with a run; its figures count as good, for any verdict."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory, run = which.and_run(run)
    found = baseline.accept(inventory, run or "last")
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return
    output.line(
        f"History begins with {found.run_id} ({found.verdict.value}); earlier runs are kept and no longer count.",
    )


@app.command()
def reset(which: options.InventoriesGroup, form: Output = Format.TEXT) -> None:
    """Let the history begin anew: no run up to now counts, all are kept and can be accepted."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick

    count = baseline.reset(which.sources)
    if form is Format.JSON:
        output.data(f'{{"kept": {count}}}')
        return
    output.console().print(
        f"History begins anew with the next run; {output.plural(count, 'run')} up to now kept, none of them counts.",
        markup=False,
    )


@app.command()
def show(
    which: options.InventoriesGroup,
    check: Annotated[str | None, typer.Option("--check", metavar="NAME", help="Only this check.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also figures of single nodes and links.")] = False,
    form: Output = Format.TEXT,
) -> None:
    """Show what the next run's figures are held against."""
    from clusterctl.report import baseline  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.suite import beside  # noqa: PLC0415 - the same
    from clusterctl.validation import suites  # noqa: PLC0415 - the same

    inventory = which.sources
    found = baseline.in_force(inventory, check, suites.load(beside(inventory)).history)
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return
    _show(found, everything=everything)


def _show(found: References, *, everything: bool) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import figure_words  # noqa: PLC0415

    console = output.console()
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
        output.line(f"History begins with {found.baseline.run_id}.")
    else:
        console.print(f"History begins anew at {found.baseline.begins.astimezone():%Y-%m-%d %H:%M}.")
    if not found.entries:
        console.print("No figure has a good run yet, so nothing is in force.")
    elif len(shown) < len(found.entries):
        console.print(f"{len(found.entries) - len(shown)} more of single nodes and links; --all shows them.")
    for note in found.notes:
        output.line(f"Note: {note}")


def _limit(one: InForce, at_least: int) -> str:
    if one.figure.better == "none":
        return "never judged"
    if not one.in_force:
        return f"from {at_least} runs on" if one.runs < at_least else "none"
    limits = [limit for limit in (one.lower, one.upper) if limit is not None]
    return " ".join(f"{100 * limit:+.0f} %" if limit < _FAR else f"{1 + limit:.3g} times" for limit in limits)
