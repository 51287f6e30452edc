"""``hello``: a C program on every slot of every node, all with the same MPI library."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.model.findings import majority
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, causes, judging
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport


# The words of hello.c, whose ranks add up their numbers with an allreduce.
_WRONG_SUM = re.compile(r"rank (?P<rank>\d{1,9}): the sum of 1\.\.(?P<size>\d{1,9}) came out as (?P<got>-?\d+)")
_RELEASE = re.compile(r"Open MPI v[^\s,]+")


@dataclass(frozen=True)
class Hello(base.Check):
    """Every rank of a compiled program reports its host and the library it has mapped."""

    name: str = "hello"
    title: str = "every rank is up, with one MPI library"
    deadline_s: float = 60.0
    file = "mpi_checks.py"

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge that every rank is there, with the same MPI library.

        Nodes of one platform must map the same file with the same content and the same version text. Builds for
        different platforms differ, so across platforms only the release must be the same.
        """
        judgement = judging.judge(site, _with_wrong_sums(outcome))
        answered = [report for report in judgement.ranks if report.state == "answered"]
        complete = len(answered) == len(judgement.ranks)
        if judging.changed(site, outcome.lines) is not None:
            return judgement
        loaded = [report for report in answered if report.ok or report.library_version]  # others died before that
        skew = _skew(site, loaded) if loaded and complete else None
        if skew is not None:
            return base.fail(judgement, *skew)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        elsewhere = causes.misplaced(site, answered)
        if elsewhere is not None:
            return base.fail(judgement, *elsewhere)
        release = _release(answered[0])
        return base.passed(judgement, f"{judgement.reason}, all {release}")


def _with_wrong_sums(outcome: JobOutcome) -> JobOutcome:
    """Return the outcome with wrong sums as results of their ranks; the C program prints its result before the sum."""
    found = []
    for line in outcome.lines:
        for match in _WRONG_SUM.finditer(line.text):
            size = int(match["size"])
            problem = {
                "what": f"allreduce sum of the numbers 1 to {size}",
                "expected": str(size * (size + 1) // 2),
                "got": match["got"],
            }
            head = {"clusterctl": 1, "event": "result", "check": "hello", "rank": int(match["rank"])}
            result = {**head, "ok": False, "compared": 1, "wrong": 1, "problems": [problem]}
            found.append(replace(line, text=json.dumps(result)))
    return replace(outcome, lines=(*outcome.lines, *found)) if found else outcome


def _skew(site: base.Site, reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find nodes whose MPI library differs from the others'."""
    found = _odd_ones(reports, _release, "releases")
    if found is not None:
        return found
    platforms = {site.platforms.get(report.host, "") for report in reports}
    for platform in sorted(platforms):
        alike = [report for report in reports if site.platforms.get(report.host, "") == platform]
        found = _odd_ones(alike, lambda report: report.library_version, "builds") or _odd_ones(
            alike, lambda report: report.library_path, "library files"
        )
        if found is not None:
            return found
    return None


def _odd_ones(
    reports: Sequence[RankReport], key: Callable[[RankReport], str], what: str
) -> tuple[str, tuple[str, ...]] | None:
    """Name the hosts that differ from the majority; without a majority, all of them."""
    found = majority(dict(enumerate(key(report) for report in reports)))
    if not found.others:
        return None
    words = "; ".join(
        f"{', '.join(base.unique(reports[number].host for number in numbers))}: {value or 'none'}"
        for value, numbers in found.others.items()
    )
    rest = "" if found.usual is None else f"; all others: {found.usual or 'none'}"
    return f"different {what} of MPI: {words}{rest}", base.unique(reports[number].host for number in sorted(found.odd))


def _release(report: RankReport) -> str:
    match = _RELEASE.match(report.library_version)
    return match.group(0) if match else report.library_version or "an unnamed library"


CHECKS = (Registration(name="hello", order=10, first_suite="smoke", make=lambda _options: Hello()),)
