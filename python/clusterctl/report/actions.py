"""What to do: everything that somebody has to look at, worst first, each thing once.

A slow node is named by every check and size that met it; here it is one entry with all that shows it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from clusterctl.model.results import CheckResult, Culprit, ValidationRecord

_Found: TypeAlias = "tuple[CheckResult, Culprit]"
_NETWORK = {"latency", "bandwidth", "time", "algorithm_bandwidth", "bus_bandwidth", "sent_again"}
_MACHINE = {"memory_bandwidth", "compute", "gpu_clock"}
_MOST_EVIDENCE = 8


@dataclass(frozen=True)
class Action:
    """One thing to look at.

    Attributes:
        kind: ``node``, ``pair`` or ``together`` of a culprit; ``check`` where a check is bad and nobody is named.
        nodes: whom it is about, folded: node[1-3].
        hosts: the same, one name each.
        words: the sentence that names it.
        more: the other sentences about the same nodes.
        advice: where to look.
        evidence: the lines that show it.
        since: the first of the consecutive runs that named it, None where this is the first.
        checks: the checks that name it.
        repeat: what to paste on the controller to see it again.
        log: path of the raw output, relative to the run's folder.
    """

    kind: str
    nodes: str
    hosts: tuple[str, ...]
    words: str
    more: tuple[str, ...]
    advice: str
    evidence: tuple[str, ...]
    since: datetime | None
    checks: tuple[str, ...]
    repeat: str
    log: str


def of(record: ValidationRecord) -> tuple[Action, ...]:
    """Return what is to be done after this run; nothing where all is well."""
    grouped: dict[tuple[str, tuple[str, ...]], list[_Found]] = {}
    for check in record.checks:
        for culprit in culprits(check):
            grouped.setdefault((culprit.kind, tuple(sorted(culprit.nodes))), []).append((check, culprit))
    named = sorted(grouped.values(), key=lambda found: -max(badness(culprit) for _, culprit in found))
    covered = {check.check for found in named for check, _ in found}
    rest = [check for check in record.checks if check.is_bad and check.check not in covered]
    return (*(_of_culprit(found) for found in named), *(_of_check(check) for check in rest))


def culprits(check: CheckResult) -> tuple[Culprit, ...]:
    """Return whom a check names: by its figures, or by the search after it hung or crashed."""
    found = (*check.culprits, *(check.search.culprits if check.search else ()))
    return tuple({(one.kind, one.nodes, one.quantity, one.size_bytes): one for one in found}.values())


def badness(culprit: Culprit) -> float:
    """Return how many times worse than expected it is; infinite where a job hung or crashed."""
    if culprit.ratio is None or culprit.ratio <= 0:
        return math.inf
    return max(culprit.ratio, 1 / culprit.ratio)


def _of_culprit(found: list[_Found]) -> Action:
    found = sorted(found, key=lambda one: -badness(one[1]))
    check, first = found[0]
    about = [words for one, _ in found for words in _comparisons(one, first.nodes)]
    checks = tuple(dict.fromkeys(one.check for one, _ in found))
    since = [culprit.since for _, culprit in found if culprit.since is not None]
    return Action(
        kind=first.kind,
        nodes=nodeset.folded(first.nodes),
        hosts=first.nodes,
        words=first.words,
        more=tuple(dict.fromkeys(culprit.words for _, culprit in found[1:] if culprit.words != first.words)),
        advice=_advice(first.kind, {culprit.quantity for _, culprit in found}),
        evidence=tuple(dict.fromkeys((*about, *_lines(found, first.nodes))))[:_MOST_EVIDENCE],
        since=min(since) if since else None,
        checks=checks,
        repeat=check.repeat,
        log=check.log,
    )


def _of_check(check: CheckResult) -> Action:
    failed = [one.words for one in check.comparisons if one.verdict.value == "FAIL"]
    return Action(
        kind="check",
        nodes=nodeset.folded(check.hosts),
        hosts=check.hosts,
        words=check.reason,
        more=(),
        advice="",
        evidence=tuple(dict.fromkeys((*failed, *check.evidence)))[:_MOST_EVIDENCE],
        since=None,
        checks=(check.check,),
        repeat=check.repeat,
        log=check.log,
    )


def _lines(found: list[_Found], nodes: tuple[str, ...]) -> list[str]:
    """Return the checks' own evidence: the lines that name these nodes, all where no line does."""
    lines = [line for check, _ in found for line in check.evidence]
    name = re.compile(rf"(?<![\w.-])(?:{'|'.join(re.escape(node) for node in nodes)})(?![\w-])")
    naming = [line for line in lines if len(name.findall(line)) >= min(len(nodes), 2)]
    return naming or lines


def _comparisons(check: CheckResult, nodes: Iterable[str]) -> list[str]:
    wanted = set(nodes)
    return [
        one.words
        for one in check.comparisons
        if one.verdict.value == "FAIL" and one.figure.nodes and set(one.figure.nodes) <= wanted
    ]


def _advice(kind: str, quantities: set[str]) -> str:
    if kind == "pair":
        return "Look at the path between the two: cables, switch ports, routes; each of them does well with the others."
    if kind == "together":
        return "Nobody alone shows it: look at what they share, such as a switch or a limit on connections."
    if quantities <= _MACHINE:
        return "Look at the machine itself: what else runs on it, its clock, its temperature, its memory."
    if quantities <= _NETWORK:
        return "Look at its link to the fabric: cable, port, negotiated speed, error counters of the interface."
    if quantities & _MACHINE:
        return "It is slow by itself, not only on the network: look at what else runs on it, its clock, its memory."
    return "Look at its kernel log and at the processes that are left on it, or leave it out with --limit."
