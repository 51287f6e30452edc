"""``clusterctl init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.support import content, held_path
from clusterctl.support.errors import ConfigError

_VARIABLES = Path("group_vars", "all.yml")


def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Write this file.")] = Path("inventory.ini"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented example inventory, with every variable in group_vars/all.yml beside it."""
    written = write_example(path, force=force)
    for target in written:
        typer.echo(f"Wrote {target}", err=True)
    if len(written) == 1:
        typer.echo(f"{path.parent / _VARIABLES} stays as it is; its variables hold for {path} too.", err=True)
    typer.echo(f"Next: name your machines in {path}, then 'clusterctl provision {shlex.quote(str(path))}'.", err=True)


def write_example(path: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the example inventory to ``path`` and its variables to ``group_vars/all.yml`` beside it.

    Variables that are there stay, unless ``force`` is given: they hold for every inventory of the folder.

    Returns:
        The files that were written.

    Raises:
        ConfigError: the inventory exists and ``force`` is not given, or the folder cannot be written.
    """
    from clusterctl.state import files  # noqa: PLC0415 - see cli.main: --help stays quick

    example = content.root() / "inventories" / "example"
    pairs = [(example / "inventory.ini", path)]
    if force or not (path.parent / _VARIABLES).exists():
        pairs.append((example / _VARIABLES, path.parent / _VARIABLES))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write, for example {path / 'inventory.ini'}.")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; give another name, or --force to replace it.")
    try:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            with held_path.to_file(target) as held:
                files.write_atomically(held, source.read_bytes(), mode=None)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return tuple(target for _, target in pairs)
