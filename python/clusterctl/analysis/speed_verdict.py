"""From right answers to a verdict on speed: hold figures against references and against each other.

Only a PASS is looked at: a check with a wrong answer, or without one, has its verdict already.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

from clusterctl.analysis import agreement, culprit_words, packet_loss
from clusterctl.analysis.references import badness, compare
from clusterctl.model import nodeset, units
from clusterctl.model.results import CheckResult, Culprit, Fineness, Verdict
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.analysis.robust_stats import OutlierPolicy
    from clusterctl.model.results import Better, Comparison, Figure, PairMatrix, RankReport, Reference

_MOST_NAMED = 3
_ENOUGH_NODES = 4  # in a matrix, to tell a node from a link
_MOST_EVIDENCE = 40
_MOST_LINKS = 8


def assess(
    result: CheckResult, policy: OutlierPolicy, references: Callable[[Figure], Reference | None] | None = None
) -> CheckResult:
    """Add comparisons and culprits to a PASS, and turn it into a FAIL where one of them is bad.

    A FAIL is a suspicion until the check was run once more: see :func:`confirmed`. ``references`` returns the reference
    of a figure, None where it has none.
    """
    if result.verdict is not Verdict.PASS:
        return result
    return _with_fineness(_judged(result, tuple(_compared(result, references)), _culprits(result, policy)), policy)


def suspects(result: CheckResult) -> bool:
    """Whether an assessed result is a FAIL by its figures alone, so that a second run has to confirm it."""
    return result.verdict is Verdict.FAIL and bool(result.culprits or _failed(result.comparisons))


def confirmed(
    first: CheckResult,
    second: CheckResult,
    policy: OutlierPolicy,
    references: Callable[[Figure], Reference | None] | None = None,
) -> CheckResult:
    """Return the second of two runs of a check, blaming only what both of them show.

    What the first alone showed is told in the reason of a PASS, since once is chance. A second run that ended badly by
    itself (a wrong answer, a hang) stands as it is; one that could not be run at all (ERROR, SKIP) confirms nothing and
    refutes nothing, so that the first stands, and says so. So does a figure that the second run had no time to measure.
    ``first`` is assessed, ``second`` is not.
    """
    if second.verdict in {Verdict.ERROR, Verdict.SKIP}:
        words = f"{first.reason}; a second run confirmed nothing: {second.reason}"
        return first.model_copy(update={"reason": words})
    if second.verdict is Verdict.FAIL:
        return second
    again = assess(second, policy, references)
    before = {_key(one.figure) for one in _failed(first.comparisons)}
    comparisons = tuple(
        one.model_copy(update={"verdict": Verdict.PASS, "words": f"{one.words}, in one run of two"})
        if one.verdict is Verdict.FAIL and _key(one.figure) not in before
        else one
        for one in again.comparisons
    )
    measured = {_key(figure) for figure in second.figures}
    comparisons += tuple(
        one.model_copy(update={"words": f"{one.words}; a second run did not come to measure it"})
        for one in _failed(first.comparisons)
        if _key(one.figure) not in measured
    )
    judged = _with_fineness(_judged(second, comparisons, agreement.confirm(first.culprits, again.culprits)), policy)
    if judged.verdict is not Verdict.PASS:
        return judged
    once = [one.words for one in first.culprits] + [one.words for one in _failed(first.comparisons)]
    seen = f"; in one run and not in the next: {'; '.join(once[:_MOST_NAMED])}" if once else ""
    return judged.model_copy(update={"reason": judged.reason + seen})


def settled(first: CheckResult, assessed: CheckResult, named: Sequence[Culprit], policy: OutlierPolicy) -> CheckResult:
    """Return a run whose suspects were measured on: blamed for those that the test named, and for nothing else.

    ``named`` are those that the sequential test named.
    """
    return _with_fineness(_judged(first, assessed.comparisons, tuple(named)), policy)


def with_named(result: CheckResult, named: Sequence[Culprit]) -> CheckResult:
    """Return an assessed run that is blamed for these culprits as well, unless it ended badly by itself."""
    if not named or not (result.verdict is Verdict.PASS or suspects(result)):
        return result
    return _judged(result, result.comparisons, agreement.merge((*result.culprits, *named)))


def failed_comparisons(result: CheckResult) -> bool:
    """Whether a figure of an assessed run is beyond its reference."""
    return bool(_failed(result.comparisons))


def _compared(result: CheckResult, references: Callable[[Figure], Reference | None] | None) -> Iterable[Comparison]:
    """Yield the figures that have a reference beside it.

    The history does not speak of one node's links where a matrix of enough nodes does: that tells the node from the
    moment. Few links have no interval, and on a busy machine a node's few may all be slow for the second they took.
    """
    told = {(matrix.quantity, matrix.size_bytes) for matrix in result.matrices if len(matrix.nodes) >= _ENOUGH_NODES}
    for figure in result.figures:
        reference = references(figure) if references else None
        if reference is None:
            continue
        if reference.source == "history" and figure.nodes and (figure.quantity, figure.size_bytes) in told:
            continue
        yield compare(figure, reference)


def _culprits(result: CheckResult, policy: OutlierPolicy) -> tuple[Culprit, ...]:
    if not (result.matrices or any(figure.nodes for figure in result.figures)):
        return ()
    from clusterctl.analysis import outliers  # noqa: PLC0415 - numpy, for runs that measure

    groups, within = _by_node(result, policy), _within(result, policy)
    found = [one for group in groups for one in outliers.among_nodes(group, within)]
    for matrix in result.matrices:
        found += [one for one in outliers.among_links(matrix, within) if not is_a_round(matrix, one)]
        found += outliers.among_directions(matrix, within)
    found += missing_links(result.matrices)
    found += packet_loss.links(result.figures, result.matrices)
    return agreement.merge(found)


def _within(result: CheckResult, policy: OutlierPolicy) -> OutlierPolicy:
    """Return the policy for one of the groups and matrices of a check."""
    return policy.over(policy.families * max(1, len(_by_node(result, policy)) + len(result.matrices)))


def _with_fineness(result: CheckResult, policy: OutlierPolicy) -> CheckResult:
    """Say with a PASS how finely it could judge."""
    compared = result.matrices or result.comparisons or any(figure.nodes for figure in result.figures)
    if result.verdict is not Verdict.PASS or not compared:
        return result
    found = fineness(result, _by_node(result, policy), _within(result, policy))
    told = fineness_words(found)
    reason = f"{result.reason}; {told}" if told else result.reason
    return result.model_copy(update={"fineness": found, "reason": reason})


def is_a_round(matrix: PairMatrix, culprit: Culprit) -> bool:
    """Whether what a pair of four nodes shows is shown by the other two nodes as well, at the same time.

    The two pairs play one round of the tournament, so what slows both down is the moment: four containers of one
    machine share its cores. Two partners on one core are slower than two on different cores.
    """
    if culprit.kind != "pair" or len(matrix.nodes) != _ENOUGH_NODES:
        return False
    values = {frozenset(link): value for link, value in zip(matrix.links, matrix.value, strict=True) if value > 0}
    pair = frozenset(culprit.nodes)
    others = values.get(frozenset(matrix.nodes) - pair)
    rest = [value for ends, value in values.items() if len(ends & pair) == 1]
    if others is None or pair not in values or not rest:
        return False
    middle = statistics.median(rest)
    distances = [math.log(value / middle) for value in (others, values[pair])]
    return distances[0] * distances[1] > 0 and abs(distances[0]) > abs(distances[1]) / 2


def _by_node(result: CheckResult, policy: OutlierPolicy) -> list[list[Figure]]:
    """Return the figures of single nodes, those that may be compared together.

    A node's links are left out where the matrix they are of is there: it tells a node from a link.
    """
    in_matrices = {(matrix.quantity, matrix.size_bytes) for matrix in result.matrices}
    groups: dict[tuple[object, ...], list[Figure]] = {}
    for figure in result.figures:
        if len(figure.nodes) == 1 and (figure.quantity, figure.size_bytes) not in in_matrices:
            peers = figure.model_copy(update={"algorithm": ""}) if figure.device else figure
            groups.setdefault((*_kind(peers), policy.hardware(figure)), []).append(figure)
    return list(groups.values())


def _judged(result: CheckResult, comparisons: tuple[Comparison, ...], culprits: tuple[Culprit, ...]) -> CheckResult:
    added = {"comparisons": comparisons, "culprits": culprits}
    failed = sorted(_failed(comparisons), key=badness, reverse=True)
    if not culprits and not failed:
        return result.model_copy(update=added)
    named = [one.words for one in culprits] + [one.words for one in failed]
    hosts = [host for one in culprits for host in one.blamed] + [host for one in failed for host in one.figure.nodes]
    return result.model_copy(
        update={
            **added,
            "verdict": Verdict.FAIL,
            "reason": and_more(named, _MOST_NAMED, "; "),
            "hosts": tuple(dict.fromkeys(hosts)),
            "evidence": tuple(itertools.islice(_evidence(result.matrices, culprits, failed), _MOST_EVIDENCE)),
        }
    )


def _evidence(
    matrices: Sequence[PairMatrix], culprits: Sequence[Culprit], failed: Sequence[Comparison]
) -> Iterable[str]:
    for culprit in culprits:
        score = f" (score {culprit.score:.3g})" if culprit.score is not None else ""
        yield f"{culprit.words}{score}"
        for matrix in matrices:
            if (matrix.quantity, matrix.size_bytes) == (culprit.quantity, culprit.size_bytes):
                yield from _links(matrix, culprit)
    for one in failed:
        figure = one.figure
        if figure.low is None or figure.high is None:
            yield one.words
        else:
            low, high = (units.value_words(end, figure.unit) for end in (figure.low, figure.high))
            yield f"{one.words}; {units.percent(figure.confidence)} interval {low} to {high}"


def _links(matrix: PairMatrix, culprit: Culprit) -> Iterable[str]:
    """Return the links of a culprit's nodes, worst first; those that are good show that it is not all of them."""
    import numpy as np  # noqa: PLC0415 - runs that measure have it already

    who = [matrix.nodes.index(name) for name in culprit.nodes if name in matrix.nodes]
    first, second, values = np.asarray(matrix.first), np.asarray(matrix.second), np.asarray(matrix.value)
    its = np.flatnonzero(np.isin(first, who) | np.isin(second, who))
    its = its[np.argsort(values[its] if matrix.better == "higher" else -values[its], kind="stable")]
    for at in its[:_MOST_LINKS]:
        ends = f"{matrix.nodes[first[at]]} - {matrix.nodes[second[at]]}"
        yield f"  {ends}: {units.value_words(float(values[at]), matrix.unit)}"


