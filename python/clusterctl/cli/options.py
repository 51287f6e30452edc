"""The options that several commands have, under Ansible's own names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from clusterctl.cli.output import StreamFormat
from clusterctl.launch.mpirun import Bind, MapBy
from clusterctl.launch.path_wish import Affinity, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.hosts import InventoryOptions, InventorySources

_ANSIBLE = "Ansible's own options"

_ANY = "Any inventory Ansible accepts: INI, YAML, a folder, a script, a list such as node1,node2,"
Inventory: TypeAlias = Annotated[
    list[Path] | None, typer.Argument(metavar="INVENTORY", help=f"{_ANY}; several are read in their order.")
]
OneInventory: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="INVENTORY", help=f"{_ANY}; several are given by -i.")
]
Inventories: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--inventory",
        "-i",
        metavar="INVENTORY",
        help="An inventory, as by position; may be repeated.",
        rich_help_panel=_ANSIBLE,
    ),
]
RUN_HELP = "An id or the beginning of one, last, last-1, or the path of a record or of a run's folder."
WhoseRuns: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--inventory", "-i", metavar="INVENTORY", help="The inventory whose runs are meant; may be repeated."),
]
Limit: TypeAlias = Annotated[
    str | None, typer.Option("--limit", "-l", metavar="PATTERN", help="Only these hosts.", rich_help_panel=_ANSIBLE)
]
ExtraVars: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--extra-vars",
        "-e",
        metavar="KEY=VALUE|JSON|@FILE",
        help="Variables above all others. Other users see a value in 'ps': give a secret in @FILE.",
    ),
]
VaultId: TypeAlias = Annotated[list[str] | None, typer.Option("--vault-id", help="[LABEL@]FILE.")]
VaultPasswordFile: TypeAlias = Annotated[
    list[str] | None, typer.Option("--vault-password-file", metavar="FILE", help="File with the vault's password.")
]
User: TypeAlias = Annotated[str | None, typer.Option("--user", "-u", help="Log in as this user.")]
PrivateKey: TypeAlias = Annotated[
    str | None, typer.Option("--private-key", metavar="FILE", help="Log in with this key.")
]

Network: TypeAlias = Annotated[
    Transport, typer.Option("--network", help="What MPI's messages go through; auto: UCX where RDMA is, else TCP.")
]
BindTo: TypeAlias = Annotated[
    Bind, typer.Option("--bind-to", help="What each rank is kept on; none: the ranks of a node share its cores.")
]
MapRanksBy: TypeAlias = Annotated[MapBy, typer.Option("--map-by", help="Where the next rank goes.")]
RankAffinity: TypeAlias = Annotated[
    Affinity,
    typer.Option(
        "--affinity", help="auto: each rank on the cores and the network port nearest to its GPU, told with the reason."
    ),
]

StreamForm: TypeAlias = Annotated[
    StreamFormat, typer.Option("--format", help="json: the record; jsonl: all events, then the record.")
]


def sources(named: Sequence[Path] | Path | None, more: Sequence[Path] | None) -> InventorySources:
    """Return the inventories of the command line: those named by position, then those of ``-i``.

    Raises:
        BadParameter: there is none.
    """
    from clusterctl.model.hosts import InventorySources  # noqa: PLC0415 - see cli.main: --help stays quick

    found = [*((named,) if isinstance(named, Path) else named or ()), *(more or ())]
    if not found:
        raise typer.BadParameter("it is missing; name one by position or with -i", param_hint="INVENTORY")
    return InventorySources(tuple(map(str, found)))


def whose(given: Sequence[Path] | None) -> InventorySources | None:
    """Return the inventories whose runs are meant, None where none is named."""
    return sources(None, given) if given else None


def of_inventory(
    limit: str | None,
    extra_vars: list[str] | None,
    vault_id: list[str] | None,
    vault_password_file: list[str] | None,
    user: str | None,
    private_key: str | None,
) -> InventoryOptions:
    """Return what these options make of an inventory."""
    from clusterctl.model.hosts import InventoryOptions  # noqa: PLC0415 - see cli.main: --help stays quick

    return InventoryOptions(
        limit=limit,
        extra_vars=tuple(extra_vars or ()),
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        user=user,
        private_key=private_key,
    )
