"""``clusterctl validate``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.output import Format, shown_command

if TYPE_CHECKING:
    from clusterctl.inventory import Options
    from clusterctl.result import ValidationEvent, ValidationRecord

# Written out, for the catalogue takes time to import and --help stays quick; a test holds them equal.
_CHECKS = (
    "hello, point_to_point, broadcast, scatter, gather, reduce, allreduce, network, collectives (MPI); "
    "nccl, nccl_sweep, torchrun, horovod, horovod_sweep, training (where they are installed)"
)
_STYLES = {"PASS": "green", "FAIL": "red", "ERROR": "magenta", "SKIP": "dim"}


def validate(
    inventory: options.Inventory,
    limit: options.Limit = None,
    checks: Annotated[
        list[str] | None, typer.Option("--checks", metavar="NAME[,NAME…]", help=f"Only these checks of {_CHECKS}.")
    ] = None,
    launch_node: Annotated[
        str | None, typer.Option("--launch-node", metavar="HOST", help="Start mpirun there; default: the first host.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Deadline of each check, instead of its own.")
    ] = None,
    no_gate: Annotated[
        bool, typer.Option("--no-gate", help="Launch the checks on nodes that differ in their versions as well.")
    ] = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit's XML.")] = None,
    extra_vars: options.ExtraVars = None,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultPasswordFile = None,
    user: options.User = None,
    private_key: options.PrivateKey = None,
    form: Annotated[Format, typer.Option("--format", help="json: the record; jsonl: all events, then the record.")] = (
        Format.TEXT
    ),
) -> int:
    """Prove the cluster again and name what is wrong.

    Runs small jobs through mpirun on all hosts, each under its own deadline, and compares every answer with the known
    one. Ends with 0 when all is right, 10 when something is wrong, 11 when the checks could not be run.
    """
    if timeout is not None and not 0 < timeout < float("inf"):
        raise typer.BadParameter("a deadline is a positive number of seconds", param_hint="--timeout")
    asked = options.of_inventory(limit, extra_vars, vault_id, vault_password_file, user, private_key)
    return _run(
        inventory,
        asked,
        form,
        launch_node=launch_node,
        checks=checks,
        timeout=timeout,
        gate=not no_gate,
        junit=junit,
    )


def after_provision(inventory: Path, options: Options, form: Format) -> int:
    """Validate what ``clusterctl provision`` has just made, and return the exit code."""
    return _run(inventory, options, form)


def _run(
    inventory: Path,
    options: Options,
    form: Format,
    *,
    launch_node: str | None = None,
    checks: list[str] | None = None,
    timeout: float | None = None,
    gate: bool = True,
    junit: Path | None = None,
) -> int:
    from clusterctl import validation  # noqa: PLC0415 - see cli.main
    from clusterctl.errors import ConfigError  # noqa: PLC0415

    if junit is not None and not junit.absolute().parent.is_dir():
        raise ConfigError(f"The folder of {junit} does not exist; make it first, or give --junit another place.")
    names = [word.strip() for value in checks for word in value.split(",") if word.strip()] if checks else None
    asked = validation.ValidationOptions(
        inventory=options,
        launch_node=launch_node,
        checks=None if names is None else tuple(names),
        timeout_s=timeout,
        gate=gate,
        argv=shown_command(sys.argv[1:]),
    )
    tell = _Lines() if form is Format.TEXT else _stream if form is Format.JSONL else None
    record = validation.validate(inventory, asked, tell)
    if junit is not None:
        from clusterctl.report.junit import document  # noqa: PLC0415 - only where it is asked for

        try:
            junit.write_text(document(record), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{junit} cannot be written: {error.strerror}.") from None
    if form is Format.TEXT:
        _show(record)
    else:
        data = record.model_dump(mode="json")
        sys.stdout.write(json.dumps({"event": "Record", **data} if form is Format.JSONL else data) + "\n")
        sys.stdout.flush()
    return int(validation.exit_code(record))


def _stream(event: ValidationEvent) -> None:
    data = dataclasses.asdict(event)
    if "result" in data:
        data["result"] = event.result.model_dump(mode="json")  # type: ignore[union-attr]
    sys.stdout.write(json.dumps({"event": type(event).__name__, **data}) + "\n")
    sys.stdout.flush()


class _Lines:
    """One line when a check has its verdict; on a terminal also one, overwritten, while it runs."""

    def __init__(self) -> None:
        from clusterctl.cli import output  # noqa: PLC0415 - text output only

        self._console = output.console()
        self._head = ""

    def __call__(self, event: ValidationEvent) -> None:
        from clusterctl.result import CheckFinished, CheckProgress, CheckStarted  # noqa: PLC0415 - see cli.main

        if isinstance(event, CheckStarted):
            self._head = f"[{event.number}/{event.total}] {event.check}"
            self._transient(f"{self._head} …")
        elif isinstance(event, CheckProgress):
            self._transient(f"{self._head}: {event.text}")
        elif isinstance(event, CheckFinished):
            self._verdict(event)

    def _transient(self, text: str) -> None:
        if self._console.is_terminal:
            sys.stderr.write("\r\x1b[K" + text[: self._console.width - 1])
            sys.stderr.flush()

    def _verdict(self, event: ValidationEvent) -> None:
        from rich.text import Text  # noqa: PLC0415 - text output only

        from clusterctl.result import CheckFinished  # noqa: PLC0415 - see cli.main

        if not isinstance(event, CheckFinished):
            return
        result = event.result
        if self._console.is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        word = result.verdict.value
        line = Text.assemble((f"{word:5}", _STYLES[word]), f" {result.check:<15} {result.seconds:6.2f} s  ")
        line.append(result.reason)
        self._console.print(line, soft_wrap=True)


def _show(record: ValidationRecord) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only
    from rich.text import Text  # noqa: PLC0415

    from clusterctl.cli import output  # noqa: PLC0415
    from clusterctl.report import table as report  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in ("CHECK", "VERDICT", "TIME", "REASON"):
        table.add_column(column, overflow="fold", vertical="top", justify="right" if column == "TIME" else "left")
    for row in report.rows(record):
        table.add_row(row.check, Text(row.verdict.value, _STYLES[row.verdict.value]), row.time, Text(row.reason))
    console = output.console()
    console.print()
    console.print(table)
    for line in report.closing(record):
        console.print(line, markup=False, soft_wrap=True)
