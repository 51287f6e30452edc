"""Actions after a validation: everything that needs attention, worst first, each thing once.

Many checks and sizes name a slow node; here it is one action with all its evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from clusterctl.model import nodeset
from clusterctl.report import evidence

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from clusterctl.model.culprits import Culprit
    from clusterctl.model.results import CheckResult, ValidationRecord

_Found: TypeAlias = "tuple[CheckResult, Culprit]"
_NETWORK = {"latency", "bandwidth", "time", "algorithm_bandwidth", "bus_bandwidth", "sent_again"}
_MACHINE = {"memory_bandwidth", "compute", "gpu_clock"}


@dataclass(frozen=True)
class Action:
    """One thing that needs attention.

    Attributes:
        kind: ``node``, ``pair`` or ``together`` of a culprit; ``check`` for a bad check without a culprit.
        nodes: its nodes, folded: node[1-3].
        hosts: its nodes, one name each.
        words: the sentence that names it.
        more: the other sentences about the same nodes.
        advice: where to look; for a check without a culprit its next step.
        known: whether the record names ``hosts`` as the ones to blame; else they are those that the reason speaks of.
        evidence: the lines that show it.
        since: the first of the consecutive runs that named it, None where this is the first.
        checks: the checks that name it.
        repeat: the command that shows it again on the controller.
        log: path of the raw output, relative to the run's folder.
    """

    kind: str
    nodes: str
    hosts: tuple[str, ...]
    words: str
    more: tuple[str, ...]
    advice: str
    known: bool
    evidence: tuple[str, ...]
    since: datetime | None
    checks: tuple[str, ...]
    repeat: str
    log: str


def of(record: ValidationRecord) -> tuple[Action, ...]:
    """Return the actions after this run; none where every check passed."""
    grouped: dict[tuple[str, str], list[_Found]] = {}
    for check in record.checks:
        for culprit in culprits(check):
            grouped.setdefault((culprit.kind, names(culprit)), []).append((check, culprit))
    named = sorted(grouped.values(), key=lambda found: -max(badness(culprit) for _, culprit in found))
    covered = {check.check for found in named for check, _ in found}
    rest = [check for check in record.checks if check.is_bad and check.check not in covered]
    return (*(_of_culprit(found, record.hosts) for found in named), *(_of_check(check) for check in rest))


def culprits(check: CheckResult) -> tuple[Culprit, ...]:
    """Return the culprits of a bad check: from its figures, and from the search after it hung or crashed."""
    if not check.is_bad:
        return ()
    found = (*check.culprits, *(check.search.culprits if check.search else ()))
    return tuple({(one.kind, one.nodes, one.quantity, one.size_bytes): one for one in found}.values())


def badness(culprit: Culprit) -> float:
    """Return how many times worse than expected a culprit is; infinite where a job hung or crashed."""
    if culprit.ratio is None or culprit.ratio <= 0:
        return math.inf
    return max(culprit.ratio, 1 / culprit.ratio)


def _of_culprit(found: list[_Found], hosts: Collection[str]) -> Action:
    found = sorted(found, key=lambda one: -badness(one[1]))
    check, first = found[0]
    checks = tuple(dict.fromkeys(one.check for one, _ in found))
    since = [culprit.since for _, culprit in found if culprit.since is not None]
    return Action(
        kind=first.kind,
        nodes=names(first),
        hosts=first.nodes,
        words=first.words,
        more=tuple(dict.fromkeys(culprit.words for _, culprit in found[1:] if culprit.words != first.words)),
        advice=_cures(found) or _advice(first.kind, {culprit.quantity for _, culprit in found}),
        known=True,
        evidence=evidence.of_culprits(found, hosts),
        since=min(since) if since else None,
        checks=checks,
        repeat=check.repeat,
        log=check.log,
    )


def _of_check(check: CheckResult) -> Action:
    return Action(
        kind="check",
        nodes=nodeset.folded(check.hosts),
        hosts=check.hosts,
        words=check.reason,
        more=(),
        advice=f"Next step: {check.next_step}" if check.next_step else "",
        known=bool(check.named),
        evidence=evidence.of_check(check),
        since=None,
        checks=(check.check,),
        repeat=check.repeat,
        log=check.log,
    )


def names(culprit: Culprit) -> str:
    """Return the nodes of a culprit, folded: sender and receiver of one way, and the groups beside a boundary."""
    if culprit.kind == "one_way":
        return " → ".join(culprit.nodes)
    if culprit.sides:
        return culprit.sides
    return nodeset.folded(culprit.nodes)


_PATH_ADVICE = {
    "boundary": "Check what lies between the groups: the uplinks of their switches, the ports and cables in between.",
    "pair": "Check the path between the two nodes: cables, switch ports, routes. Each does well with the others.",
    "one_way": "Check this direction of the path: a filter rule, a route or a damaged fibre. The way back does well.",
    "together": "No node shows it alone: check what they share, such as a switch or a limit on connections.",
}


def _cures(found: list[_Found]) -> str:
    """Return what to do where the cause is known, as a sentence; empty where it is not."""
    cures = "; ".join(dict.fromkeys(culprit.cure for _, culprit in found if culprit.cure))
    return f"{cures[:1].upper()}{cures[1:]}." if cures else ""


def _advice(kind: str, quantities: set[str]) -> str:
    if kind in _PATH_ADVICE:
        return _PATH_ADVICE[kind]
    if quantities <= _MACHINE:
        return "Check the machine: other programs that run on it, its clock, its temperature, its memory."
    if quantities <= _NETWORK:
        return "Check its link to the fabric: cable, port, negotiated speed, error counters of the interface."
    if quantities & _MACHINE:
        return "The machine is slow, not only its network: check other programs that run on it, its clock, its memory."
    return "Check its kernel log and the processes that are left on it, or leave it out with --limit."