def _failed(comparisons: Iterable[Comparison]) -> list[Comparison]:
    return [one for one in comparisons if one.verdict is Verdict.FAIL]


def _kind(figure: Figure) -> tuple[object, ...]:
    return (figure.quantity, figure.operation, figure.backend, figure.algorithm, figure.size_bytes, figure.unit)


def _key(figure: Figure) -> tuple[object, ...]:
    return (*_kind(figure), figure.nodes)


# --- Links so slow that a size could not be measured on them in the time that sufficed for the others -----------------

_MOST = 0.5  # of the links: where more are missing, the time was too short for all


def missing_links(matrices: Sequence[PairMatrix]) -> tuple[Culprit, ...]:
    """Return who is behind the links that were measured at other sizes and are missing at one.

    One missing link is a pair; several are blamed on the node that all of them share, and on none where they share
    none.
    """
    if len({(matrix.nodes, matrix.first, matrix.second) for matrix in matrices}) <= 1:
        return ()  # all sizes have the same links
    played = {link for matrix in matrices for link in matrix.links}
    found = []
    for matrix in matrices:
        absent = played - set(matrix.links)
        shared = set.intersection(*(set(link) for link in absent)) if absent else set()
        if not shared or len(absent) > _MOST * len(played):
            continue
        nodes = tuple(name for name in matrix.nodes if name in shared)
        others = [name for name in matrix.nodes if name not in shared and any(name in link for link in absent)]
        what = f"{matrix.quantity} of {units.size_words(matrix.size_bytes)}"
        if len(nodes) == 1:
            words = f"{nodes[0]}: its links to {nodeset.folded(others)} are too slow to measure the {what}"
        else:
            words = f"{' and '.join(nodes)}: the link between them is too slow to measure the {what}"
        found.append(
            Culprit(
                kind="node" if len(nodes) == 1 else "pair",
                nodes=nodes,
                quantity=matrix.quantity,
                size_bytes=matrix.size_bytes,
                words=f"{words} in the time of the others",
            )
        )
    return tuple(found)


