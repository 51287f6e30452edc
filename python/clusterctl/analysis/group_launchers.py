"""Who launches is a variable of the search for bad nodes: launches that tell a bad node from a bad way to launch.

All groups of a search are launched by one node, which need not be in the group. So a fault that depends on who launches
looks like a bad node, or like a fault of all nodes. Before a node is blamed, it launches a job itself; that confirms it
where it fails. Where it passes twice, the first node launches once more: a launch that failed by chance blames nobody.
Where that fails again, another node launches a job with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from clusterctl.analysis.group_trials import Group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Group, ...], list[bool], T]  # groups to launch at once; which of them failed
Attempt: TypeAlias = Callable[..., Steps[list[bool]]]

LAUNCHING = "when it launches"
NOT_LAUNCHING = "when it does not launch"
_TIMES = 2  # that a bad node has to pass when it launches: a fault that comes now and then passes once by chance
_OTHER_LAUNCHERS = 2  # so many are tried, since the first of them may be bad as well


@dataclass(frozen=True)
class Role:
    """When a node is bad: always, only in a role (``when``), when the launcher launches on it (``way``), or never."""

    kind: Literal["always", "when", "way", "never"] = "always"
    words: str = ""


ALWAYS = Role()
NEVER = Role("never")


def roles(bad: Mapping[int, int], launcher: int, attempt: Attempt) -> Steps[dict[int, Role] | None]:
    """Launch each bad node once more, by itself, and find its role where that passes; None where it passes and fails.

    Args:
        bad: bad nodes, each with a good partner; partners are not shared, and none is the launcher unless there is no
            other.
        launcher: the node that launched every job so far.
        attempt: launches groups at once, and returns which of them failed.
    """
    # The launcher has launched already: its partner does it now. The others have not: each launches a job of its own.
    left = {node: (partner, node) if node == launcher else (node, partner) for node, partner in bad.items()}
    for time in range(_TIMES):
        failed = yield from attempt(*left.values(), by=tuple(pair[0] for pair in left.values()))
        if time and any(failed):
            return None
        left = {node: pair for (node, pair), fails in zip(left.items(), failed, strict=True) if not fails}
        if not left:
            return {}
    failed = yield from attempt(*left.values(), by=(launcher,) * len(left))
    found = {node: NEVER for node, fails in zip(left, failed, strict=True) if not fails}
    left = {node: pair for node, pair in left.items() if node not in found}
    found.update({node: Role("when", LAUNCHING) for node in left if node == launcher})
    alone = [node for node in left if node not in found and bad[node] == launcher]
    found.update({node: Role("way", "there is no third node to launch") for node in alone})
    asked = {node: bad[node] for node in left if node not in found}
    if asked:
        failed = yield from attempt(*((partner, node) for node, partner in asked.items()), by=tuple(asked.values()))
        for node, fails in zip(asked, failed, strict=True):
            found[node] = Role("when", NOT_LAUNCHING) if fails else Role("way", "it passes when other nodes launch")
    return found


def bad_launcher(nodes: Group, launcher: int, attempt: Attempt) -> Steps[Role | None]:
    """Tell a bad launcher from a fault of all nodes, after every launch failed; None is a fault of all nodes."""
    others = tuple(node for node in nodes if node != launcher)
    for other in others[:_OTHER_LAUNCHERS]:
        if not (yield from attempt(others, by=(other,)))[0]:
            fails = (yield from attempt((other, launcher), by=(other,)))[0]
            return ALWAYS if fails else Role("when", LAUNCHING)
    return None


def partners(bad: Sequence[int], good: Sequence[int], others: Sequence[int], launcher: int) -> dict[int, int]:
    """Return a partner for each bad node, known-good ones first; a node for which none is left has none."""
    free = [node for node in dict.fromkeys((*good, *others)) if node not in bad and node != launcher]
    found = dict(zip(bad, free, strict=False))
    left = [node for node in bad if node not in found and node != launcher]
    if left and launcher not in bad:
        found[left[0]] = launcher
    return found
