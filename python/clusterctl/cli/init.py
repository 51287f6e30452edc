"""``clusterctl init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("inventory.ini"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented example inventory, with every variable in group_vars/all.yml beside it."""
    from clusterctl.cli import example_inventory  # noqa: PLC0415 - see cli.main

    for written in example_inventory.init(path, force=force):
        typer.echo(f"Wrote {written}", err=True)
    typer.echo(f"Next: name your machines in {path}, then 'clusterctl provision {shlex.quote(str(path))}'.", err=True)