# --- How finely a check could judge: the rules that name somebody, turned around to the smallest fault they see -------

GOAL = 0.1  # a fault that should be seen; what is coarser has a reason
_COARSEST = 9.99  # a latency that may rise tenfold unseen is not judged


def fineness(result: CheckResult, groups: Iterable[Sequence[Figure]], policy: OutlierPolicy) -> tuple[Fineness, ...]:
    """Return the smallest fault of each kind and quantity that a check would have named, at its finest size."""
    from clusterctl.analysis import outliers  # noqa: PLC0415 - numpy, for runs that measure

    found: dict[tuple[str, str], float] = {}

    def note(kind: str, quantity: str, fraction: float) -> None:
        found[kind, quantity] = min(found.get((kind, quantity), _COARSEST), fraction)

    for group in groups:
        distance = outliers.finest_node(group, policy)
        if distance is not None:
            note("node", group[0].quantity, _fraction(distance, group[0].better))
    for matrix in result.matrices:
        for kind, distance in zip(("link", "node"), outliers.finest_link(matrix, policy), strict=True):
            if distance is not None:
                note(kind, matrix.quantity, _fraction(distance, matrix.better))
    for one in result.comparisons:
        fraction = _to_limit(one)
        if fraction is not None and not one.figure.nodes:
            note("job", one.figure.quantity, fraction)
    why = _why(result)
    return tuple(
        Fineness.model_validate(
            {
                "kind": kind,
                "quantity": quantity,
                "fraction": float(f"{fraction:.3g}"),
                "why": why if fraction > GOAL else "",
            }
        )
        for (kind, quantity), fraction in found.items()
    )


