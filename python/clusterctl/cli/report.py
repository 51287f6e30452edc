"""``clusterctl report``, and what it shares with the commands that end in a record."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import VERDICT_STYLES
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from rich.table import Table

    from clusterctl.model.results import ValidationRecord
    from clusterctl.report.files import Places
    from clusterctl.report.tables import ValidationRow


@dataclass(frozen=True)
class ReportsGroup:
    """Which reports of a run are written, and where."""

    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="PATH", help="Write a page that opens without a network.", rich_help_panel=options.OUTPUT
        ),
    ] = None
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit", metavar="PATH", help="Write JUnit's XML, for Jenkins and GitLab.", rich_help_panel=options.OUTPUT
        ),
    ] = None
    prometheus: Annotated[
        Path | None,
        typer.Option(
            "--prometheus",
            metavar="PATH",
            help="Write metrics for node_exporter's textfile collector.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None
    jsonl: Annotated[
        Path | None,
        typer.Option("--jsonl", metavar="PATH", help="Write one JSON object a line.", rich_help_panel=options.OUTPUT),
    ] = None

    @property
    def places(self) -> Places:
        """The same, for what writes them."""
        from clusterctl.report import files  # noqa: PLC0415 - see cli.main: --help stays quick

        return files.Places(self.html, self.junit, self.prometheus, self.jsonl)


def report(
    reports: ReportsGroup,
    words: options.RunWords = None,
    inventory: options.WhoseRuns = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a record and end.")] = False,
) -> int:
    """Write the reports of a run from its record; without a report's option, show it as text on stdout.

    Of an inventory, the last run is meant. Records of earlier versions are read too. Ends with 0 when the reports are
    written, for any verdict.
    """
    from clusterctl.report import files, run_resolver  # noqa: PLC0415 - see cli.main: --help stays quick

    if schema:
        sys.stdout.write(schema_text())
        return ExitCode.OK
    whose, runs = options.inventory_and_runs(words, inventory)
    places = reports.places
    places.refuse_impossible()
    named = run_resolver.resolve_of(runs[0] if runs else "last", whose)
    if not places.asked:
        output.answer_line(f"{named.record.inventory}  {named.record.run_id}  {moment(named.record.started)}", "bold")
        show(named.record)
        return ExitCode.OK
    for written in files.write(named.record, places, named.log_folder):
        output.say(str(written))
    return ExitCode.OK


def moment(at: datetime) -> str:
    """Return the day and time of a run by the clock of this machine."""
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def show(record: ValidationRecord, *, told: bool = False) -> None:
    """Show a record on the terminal: what to do, the table, and how to go on.

    Args:
        record: the record.
        told: the verdict of each check stands above already; the table is left out.
    """
    from clusterctl.report import tables  # noqa: PLC0415 - text output only

    console = output.answer()
    console.print()
    opening = tables.validation_opening(record)
    for line in opening:
        output.answer_line(line, style=None if line.startswith(" ") else "bold")
    if opening:
        console.print()
    if not told:
        console.print(table(tables.validation_rows(record)))
    for line in tables.validation_closing(record):
        output.answer_line(line)


def table(rows: Iterable[ValidationRow]) -> Table:
    """Return the table of checks with their verdicts."""
    from rich.table import Table  # noqa: PLC0415 - text output only

    found = Table(box=None, pad_edge=False)
    for column in ("CHECK", "VERDICT", "TIME"):
        found.add_column(column, no_wrap=True, justify="right" if column == "TIME" else "left")
    found.add_column("REASON", overflow="fold")
    for row in rows:
        verdict = output.text((row.verdict.value, VERDICT_STYLES[row.verdict.value]))
        found.add_row(row.check, verdict, row.time, row.reason)
    return found


def schema_text() -> str:
    """Return the JSON schema of a record as clusterctl writes it: every field is required, and no other is taken."""
    from clusterctl.model.results import ValidationRecord  # noqa: PLC0415 - see cli.main: --help stays quick

    name = f"validation-{ValidationRecord.model_fields['schema_version'].default}"
    schema = ValidationRecord.model_json_schema(mode="serialization")
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:clusterctl:{name}", **schema}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
