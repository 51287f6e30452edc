"""``dcgm``: NVIDIA's own diagnostics of each node (``dcgmi diag``), where DCGM is installed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.suite import CheckOptions
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base, judging
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport

QUANTITY = "dcgm"
_TESTS = "DCGM's test "  # how dcgm_checks.py begins the name of a test
# DCGM's reference of dcgmi diag: seconds, about two minutes, about a quarter of an hour, and longer.
_LEVEL_S = {1: 120.0, 2: 600.0, 3: 2700.0, 4: 10800.0}
_MOST_NAMED = 3
_CURE = "read DCGM's words, and run 'dcgmi diag -r 3' there; 'clusterctl doctor' looks at the same GPUs"
_CURE_NO_ANSWER = "see that the host engine runs there: 'systemctl status nvidia-dcgm'"


class DcgmOptions(CheckOptions):
    """``level`` is that of ``dcgmi diag -r``: 1 takes seconds, 2 about two minutes, 3 about a quarter of an hour."""

    level: Annotated[int, Field(ge=1, le=4)] = 1


@dataclass(frozen=True)
class Dcgm(base.Check):
    """Every node runs ``dcgmi diag`` by itself. A test that fails is a FAIL; without DCGM the check is a SKIP."""

    options: DcgmOptions = field(default_factory=DcgmOptions)
    name: str = "dcgm"
    title: str = "NVIDIA's own diagnostics of every node's GPUs (dcgmi diag)"
    deadline_s: float = 30.0
    per_node: bool = True
    file = "dcgm_checks.py"

    def absent(self, stack: NodeStack) -> str:
        if stack.gpus:
            return ""
        return f"jobs cannot use {stack.idle_gpus}" if stack.idle_gpus else "no GPU"

    def measuring_s(self, site: base.Site) -> float:  # noqa: ARG002 - all nodes run at once
        """Return the seconds that DCGM may take at this level."""
        return _LEVEL_S[self.options.level]

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge what DCGM found on each node; nodes are judged one by one, so all of them may be named."""
        judgement = judging.judge(base.one_a_node(site), outcome, with_mpi=False, per_node=True)
        if judgement.verdict is Verdict.ERROR:
            return judgement
        failed = [report for report in judgement.ranks if any(one.what.startswith(_TESTS) for one in report.problems)]
        mute = [report for report in judgement.ranks if report.facts.get("dcgm") == "no_answer"]
        if failed:
            words = and_more((_found(report) for report in failed), _MOST_NAMED, ". ")
            words += f". dcgmi gave no answer on {_nodes(mute)}" if mute else ""
            return base.blamed(judgement, words, [(one.host, _found(one), _CURE) for one in failed], QUANTITY)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        if mute:
            why = mute[0].facts.get("dcgm_why", "no reason was given")
            reason = f"dcgmi gave no answer on {_nodes(mute)}: {why}; {_CURE_NO_ANSWER}"
            return replace(judgement, verdict=Verdict.ERROR, reason=reason, hosts=_hosts(mute))
        ran = [report for report in judgement.ranks if report.facts.get("dcgm") == "ran"]
        without = [report for report in judgement.ranks if report not in ran]
        if not ran:
            return replace(judgement, verdict=Verdict.SKIP, reason=f"DCGM is not installed on {_nodes(without)}")
        return base.passed(judgement, "; ".join(_words(self.options.level, ran, without)))


def _words(level: int, ran: Sequence[RankReport], without: Sequence[RankReport]) -> list[str]:
    """Return what a PASS proves, DCGM's warnings, and the nodes that it says nothing of."""
    versions = base.unique(report.facts.get("dcgm_version") or "an unknown version" for report in ran)
    counts = base.unique(report.facts.get("dcgm_counts", "") for report in ran)
    words = [f"level {level} of DCGM {' and '.join(versions)} on {_nodes(ran)}: {' or '.join(counts)}"]
    warned = [report for report in ran if report.facts.get("dcgm_warnings")]
    words += [f"DCGM warns on {report.host}: {report.facts['dcgm_warnings']}" for report in warned[:_MOST_NAMED]]
    return [*words, f"DCGM is not installed on {_nodes(without)}"] if without else words


def _found(report: RankReport) -> str:
    """Return the tests that failed on a node: 'node3: DCGM's test memory on GPU 2 failed: ...'."""
    tests = [f"{one.what} failed: {one.got}" for one in report.problems if one.what.startswith(_TESTS)]
    return f"{report.host}: {and_more(tests, _MOST_NAMED, '; ')}"


def _hosts(reports: Iterable[RankReport]) -> tuple[str, ...]:
    return base.unique(report.host for report in reports)


def _nodes(reports: Iterable[RankReport]) -> str:
    return folded(_hosts(reports))


CHECKS = (Registration(name="dcgm", order=75, options=DcgmOptions, first_suite="full", make=Dcgm),)
