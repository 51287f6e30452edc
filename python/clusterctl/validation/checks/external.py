"""The user's own checks: a program on one node, on each node or as ranks of a job, and the figure that it prints."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.model.units import value_words
from clusterctl.validation.checks import base, judging, parsers, rank_output
from clusterctl.validation.checks.parsers import UnreadableError, WrongAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure
    from clusterctl.suite import ExternalCheck

_PARSERS: Mapping[str, Callable[[str], tuple[Figure, ...]]] = {
    "nccl-tests": parsers.parse_nccl_tests,
    "osu": parsers.parse_osu,
    "imb": parsers.parse_imb,
}
_LAST_LINES = 20
_MOST_WORDS = 200


@dataclass(frozen=True)
class External(base.Check):
    """A program of the user; its exit code is the answer, and its output may hold figures."""

    check: ExternalCheck
    name: str
    title: str
    deadline_s: float
    per_node: bool
    file = "external_check.py"
    word = "external"

    @classmethod
    def of(cls, check: ExternalCheck) -> External:
        title = check.title or " ".join(check.command)
        return cls(check, check.name, title, check.deadline_s, per_node=check.where != "mpi")

    def ranks_on(self, site: base.Site) -> Mapping[str, int]:
        """Return how many ranks each node takes."""
        return dict.fromkeys(site.slots, self.check.ranks_per_node) if self.check.ranks_per_node else site.slots

    def arguments(self, site: base.Site) -> tuple[str, ...]:  # noqa: ARG002 - all ranks are told the same
        """Return the user's command, and where it runs."""
        how = {"launch_node": ("--first",), "mpi": ("--together",)}.get(self.check.where, ())
        return ("--argv", json.dumps(self.check.command), *how)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the exit codes; if all are 0, read the figures."""
        site = base.one_a_node(site) if self.per_node else site
        output = rank_output.read(outcome.lines, site.placement, site.names)
        judgement = judging.judge(site, outcome, with_mpi=False)
        if judgement.verdict is not Verdict.PASS:
            return self._with_last_words(judgement, output)
        try:
            figures = self._figures(output)
        except WrongAnswerError as error:
            return replace(judgement, verdict=Verdict.FAIL, reason=str(error), evidence=_tail(output.printed.values()))
        except UnreadableError as error:
            return replace(judgement, verdict=Verdict.ERROR, reason=str(error), evidence=_tail(output.printed.values()))
        where = folded(tuple(site.slots) if self.check.where != "launch_node" else tuple(site.slots)[:1])
        words = f"exit code 0 on {where}"
        if len(figures) == 1 or (figures and self.check.where == "each_node"):
            told = (value_words(one.value, one.unit) + (f" on {one.nodes[0]}" if one.nodes else "") for one in figures)
            words = f"{', '.join(told)}"[:_MOST_WORDS]
        elif figures:
            words += f", {len(figures)} figures"
        return replace(base.passed(judgement, words), figures=figures)

    def _figures(self, output: rank_output.Output) -> tuple[Figure, ...]:
        """Return what was printed as figures."""
        if not (self.check.parser or self.check.regex or self.check.json_path):
            return ()
        if self.check.where != "each_node":
            text = output.printed.get(0) or "".join(output.printed.values())
            return self._read(text, ())
        found: list[Figure] = []
        for report in output.ranks:
            try:
                found += self._read(output.printed.get(report.rank, ""), (report.host,))
            except UnreadableError as error:
                raise type(error)(f"{report.host}: {error}") from None
        return tuple(found)

    def _read(self, text: str, nodes: tuple[str, ...]) -> tuple[Figure, ...]:
        if self.check.parser is None:
            return (parsers.own_figure(self.check, text, nodes),)
        return tuple(one.model_copy(update={"nodes": nodes}) for one in _PARSERS[self.check.parser](text))

    def _with_last_words(self, judgement: base.Judgement, output: rank_output.Output) -> base.Judgement:
        """Say how the program ended and what it printed last."""
        bad = [report for report in judgement.ranks if report.problems]
        said = _tail(output.printed.get(report.rank, "") for report in bad)
        if not bad:
            return judgement
        hosts = base.unique(report.host for report in bad)
        reason = f"{self.check.command[0]}: {bad[0].problems[0].got} on {folded(hosts)}"
        if said:
            reason += f": {said[-1][:_MOST_WORDS]}"
        return replace(judgement, reason=reason, hosts=hosts, evidence=(*said, *judgement.evidence))


def _tail(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the last lines of each text."""
    lines: list[str] = []
    for text in texts:
        lines += [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    return tuple(lines)
