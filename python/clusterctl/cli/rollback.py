"""``clusterctl rollback``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format, StreamFormat
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from clusterctl.model.hosts import InventorySources

_RUN = f"{options.RUN_HELP} Default: the run before, whose software was another."


def rollback(
    which: options.OneInventoryGroup,
    how: change.ChangeGroup,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=_RUN)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before links are switched.")] = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Switch also where jobs run.")] = False,
    release: Annotated[bool, typer.Option("--release", help="End the hold: the next provision goes forward.")] = False,
    form: Annotated[Format, typer.Option("--format", help="json: the record, on stdout.")] = Format.TEXT,
) -> int:
    """Go back to the software that an earlier run left, in seconds.

    Switches the links of Open MPI, the cluster's Python, mpi4py, NCCL and Horovod together, on all hosts or on none.
    The folders of that run must still be there. From then on 'provision' leaves the software as it is, until --release.
    """
    inventory, run = which.and_run(run)
    if release:
        if run is not None:
            raise typer.BadParameter("it ends the hold, so it takes no RUN", param_hint="--release")
        return _release(inventory, form)
    from clusterctl.provisioning import rollback as going_back  # noqa: PLC0415 - see cli.main: --help stays quick

    request = going_back.RollbackRequest(
        inventory=inventory,
        run=run,
        while_busy=while_busy,
    )
    with change.observer_for(StreamFormat(form.value), ask=not yes) as observer:
        record = going_back.rollback(how.asked(request), observer)
    if form is Format.JSON:
        output.data(record.model_dump_json())
        return int(record.exit_code or 0)
    return change.show(record, StreamFormat.TEXT, f"'clusterctl validate {inventory.shown}' proves that it works.")


def _release(inventory: InventorySources, form: Format) -> int:
    from clusterctl.provisioning import rollback as going_back  # noqa: PLC0415 - see cli.main

    released = going_back.release(inventory)
    if form is Format.JSON:
        output.data(json.dumps({"released": released}))
        return ExitCode.OK
    words = (
        f"Released: the next 'clusterctl provision {inventory.shown}' installs what the inventory asks for."
        if released
        else f"Nothing to do: {inventory.shown} is not held."
    )
    output.line(words)
    return ExitCode.OK
