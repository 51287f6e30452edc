"""The host that runs Slurm's commands, as ``--submit-host`` names it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.model.hosts import Host
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from clusterctl.model.hosts import Inventory, InventoryOptions

# user@host:port, as --submit-host takes it; a name that begins with '-' would be an option of ssh.
_DESTINATION = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<port>\d+))?"
)


def named(word: str, known: Inventory | None, options: InventoryOptions) -> Host | None:
    """Return the host that runs Slurm's commands, None for this machine.

    Args:
        word: a host of the inventory, or ``user@host:port``; empty for this machine.
        known: the inventory, where there is one.
        options: the user and the key of the command line.

    Raises:
        ConfigError: it is not a host.
    """
    if not word:
        return None
    for host in known.hosts if known is not None else ():
        if host.name == word:
            return replace(host, become=False)
    match = _DESTINATION.fullmatch(word)
    if match is None:
        raise ConfigError(f"--submit-host {word!r} is not a host; name a host of the inventory, or give user@host.")
    return Host(
        match["host"],
        match["host"],
        port=int(match["port"] or 22),
        user=match["user"] or options.user,
        private_key=options.private_key,
    )


def may_sudo(word: str, known: Inventory | None) -> bool:
    """Whether that host is one of the inventory on which clusterctl uses sudo, so that it can change nodes of Slurm."""
    return any(host.name == word and host.become for host in (known.hosts if known is not None else ()))
