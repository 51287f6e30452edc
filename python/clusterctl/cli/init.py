"""``clusterctl init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.support import content
from clusterctl.support.errors import ConfigError


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("inventory.ini"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented example inventory, with every variable in group_vars/all.yml beside it."""
    for written in write_example(path, force=force):
        typer.echo(f"Wrote {written}", err=True)
    typer.echo(f"Next: name your machines in {path}, then 'clusterctl provision {shlex.quote(str(path))}'.", err=True)


def write_example(path: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the example inventory to ``path`` and its variables to ``group_vars/all.yml`` beside it.

    Returns:
        The files that were written.

    Raises:
        ConfigError: one of them exists and ``force`` is not given, or the folder cannot be written.
    """
    example = content.root() / "inventories" / "example"
    pairs = (
        (example / "inventory.ini", path),
        (example / "group_vars" / "all.yml", path.parent / "group_vars" / "all.yml"),
    )
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write, for example {path / 'inventory.ini'}.")
    for _, target in pairs:
        if target.exists() and not force:
            raise ConfigError(f"{target} exists; give another name, or --force to replace it.")
    try:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return tuple(target for _, target in pairs)
