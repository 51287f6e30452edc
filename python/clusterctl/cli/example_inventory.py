"""The verb init: write the commented example inventory for the user to fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def init(path: Path, *, force: bool = False) -> tuple[Path, ...]:
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
