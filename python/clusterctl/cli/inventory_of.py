"""``clusterctl inventory-of``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.cli.output import Format

if TYPE_CHECKING:
    from clusterctl.model.hardware import Stay


def inventory_of(
    host: Annotated[str, typer.Argument(help="Name of a host of the inventory.", metavar="HOST")],
    which: options.InventoriesGroup,
    form: Annotated[Format, typer.Option("--format", help="json: every stay of a part, on stdout.")] = Format.TEXT,
) -> int:
    """Show the parts of a node, and since when it has them.

    'clusterctl doctor' fills the ledger. A part that left is shown with the day on which it was last seen. No host is
    asked.
    """
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.model.hardware import PartLedger  # noqa: PLC0415
    from clusterctl.model.hosts import InventoryOptions  # noqa: PLC0415
    from clusterctl.state import hardware_looks, paths  # noqa: PLC0415
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415

    inventory = which.sources
    ansible_inventory.refuse_missing(inventory)
    stays = hardware_looks.ledger(paths.cluster_id(inventory)).of_host(host)
    if not stays:
        ansible_inventory.load(inventory, InventoryOptions(limit=host))  # refuses what is no host
        raise ConfigError(
            f"No part of {host} is known for {inventory.shown}; run 'clusterctl doctor {inventory.shown}' first, with "
            "become in the inventory, since only root may read most serial numbers."
        )
    if form is Format.JSON:
        output.data(PartLedger(stays=stays).model_dump_json())
    else:
        _show(stays)
    return 0


def _show(stays: tuple[Stay, ...]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    newest = {stay.kind: max(one.last for one in stays if one.kind == stay.kind) for stay in stays}
    with_uuid = any(stay.uuid for stay in stays)
    table = Table(box=None, pad_edge=False)
    columns = (
        "KIND",
        "PLACE",
        "MODEL",
        "SERIAL NUMBER",
        *(("UUID",) if with_uuid else ()),
        "FIRMWARE",
        "SINCE",
        "UNTIL",
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for stay in sorted(stays, key=lambda one: (one.kind, one.place, one.first)):
        until = "" if stay.last == newest[stay.kind] else f"{stay.last:%Y-%m-%d}"
        names = (stay.serial, stay.uuid) if with_uuid else (stay.serial,)
        cells = (stay.kind, stay.place, stay.model, *names, stay.firmware, f"{stay.first:%Y-%m-%d}", until)
        table.add_row(*cells)
    output.console().print(table)
