"""``node_speed``: memory bandwidth and compute speed of each node, which tells a slow node from a slow link."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.model.units import value_words
from clusterctl.suite import MeasuringOptions
from clusterctl.validation.checks import base, judging, rank_output
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure

QUANTITIES = {"memory_bandwidth": "memory", "compute": "compute"}
# Containers of one machine take turns; their number is unknown before they answer.
_TURN_S = 2.0


class NodeSpeedOptions(MeasuringOptions):
    """Memory bandwidth and a compute loop on each node, ``budget_s`` for each."""


@dataclass(frozen=True)
class NodeSpeed(base.Check):
    """Every node measures itself; the outlier rules find the slow nodes."""

    options: NodeSpeedOptions = field(default_factory=NodeSpeedOptions)
    name: str = "node_speed"
    title: str = "memory bandwidth and computing of every node"
    deadline_s: float = 60.0
    per_node: bool = True
    file = "node_checks.py"

    def measuring_s(self, site: base.Site) -> float:
        """Return the seconds in which the containers of one machine measure in turn."""
        return min(len(site.slots), 32) * (_TURN_S + 2 * len(QUANTITIES) * self.options.budget_s)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge what was computed and how the GPUs are, and make figures of what was measured."""
        site = base.one_a_node(site)
        judgement = judging.judge(site, outcome)
        measured = rank_output.read(outcome.lines, site.placement, site.names).measured
        figures = rank_output.figures([one for one in measured if one.quantity in QUANTITIES], self.options.confidence)
        judgement = replace(judgement, figures=figures)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        for quantity in QUANTITIES:
            known = {name for figure in figures if figure.quantity == quantity for name in figure.nodes}
            unmeasured = [node for node in site.slots if node not in known]
            if unmeasured:
                reason = f"the time was too short to measure the {quantity.replace('_', ' ')} of {folded(unmeasured)}"
                return replace(judgement, verdict=Verdict.ERROR, reason=reason, hosts=tuple(unmeasured))
        return base.passed(judgement, f"{judgement.reason}; {_words(figures)}")


def _words(figures: Sequence[Figure]) -> str:
    """Return 'memory median 21.3 GB/s, 20.9 GB/s on node3' for each quantity, with the slowest node."""
    words = []
    for quantity, called in QUANTITIES.items():
        group = [figure for figure in figures if figure.quantity == quantity]
        middle = value_words(statistics.median(figure.value for figure in group), group[0].unit)
        slowest = min(group, key=lambda figure: figure.value)
        words.append(f"{called} median {middle}, {value_words(slowest.value, slowest.unit)} on {slowest.nodes[0]}")
    return "; ".join(words)


CHECKS = (
    Registration(
        name="node_speed",
        order=40,
        options=NodeSpeedOptions,
        measures={"memory_bandwidth": "B/s", "compute": "FLOP/s"},
        first_suite="smoke",
        tuned={
            "smoke": NodeSpeedOptions(budget_s=0.25, precision=0.05),
            "nightly": NodeSpeedOptions(budget_s=2.0),
            "full": NodeSpeedOptions(budget_s=10.0, precision=0.01),
        },
        make=NodeSpeed,
    ),
)
