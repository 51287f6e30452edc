"""Provision on several controllers: all hosts meet, the builders go ahead, then all parts go on at the same time.

What the builders install is in the cache of the first controller afterwards. So the others get it, and compile nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.provisioning import rolling, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from clusterctl.provisioning.playbook import End
    from clusterctl.provisioning.shares import Shares


@dataclass(frozen=True)
class SharedRun:
    """How it ended: all plays as one, who got which hosts, and a sentence where the workers did not begin."""

    end: End
    shares: Shares = field(default_factory=dict)
    message: str = ""


def share(
    found: Shares, builders: Collection[str], meet: Callable[[], End], parts: Callable[[Shares], Sequence[End]]
) -> SharedRun:
    """Play the three steps; the first that goes wrong for another reason than single hosts is the last.

    Args:
        found: who gets which hosts.
        builders: the hosts that go ahead, on the first controller.
        meet: plays what needs the facts of all hosts, on all of them.
        parts: plays the rest, on all controllers that have a host.
    """
    ends = [meet()]
    if _is_over(ends[-1]):
        return SharedRun(ends[-1])
    lost = rolling.lost_hosts(ends)
    first = tuple(name for its in found.values() for name in its if name in builders and name not in lost)
    if first:
        ends += parts({shares.OWN: first})
        if failed := rolling.lost_hosts(ends[1:]):
            words = f"The workers did not begin, because {folded(failed)} failed, which goes ahead of the others."
            return SharedRun(rolling.as_one(ends), message=words)
        if _is_over(ends[-1]):
            return SharedRun(rolling.as_one(ends))
    rest = shares.without(found, {*builders, *lost})
    if any(rest.values()):
        ends += parts(rest)
    return SharedRun(rolling.as_one(ends), rest)


def _is_over(end: End) -> bool:
    """Whether a play was stopped, or ended badly for another reason than single hosts."""
    return end.status == "canceled" or (end.rc != 0 and not rolling.lost_hosts([end]))
