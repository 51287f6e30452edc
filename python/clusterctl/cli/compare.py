"""``clusterctl compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import Format
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from rich.text import Text

    from clusterctl.report.run_comparison import Difference, RunComparison

_SHOWN = 40
_ENDED = 0.0005  # a twentieth of a per cent reads as none


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help=options.RUN_HELP)],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run beside it, named likewise.")],
    inventory: options.WhoseRuns = None,
    everything: Annotated[bool, typer.Option("--all", help="Also figures of single nodes that did not move.")] = False,
    form: Annotated[Format, typer.Option("--format", help="json: all of it, on stdout.")] = Format.TEXT,
) -> int:
    """Put the figures of two runs side by side.

    Versions that differ are named; a difference is marked where it is beyond the noise.
    """
    from clusterctl.report import run_comparison  # noqa: PLC0415 - see cli.main: --help stays quick

    found = run_comparison.compare(first, second, options.whose(inventory))
    if form is Format.JSON:
        output.data(found.model_dump_json())
        return ExitCode.OK
    _show(found, everything=everything)
    return ExitCode.OK


def _show(found: RunComparison, *, everything: bool) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import figure_words  # noqa: PLC0415

    console = output.console()
    for number, side in enumerate((found.first, found.second), 1):
        words = f"{number}  {side.run_id}  {side.suite}  {side.verdict.value}  {output.folded(side.hosts)}"
        output.line(words)
    for name, (before, after) in found.versions.items():
        output.line(f"{name}: {before or 'none'} → {after or 'none'}")
    for name, (before, after) in found.verdicts.items():
        words = f"{name}: {before or 'not run'} → {after or 'not run'}"
        output.line(words)
    wanted = [one for one in found.figures if everything or one.beyond_noise or not one.nodes]
    shown = wanted if everything else sorted(wanted, key=lambda one: not one.beyond_noise)[:_SHOWN]
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
        output.line(f"Note: {note}")


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
