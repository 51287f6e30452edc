"""``clusterctl doctor``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options  # noqa: TC001 - typer reads the annotations at run time
from clusterctl.cli.output import Format
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from clusterctl.model.findings import Diagnosis
    from clusterctl.model.hosts import AnyInventory, InventoryOptions

_STYLES = {"ERROR": "red", "WARNING": "yellow"}
_NARROW = 120  # columns; below, a cure has its own line under the cause


def doctor(
    which: options.Inventories,
    login: options.Login,
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

    if fix_script and form is Format.JSON:
        raise ConfigError("--fix-script and --format json both write to stdout; give one of them.")
    asked = login.options(limit)
    found = examine(which.sources, DoctorOptions(asked, quick=quick), _transient)
    _transient("")
    if form is Format.JSON:
        sys.stdout.write(json.dumps(found.model_dump(mode="json")) + "\n")
        sys.stdout.flush()
    else:
        _show(found)
    if fix_script:
        _print_cures(found, which.sources, asked)
    return int(exit_code(found))


def _print_cures(found: Diagnosis, inventory: AnyInventory, asked: InventoryOptions) -> None:
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main
    from clusterctl.report import fix_script  # noqa: PLC0415

    hosts = {host.name: host for host in ansible_inventory.load(inventory, asked).selected_hosts}
    sys.stdout.write(fix_script.script(found, hosts))
    sys.stdout.flush()


def _transient(text: str) -> None:
    """Show what is going on."""
    from clusterctl.cli import output  # noqa: PLC0415 - see cli.main

    output.transient(f"{text} …" if text else "")


def _show(found: Diagnosis) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.cli import output  # noqa: PLC0415
    from clusterctl.report import doctor_table  # noqa: PLC0415

    console = output.console()
    narrow = console.width < _NARROW
    table = Table(box=None, pad_edge=False)
    for column in ("", "CHECK", "NODES"):
        table.add_column(column, no_wrap=column != "NODES", overflow="fold", vertical="top")
    table.add_column("CAUSE AND CURE" if narrow else "CAUSE", overflow="fold", ratio=3)
    if not narrow:
        table.add_column("CURE", overflow="fold", ratio=2)
    for row in doctor_table.rows(found):
        cells: list[str | Text] = [output.text((row.severity, _STYLES[row.severity])), row.check, row.nodes]
        cause = row.cause.split("\n")  # the source has a line of its own
        if narrow:
            table.add_row(*cells, output.text(*cause, ("→ " + row.cure, "dim")))
        else:
            table.add_row(*cells, output.text(*cause), row.cure)
    if found.findings:
        console.print(table)
    for line in doctor_table.closing(found):
        console.print(line, markup=False, soft_wrap=output.keeps_lines())
