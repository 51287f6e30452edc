"""Leave out the nodes on which jobs run, found over ssh, so that the others can be validated."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.model.hosts import Host
from clusterctl.remote import facts
from clusterctl.support.errors import ConfigError, ValidationCouldNotRunError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Inventory, InventoryOptions


# The host that runs Slurm's commands, as ``--submit-host`` names it.

# user@host:port, as --submit-host takes it; a name that begins with '-' would be an option of ssh.
_DESTINATION = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<port>\d+))?"
)


def named(word: str, known: Inventory | None, options: InventoryOptions) -> Host | None:
    """Return the host that runs Slurm's commands, None for this machine.

    ``word`` is a host of the inventory, or ``user@host:port``; empty for this machine. ``options`` have the user and
    the key of the command line.
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


_TIMEOUT_S = 30.0
_MOST_NAMED = 4
_MOST_PROCESSES = 2
_LONGEST_COMMAND = 40


def of(cluster: Inventory) -> tuple[Inventory, Mapping[str, str]]:
    """Return the inventory with its idle hosts selected, and the reason of each host that is left out.

    A host that does not answer stays in: the check ``reachable`` names it.

    Raises:
        ValidationCouldNotRunError: jobs run on every host.
    """
    asked = [host for host in cluster.selected_hosts if host.by_ssh]
    probe = facts.gather(asked, artifacts=(), leftovers=True, busy=True, timeout_s=_TIMEOUT_S)
    whys = {name: at_work(node) for name, node in probe.facts.items()}
    left_out = {name: whys[name] for name in cluster.selected if whys.get(name)}
    idle = tuple(name for name in cluster.selected if name not in left_out)
    if not idle:
        raise all_busy(left_out)
    return replace(cluster, selected=idle), left_out


def all_busy(left_out: Mapping[str, str]) -> ValidationCouldNotRunError:
    """Return the error for a cluster without an idle node."""
    told = and_more([f"{name} ({why})" for name, why in left_out.items()], _MOST_NAMED, "; ")
    return ValidationCouldNotRunError(
        f"No node is idle, so that nothing can be proved with --skip-busy: {told}. Try again when jobs have ended."
    )


def at_work(node: NodeFacts) -> str:
    """Say which ranks and GPU processes run on a node; '' for an idle one.

    Ranks whose launcher is gone are no work; doctor and validate name them.
    """
    left = {one.pid for one in node.leftovers}
    found = [one for one in node.busy if (one.rank or one.gpu) and one.pid not in left]
    shown = [
        f"{'rank' if one.rank else 'GPU process'} {one.pid} of {one.user}: {one.command[:_LONGEST_COMMAND]}"
        for one in found
    ]
    return f"jobs run there: {and_more(shown, _MOST_PROCESSES, '; ')}" if shown else ""
