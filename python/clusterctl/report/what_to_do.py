"""Actions after a validation: everything that needs attention, worst first, each thing once.

Many checks and sizes name a slow node; here it is one action with all its evidence, the words of the launcher last.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from clusterctl.analysis import packet_loss
from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.report import figure_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from clusterctl.model.results import CheckResult, Culprit, PairMatrix, RankReport, ValidationRecord, WrongAnswer

_Found: TypeAlias = "tuple[CheckResult, Culprit]"
_NETWORK = {"latency", "bandwidth", "time", "algorithm_bandwidth", "bus_bandwidth", "sent_again"}
_MACHINE = {"memory_bandwidth", "compute", "gpu_clock", "gpu_compute", "copy_bandwidth"}


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
        known: whether the record names ``hosts`` as the ones to blame, or nobody is to blame for a check that did not
            run; else they are those that the reason speaks of.
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
        evidence=_evidence_of_culprits(found, hosts),
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
        known=bool(check.named) or not check.has_run,
        evidence=_evidence_of_check(check),
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


_MOST = 8
_SENDER = re.compile(r"\bfrom rank (\d{1,9})\b")  # the words of the node programs
_MOST_LINKS = 5
_MOST_LAUNCHES = 4
# What a launcher or Python says of every job that fails; it says nothing of the cause.
_BOILERPLATE = re.compile(
    r"^\W*$|^(Process name|Exit code|exitcode|time|rank|error_file|traceback) *: "
    r"|detected that one or more processes exited with non-zero|^thus causing the job to be terminated"
    r"|^Primary job +terminated normally|^a non-zero exit code|per user-direction, the job has been aborted"
    r"|^(Root Cause.*|Failures:|\[\d+\]:|.* FAILED)$|^Traceback \(most|^File \"[^\"]*\", line \d"
    r"|^(return f\(|sys\.exit\(|run\(args\)|elastic_launch\()"
)


def _evidence_of_culprits(found: Sequence[tuple[CheckResult, Culprit]], hosts: Collection[str]) -> tuple[str, ...]:
    """Return what shows a culprit, from what was measured and answered on its nodes.

    Args:
        found: the checks that name the culprit, the strongest first.
        hosts: of the run, for the lines that begin with the name of another node.
    """
    lines = [line for check, culprit in found for line in _shown(check, culprit)]
    for check, culprit in found:  # lines of a measurement repeat its figures
        if not lines or not culprit.quantity:
            lines += _about(culprit.nodes, _said(check), hosts)
    return tuple(dict.fromkeys(lines))[:_MOST]


def _evidence_of_check(check: CheckResult) -> tuple[str, ...]:
    """Return what shows that a check without a culprit is bad."""
    failed = [one.words for one in check.comparisons if one.verdict is Verdict.FAIL]
    lines = (*failed, *_answers(check.ranks, ()), *_said(check))
    return tuple(dict.fromkeys(line for line in lines if line not in check.reason))[:_MOST]


def _shown(check: CheckResult, culprit: Culprit) -> Iterator[str]:
    wanted = set(culprit.nodes)
    for one in check.comparisons:
        if one.verdict is Verdict.FAIL and one.figure.nodes and set(one.figure.nodes) <= wanted:
            yield one.words
    about = (culprit.quantity, culprit.size_bytes)
    measured = [matrix for matrix in check.matrices if (matrix.quantity, matrix.size_bytes) == about]
    for matrix in measured:
        yield from _links(matrix, culprit)
    if culprit.quantity == packet_loss.SENT_AGAIN:
        yield from _lost(check, wanted)
    elif not measured:
        for figure in check.figures:
            if (figure.quantity, figure.size_bytes) == about and set(figure.nodes) == wanted:
                yield f"{figure_words.about_nodes(figure)}: {figure_words.figure(figure.value, figure.unit)}"
    if culprit.kind == "node" or not culprit.quantity:
        yield from _sent(check.ranks, wanted)
        yield from _answers(check.ranks, wanted)
    if check.search:
        yield from _launches(check, wanted)


def _links(matrix: PairMatrix, culprit: Culprit) -> Iterator[str]:
    """Yield the links of a culprit, worst first; of a pair, its own link and the other links of both ends."""
    wanted = {number for number, name in enumerate(matrix.nodes) if name in culprit.nodes}
    both = matrix.forward or matrix.value, matrix.backward or matrix.value
    measured = [
        (value, one, other, there, back)
        for one, other, value, there, back in zip(matrix.first, matrix.second, matrix.value, *both, strict=True)
        if (one in wanted or other in wanted) and value > 0
    ]
    measured.sort(key=lambda link: link[0] if matrix.better == "higher" else -link[0])
    its = [link for link in measured if len(wanted & {link[1], link[2]}) == len(wanted)]
    others = [link for link in measured if link not in its] if len(its) < _MOST_LINKS else []
    for value, one, other, there, back in (*its[:_MOST_LINKS], *others[: _MOST_LINKS - len(its)]):
        ends = (matrix.nodes[one], matrix.nodes[other])
        if figure_words.differ(there, back):
            ways = sorted(((there, ends), (back, ends[::-1])), reverse=matrix.better == "lower")  # the slow one first
            yield from (f"{' → '.join(way)}: {figure_words.figure(pace, matrix.unit)}" for pace, way in ways)
        else:
            yield f"{' ↔ '.join(ends)}: {figure_words.figure(value, matrix.unit)}"


def _lost(check: CheckResult, wanted: set[str]) -> Iterator[str]:
    """Yield what was sent again on the links of a culprit, the sender first, the worst link first."""
    found = [one for one in check.figures if one.quantity == packet_loss.SENT_AGAIN and wanted & set(one.nodes)]
    its = [one for one in found if wanted <= set(one.nodes)]
    for one in sorted(its, key=lambda figure: -figure.value)[:_MOST_LINKS]:
        yield f"{' → '.join(one.nodes)}: {one.value * 100:.2g} % of the TCP segments were sent again"


def _sent(reports: Sequence[RankReport], wanted: Collection[str]) -> Iterator[str]:
    """Yield the first wrong value that each rank elsewhere got from ranks of these nodes."""
    senders = {str(report.rank) for report in reports if report.host in wanted}
    for report in reports:
        for wrong in report.problems if report.host not in wanted else ():
            sender = _SENDER.search(wrong.what)
            if sender and sender[1] in senders:
                yield _answer(report, wrong)
                break


def _answer(report: RankReport, wrong: WrongAnswer) -> str:
    return f"rank {report.rank} on {report.host}: {wrong.what}: expected {wrong.expected}, got {wrong.got}"


def _answers(reports: Iterable[RankReport], wanted: Collection[str]) -> Iterator[str]:
    """Yield the wrong values and the last signs of life of ranks; an empty ``wanted`` is every node."""
    silent: dict[tuple[str, str, str], list[int]] = {}
    for report in reports:
        if wanted and report.host not in wanted:
            continue
        for wrong in report.problems[:2]:
            yield _answer(report, wrong)
        if report.state != "answered":
            silent.setdefault((report.host, report.state, report.step), []).append(report.rank)
    for (host, state, step), ranks in silent.items():
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        yield f"{which} on {host}: {_STATES[state]}" + (f" in {step}" if step else "")


_STATES = {"absent": "did not start", "started": "started, then silent", "waiting": "waiting", "answered": "answered"}


def _launches(check: CheckResult, wanted: set[str]) -> Iterator[str]:
    """Yield the launches of the search: failed ones with the culprit, then those that ran without it."""
    launches = check.search.launches if check.search else ()
    failed = [one for one in launches if not one.ok and wanted <= set(one.nodes)]
    ran = [one for one in launches if one.ok and not wanted <= set(one.nodes)]
    for one in (*sorted(failed, key=lambda launch: len(launch.nodes))[:_MOST_LAUNCHES], *ran[-2:]):
        words = "ran" if one.ok else "did not end well"
        yield f"launch on {nodeset.folded(one.nodes)}: {words}" + (f", {one.words}" if one.words else "")


def _said(check: CheckResult) -> list[str]:
    """Return the record's own lines without what every failed job prints."""
    return [line.strip() for line in check.evidence if not _BOILERPLATE.search(line.strip())]


def _about(nodes: Sequence[str], lines: Sequence[str], hosts: Collection[str]) -> list[str]:
    """Leave out the lines that begin with another node's name; they stand where that node is named."""
    others = set(hosts) - set(nodes)
    return [line for line in lines if line.partition(":")[0] not in others]
