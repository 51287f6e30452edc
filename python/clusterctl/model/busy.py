"""Which nodes have other work to do, and so take no part in a validation that skips busy nodes. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from clusterctl.model.facts import NodeFacts

_MOST_NAMED = 2
_LONGEST_COMMAND = 40


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
    return f"jobs run there: {and_more(shown, _MOST_NAMED, '; ')}" if shown else ""
