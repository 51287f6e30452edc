"""``hello``: a C program on every slot of every node, all with the same MPI library."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.model.findings import majority
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Culprit, Verdict
from clusterctl.validation.checks import base, causes, judging
from clusterctl.validation.checks.base import Registration
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.results import RankReport
    from clusterctl.validation.checks.base import Site


# Whether the libraries of MPI that ranks really map have the content that was installed, the same on all nodes.


@dataclass(frozen=True)
class Changed:
    """The nodes whose libraries have another content, and what to do."""

    reason: str
    hosts: tuple[str, ...]
    cure: str

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """A culprit for each node."""
        return tuple(Culprit(kind="node", nodes=(host,), words=self.reason, cure=self.cure) for host in self.hosts)


@dataclass(frozen=True)
class _Mapped:
    files: Mapping[str, str]  # sha256 by name
    changed: tuple[str, ...]


def changed(site: Site, lines: Iterable[OutputLine]) -> Changed | None:
    """Return the nodes that map another content than was installed, or than other nodes of their platform map.

    The manifest of the installed artifact decides. Where it tells nothing, the majority of the platform does.
    """
    mapped = _read(site, lines)
    wrong = {host: found.changed for host, found in mapped.items() if found.changed}
    if wrong:
        first, paths = next(iter(wrong.items()))
        names = ", ".join(PurePosixPath(path).name for path in paths)
        files = "file" if len(paths) == 1 else "files"
        reason = f"{names} on {folded(wrong)} is not the {files} that was installed: the content has changed"
        return Changed(reason, tuple(wrong), _repair(tuple(wrong), site.libraries.get(first, "")))
    for platform in dict.fromkeys(site.platforms.get(host, "") for host in mapped):
        alike = {host: found for host, found in mapped.items() if site.platforms.get(host, "") == platform}
        for name in dict.fromkeys(name for found in alike.values() for name in found.files):
            odd = majority({host: found.files[name] for host, found in alike.items() if found.files.get(name)})
            if odd.others:
                hosts = tuple(host for host in alike if host in odd.odd)
                usual = "than on most nodes" if odd.usual is not None else "with no majority"
                reason = f"{name} has another content on {folded(hosts)} {usual}"
                return Changed(reason, hosts, _repair(hosts, site.libraries.get(hosts[0], "")))
    return None


def _repair(hosts: tuple[str, ...], folder: str) -> str:
    place = folder or "the folder of Open MPI"
    return (
        f"On {folded(hosts)}, remove {place} and run 'clusterctl provision' again; look for errors of disk and memory."
    )


def _read(site: Site, lines: Iterable[OutputLine]) -> dict[str, _Mapped]:
    found = {}
    for event in events_of(lines, "mapped"):
        host = site.names.get(str(event.get("host", "")), str(event.get("host", "")))
        files, names = event.get("files"), event.get("changed")
        if isinstance(files, dict) and isinstance(names, list):
            digests = {str(name): str(digest) for name, digest in files.items()}
            found[host] = _Mapped(digests, tuple(str(name) for name in names))
    return found


# The words of hello.c, whose ranks add up their numbers with an allreduce.
_WRONG_SUM = re.compile(r"rank (?P<rank>\d{1,9}): the sum of 1\.\.(?P<size>\d{1,9}) came out as (?P<got>-?\d+)")
_RELEASE = re.compile(r"Open MPI v[^\s,]+")


@dataclass(frozen=True)
class Hello:
    """Every rank of a compiled program reports its host and the library it has mapped."""

    name: str = "hello"
    title: str = "every rank is up, with one MPI library"
    deadline_s: float = 60.0
    per_node: bool = False

    def absent(self, stack: NodeStack) -> str:  # noqa: ARG002 - MPI is on every node that takes part
        """Return an empty string, since every node can take part."""
        return ""

    def program(self, site: base.Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of one rank."""
        return base.rank_program(site, "mpi_checks.py", self.name, deadline_s)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge that every rank is there, with the same MPI library.

        Nodes of one platform must map the same file with the same content and the same version text. Builds for
        different platforms differ, so across platforms only the release must be the same.
        """
        judgement = judging.judge(site, _with_wrong_sums(outcome))
        answered = [report for report in judgement.ranks if report.state == "answered"]
        complete = len(answered) == len(judgement.ranks)
        mapping_change = changed(site, outcome.lines)
        if mapping_change is not None:
            failed = base.fail(judgement, f"{mapping_change.reason}; {mapping_change.cure}", mapping_change.hosts)
            return replace(failed, culprits=mapping_change.culprits)
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
