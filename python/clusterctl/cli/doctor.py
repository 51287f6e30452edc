"""``clusterctl doctor``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import Format
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.findings import Diagnosis

_STYLES = {"ERROR": "red", "WARNING": "yellow"}
_NARROW = 120  # columns; below, a cure has its own line under the cause


def doctor(
    which: options.InventoriesGroup,
    login: options.LoginGroup,
    limit: options.Limit = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Look at each host alone: no logins or connections between hosts.")
    ] = False,
    fix_script: Annotated[
        bool, typer.Option("--fix-script", help="Print the commands that cure findings on stdout; none of them is run.")
    ] = False,
    form: Annotated[Format, typer.Option("--format", help="json: findings and notes, on stdout.")] = Format.TEXT,
) -> int:
    """Look at the hosts, change nothing, say what would hurt.

    Needs no provisioned cluster. Ends with 0 when nothing was found, 10 when there are errors or warnings, 4 when a
    host is out of reach.
    """
    from clusterctl.diagnosis.doctor import DoctorOptions, examine, exit_code  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.inventory.ansible_inventory import Cluster  # noqa: PLC0415 - the same

    if fix_script and form is Format.JSON:
        raise ConfigError("--fix-script and --format json both write to stdout; give one of them.")
    cluster = Cluster.of(which.sources, login.options(limit))
    found = examine(cluster, DoctorOptions(quick=quick), _transient)
    _transient("")
    if form is Format.JSON:
        output.data(json.dumps(found.model_dump(mode="json")))
    else:
        _show(found)
    if fix_script:
        _print_cures(found, cluster)
    return int(exit_code(found))


def _print_cures(found: Diagnosis, cluster: Cluster) -> None:
    from clusterctl.report import tables  # noqa: PLC0415 - see cli.main

    sys.stdout.write(tables.fix_script(found, {host.name: host for host in cluster.inventory.selected_hosts}))
    sys.stdout.flush()


def _transient(text: str) -> None:
    """Show what is going on."""
    output.transient(f"{text} …" if text else "")


def _show(found: Diagnosis) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import tables  # noqa: PLC0415

    console = output.console()
    narrow = console.width < _NARROW
    table = Table(box=None, pad_edge=False)
    for column in ("", "CHECK", "NODES"):
        table.add_column(column, no_wrap=column != "NODES", overflow="fold", vertical="top")
    table.add_column("CAUSE AND CURE" if narrow else "CAUSE", overflow="fold", ratio=3)
    if not narrow:
        table.add_column("CURE", overflow="fold", ratio=2)
    for row in tables.doctor_rows(found):
        cells: list[str | Text] = [output.text((row.severity, _STYLES[row.severity])), row.check, row.nodes]
        cause = row.cause.split("\n")  # the source has a line of its own
        if narrow:
            table.add_row(*cells, output.text(*cause, ("→ " + row.cure, "dim")))
        else:
            table.add_row(*cells, output.text(*cause), row.cure)
    if found.findings:
        console.print(table)
    for line in tables.doctor_closing(found):
        output.line(line)
