"""``copies``: many large copies in the memory of every core, with every bit compared, against silent corruption."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from clusterctl.model.nodeset import folded
from clusterctl.model.results import Measurement, Verdict
from clusterctl.model.units import size_words
from clusterctl.suite import CheckOptions
from clusterctl.suite.model import MIB, Confidence, Count, Seconds, Size, between
from clusterctl.validation.checks import base, judging
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport

_LEAST_SIZE = 4096
_MOST_DIGITS = 15  # of a number of copies
_CURE = "take the node out of use, and test its memory and its processor before it takes jobs again"


class CopiesOptions(CheckOptions):
    """A core at fault corrupts one of ``one_in`` copies; it is found with the probability ``chance``.

    ``size`` is that of a copy in bytes. ``budget_s`` are the seconds after which a node makes no more copies. The run
    then says which chance it has reached.
    """

    size: Annotated[Size, AfterValidator(between(_LEAST_SIZE, 1 << 30, "at least 4 KiB and at most 1 GiB"))] = MIB
    one_in: Annotated[Count, AfterValidator(between(2, 10**9, "at least 2"))] = 10_000
    chance: Confidence = 0.95
    budget_s: Seconds = 30.0


def chance_of(copies: int, one_in: float) -> float:
    """Return the probability that a core at fault is found.

    One copy of ``one_in`` goes wrong.
    """
    return -math.expm1(copies * math.log1p(-1 / one_in))


@dataclass(frozen=True)
class Copies(base.Check):
    """Every core of every node copies memory; a single wrong bit is a FAIL that names the node."""

    options: CopiesOptions = field(default_factory=CopiesOptions)
    name: str = "copies"
    title: str = "many large copies on every core, with every bit compared: silent corruption"
    deadline_s: float = 60.0
    per_node: bool = True
    file = "copy_checks.py"

    def measuring_s(self, site: base.Site) -> float:  # noqa: ARG002 - all nodes copy at once
        return self.options.budget_s

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the copies, and say how many each core has made and what they would have found."""
        site = base.one_a_node(site)
        judgement = judging.judge(site, outcome)
        made = {report.host: _number(report, "copies") for report in judgement.ranks if "copies" in report.facts}
        if any(report.problems and "copies" in report.facts for report in judgement.ranks) and judgement.hosts:
            judgement = replace(judgement, next_step=_CURE)
        if judgement.verdict is not Verdict.PASS or not made:
            return judgement
        least = min(made.values())
        if not least:
            none = tuple(node for node, number in made.items() if not number)
            reason = f"the time was too short for a copy on every core of {folded(none)}"
            return replace(judgement, verdict=Verdict.ERROR, reason=reason, hosts=none)
        return base.passed(
            judgement,
            f"{judgement.reason}; {self._words(least)}",
            Measurement(name="copies_of_a_core", value=least, unit="1"),
        )

    def _words(self, least: int) -> str:
        """Return how many copies the core with the fewest has made, and what they would have found."""
        options = self.options
        reached = chance_of(least, options.one_in)
        return (
            f"each core made at least {least:,} copies of {size_words(options.size)}, which finds a core that corrupts "
            f"1 in {options.one_in:,} with a chance of {100 * reached:.3g} %"
        )


def _number(report: RankReport, name: str) -> int:
    text = report.facts.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


CHECKS = (
    Registration(
        name="copies",
        order=47,
        options=CopiesOptions,
        tuned={"full": CopiesOptions(chance=0.999, budget_s=120.0)},
        make=Copies,
    ),
)
