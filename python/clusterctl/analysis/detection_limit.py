"""How finely a check could judge: the rules that name somebody, turned around to the smallest fault that they see."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from clusterctl.analysis import culprit_words, outliers
from clusterctl.model import nodeset
from clusterctl.model.results import Fineness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.analysis.significance import OutlierPolicy
    from clusterctl.model.results import Better, CheckResult, Comparison, Figure, RankReport

GOAL = 0.1  # a fault that should be seen; what is coarser has a reason
_MOST = 9.99  # a latency that may rise tenfold unseen is not judged


def of(result: CheckResult, groups: Iterable[Sequence[Figure]], policy: OutlierPolicy) -> tuple[Fineness, ...]:
    """Return the smallest fault of each kind and quantity that a check would have named, at its finest size.

    Args:
        result: what was measured, with its comparisons.
        groups: the figures of single nodes that are compared with each other.
        policy: when somebody is named, for one of the groups and matrices.
    """
    found: dict[tuple[str, str], float] = {}

    def note(kind: str, quantity: str, fraction: float) -> None:
        found[kind, quantity] = min(found.get((kind, quantity), _MOST), fraction)

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


def words(found: Sequence[Fineness]) -> str:
    """Return how finely a check judged, in a clause: 'links judged to ±12 % (bandwidth) and ±20 % (latency)'.

    Nodes are left out where links are judged, for a link is the harder one to see. Empty where nothing was compared.
    """
    kinds = {one.kind for one in found}
    kind = next((kind for kind in ("link", "node", "job") if kind in kinds), "")
    told = [one for one in found if one.kind == kind]
    if not told:
        return ""
    parts = [f"{_shown(one.fraction)} ({culprit_words.quantity(one.quantity, None)})" for one in told]
    why = next((f": {one.why}" for one in told if one.why), "")
    return f"{kind}s judged to {' and '.join(parts)}{why}"


def _shown(fraction: float) -> str:
    """Return '±12 %', or from the double on '10 times'."""
    return f"±{100 * fraction:.0f} %" if fraction < 1 else f"{1 + fraction:.2g} times"


def _fraction(distance: float, better: Better) -> float:
    """Return the change of a figure at a distance in logarithms: 0.4 is a bandwidth that lacks 40 %."""
    if culprit_words.sign(better) < 0:
        return -math.expm1(-distance)
    return min(_MOST, math.expm1(min(distance, math.log1p(_MOST))))


def _to_limit(one: Comparison) -> float | None:
    """Return the change from which on a figure misses its reference; against the history its whole interval has to."""
    figure, reference = one.figure, one.reference
    is_past = reference.source == "history"
    if reference.lower is not None and figure.better == "higher":
        best = figure.high if is_past and figure.high is not None else figure.value
        return max(0.0, 1 - reference.value * (1 + reference.lower) / best) if best > 0 else None
    if reference.upper is not None and figure.better == "lower":
        best = figure.low if is_past and figure.low is not None else figure.value
        return min(_MOST, max(0.0, reference.value * (1 + reference.upper) / best - 1)) if best > 0 else None
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
_LEAST = 0.15  # of the cores; sshd, daemons and the kernel's threads take some of it on an idle node


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
        if share >= _LEAST:
            found.update({report.host: min(1.0, share) for report in reports})
    return found