def fineness_words(found: Sequence[Fineness]) -> str:
    """Return the smallest slowdown that a check sees: 'can detect 12 % (bandwidth) and 20 % (latency) on links'.

    Nodes are left out where links are judged, for a link is the harder one to see. Empty where nothing was compared.
    """
    kinds = {one.kind for one in found}
    kind = next((kind for kind in ("link", "node", "job") if kind in kinds), "")
    told = [one for one in found if one.kind == kind]
    if not told:
        return ""
    parts = [f"{_shown(one.fraction)} ({culprit_words.quantity(one.quantity, None)})" for one in told]
    why = next((f": {one.why}" for one in told if one.why), "")
    return f"can detect {' and '.join(parts)} on {kind}s{why}"


def _shown(fraction: float) -> str:
    """Return '12 %', or from the double on '10 times'."""
    return f"{100 * fraction:.0f} %" if fraction < 1 else f"{1 + fraction:.2g} times"


def _fraction(distance: float, better: Better) -> float:
    """Return the change of a figure at a distance in logarithms: 0.4 is a bandwidth that lacks 40 %."""
    if culprit_words.sign(better) < 0:
        return -math.expm1(-distance)
    return min(_COARSEST, math.expm1(min(distance, math.log1p(_COARSEST))))


def _to_limit(one: Comparison) -> float | None:
    """Return the change from which on a figure misses its reference; against the history its whole interval has to."""
    figure, reference = one.figure, one.reference
    is_past = reference.source == "history"
    if reference.lower is not None and figure.better == "higher":
        best = figure.high if is_past and figure.high is not None else figure.value
        return max(0.0, 1 - reference.value * (1 + reference.lower) / best) if best > 0 else None
    if reference.upper is not None and figure.better == "lower":
        best = figure.low if is_past and figure.low is not None else figure.value
        return min(_COARSEST, max(0.0, reference.value * (1 + reference.upper) / best - 1)) if best > 0 else None
    return None


def _why(result: CheckResult) -> str:
    """Return what made a check coarse: other work on the cores, as its ranks counted it; empty where there was none."""
    busy = busy_nodes(result.ranks)
    if not busy:
        return ""
    low, high = (f"{share * 100:.0f}" for share in (min(busy.values()), max(busy.values())))
    share = f"{high} %" if low == high else f"{low} to {high} %"
    nodes = nodeset.folded([host for host in dict.fromkeys(report.host for report in result.ranks) if host in busy])
    return f"the cores were busy with something else on {nodes}, {share} of their time"


# --- Other work on the cores: what a machine's processors did during a check beyond the ranks of the check ------------

MACHINE = "machine"  # the fact of a rank that names its machine
# The figures of a rank, from the start of the measurement to its end: the processor time of the rank, that of all
# processes of the machine, and that which its cores have.
OWN, BUSY, ALL = "cpu_own_s", "cpu_busy_s", "cpu_all_s"
_LEAST_BUSY = 0.15  # of the cores; sshd, daemons and the kernel's threads take some of it on an idle node


def busy_nodes(ranks: Iterable[RankReport]) -> dict[str, float]:
    """Return the share of the cores that other work took, for the nodes where that is much.

    The ranks of all nodes of a machine are taken off what its processors did.
    """
    machines: dict[str, list[RankReport]] = {}
    for report in ranks:
        if report.figures.get(ALL, 0.0) > 0 and OWN in report.figures and BUSY in report.figures:
            machines.setdefault(report.facts.get(MACHINE, report.host), []).append(report)
    found = {}
    for reports in machines.values():
        busy = statistics.median(report.figures[BUSY] / report.figures[ALL] for report in reports)
        share = busy - sum(report.figures[OWN] / report.figures[ALL] for report in reports)
        if share >= _LEAST_BUSY:
            found.update({report.host: min(1.0, share) for report in reports})
    return found
