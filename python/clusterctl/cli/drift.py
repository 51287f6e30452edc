"""``clusterctl drift``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format

if TYPE_CHECKING:
    from clusterctl.model.snapshot import DriftReport


def drift(
    which: options.InventoriesGroup,
    how: change.SudoGroup,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the content of every installed file; takes seconds per GB.")
    ] = False,
    limit: options.Limit = None,
    form: Annotated[Format, typer.Option("--format", help="json: every difference, on stdout.")] = Format.TEXT,
) -> int:
    """Say what differs from what the last run left, and change nothing.

    Asks every host once over ssh. Ends with 0 where every host is as it was left, with 10 where one differs or has no
    snapshot, and with 4 where a host is out of reach. 'clusterctl provision' repairs what differs.
    """
    from clusterctl.provisioning import look  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = which.sources
    request = look.DriftRequest(inventory, how.options(limit), verify=verify, sudo_password=how.password())
    report = look.examine(request)
    if form is Format.JSON:
        output.data(report.model_dump_json())
    else:
        _show(report, inventory.shown)
    return int(look.exit_code(report))


def _show(report: DriftReport, inventory: str) -> None:
    from clusterctl.provisioning import drift as words  # noqa: PLC0415 - text only

    def say(text: str) -> None:
        output.line(text)

    for hosts, difference in words.folded(report.hosts):
        say(f"{hosts}: {difference}")
    for hosts, why in words.folded_words(report.unknown):
        say(f"{hosts}: {why}")
    same = [name for name in report.compared if name not in report.hosts]
    if same:
        how = "every file was compared" if report.verified else "contents of installed files were not compared"
        say(f"{output.folded(same)}: as the last run left {'it' if len(same) == 1 else 'them'} ({how}).")
    if report.hosts or report.unknown:
        say(f"Next: 'clusterctl provision {inventory}' repairs it.")
