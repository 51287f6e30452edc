"""``clusterctl doctor``."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from clusterctl.diagnosis import Diagnosis

_ANSIBLE = "Ansible's own options"
_STYLES = {"ERROR": "red", "WARNING": "yellow"}
_NARROW = 120  # columns; below, a cure has its own line under the cause


class _Form(str, Enum):
    TEXT = "text"
    JSON = "json"


def doctor(
    inventory: Annotated[Path, typer.Argument(help="Any inventory Ansible accepts: INI, YAML, a folder, a script.")],
    limit: Annotated[
        str | None, typer.Option("--limit", "-l", metavar="PATTERN", help="Only these hosts.", rich_help_panel=_ANSIBLE)
    ] = None,
    extra_vars: Annotated[
        list[str] | None,
        typer.Option("--extra-vars", "-e", metavar="KEY=VALUE|JSON|@FILE", help="Variables above all others."),
    ] = None,
    vault_id: Annotated[list[str] | None, typer.Option("--vault-id", help="[LABEL@]FILE.")] = None,
    vault_password_file: Annotated[
        list[str] | None, typer.Option("--vault-password-file", metavar="FILE", help="File with the vault's password.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Log in as this user.")] = None,
    private_key: Annotated[
        str | None, typer.Option("--private-key", metavar="FILE", help="Log in with this key.")
    ] = None,
    form: Annotated[_Form, typer.Option("--format", help="json: findings and notes, on stdout.")] = _Form.TEXT,
) -> int:
    """Look at the hosts, change nothing, say what would hurt.

    Needs no provisioned cluster. Ends with 0 when nothing was found, 10 when there are errors or warnings, 4 when a
    host is out of reach.
    """
    from clusterctl import doctor as verb  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.inventory import Options  # noqa: PLC0415

    options = Options(
        limit=limit,
        extra_vars=tuple(extra_vars or ()),
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        user=user,
        private_key=private_key,
    )
    found = verb.examine(inventory, verb.DoctorOptions(options), _transient)
    _transient("")
    if form is _Form.JSON:
        sys.stdout.write(json.dumps(found.model_dump(mode="json")) + "\n")
        sys.stdout.flush()
    else:
        _show(found)
    return int(verb.exit_code(found))


def _transient(text: str) -> None:
    """Show on a terminal what is going on, in a line that goes again."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + (f"{text} …" if text else ""))
        sys.stderr.flush()


def _show(found: Diagnosis) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only
    from rich.text import Text  # noqa: PLC0415

    from clusterctl.cli import output  # noqa: PLC0415
    from clusterctl.report import doctor as report  # noqa: PLC0415

    console = output.console()
    narrow = console.width < _NARROW
    table = Table(box=None, pad_edge=False)
    for column in ("", "CHECK", "NODES"):
        table.add_column(column, no_wrap=column != "NODES", overflow="fold", vertical="top")
    table.add_column("CAUSE AND CURE" if narrow else "CAUSE", overflow="fold", ratio=3)
    if not narrow:
        table.add_column("CURE", overflow="fold", ratio=2)
    for row in report.rows(found):
        cells = [Text(row.severity, _STYLES[row.severity]), Text(row.check), Text(row.nodes)]
        if narrow:
            table.add_row(*cells, Text.assemble(row.cause, ("\n→ " + row.cure, "dim")))
        else:
            table.add_row(*cells, Text(row.cause), Text(row.cure))
    if found.findings:
        console.print(table)
    for line in report.closing(found):
        console.print(line, markup=False, soft_wrap=True)
