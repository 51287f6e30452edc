"""Leave out the nodes on which jobs run, found over ssh, so that the others can be validated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.remote import facts
from clusterctl.support.errors import ValidationCouldNotRunError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Inventory

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
