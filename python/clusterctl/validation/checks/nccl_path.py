"""The way that a check's traffic took, judged by :mod:`clusterctl.analysis.nccl_path`: a wrong way is a FAIL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterctl.analysis.nccl_path import (
    NcclPath,
    carrier_faults,
    joined,
    nccl_faults,
    proof,
    silent,
    together,
)
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Culprit, Verdict
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from clusterctl.model.job_outcome import JobOutcome, OutputLine

QUANTITY = "path"
_MOST_NAMED = 4


def judged(
    judgement: base.Judgement, site: base.Site, outcome: JobOutcome, users: Collection[str] = ()
) -> base.Judgement:
    """Return a PASS as a FAIL where traffic went a wrong way, else with the way in its reason.

    Args:
        judgement: over the answers.
        site: where it ran.
        outcome: all its output.
        users: the nodes with ranks over NCCL, () where another library carries the check.
    """
    if judgement.verdict is not Verdict.PASS or len(site.slots) < 2:  # noqa: PLR2004 - one node has no way to others
        return judgement
    paths = read(outcome.lines, site)
    found = together([*nccl_faults(site, paths), *carrier_faults(site, _of_nodes(outcome.lines, "carried", site))])
    if not found:
        quiet = silent(users, paths) if len(users) > 1 else ()
        how = proof(site, paths, folded(quiet))
        return base.passed(judgement, "; ".join((judgement.reason, *how))) if how else judgement
    words = and_more((f"{folded(one.hosts)}: {one.words}; {one.cure}" for one in found), _MOST_NAMED, ". ")
    failed = base.fail(judgement, words, (host for one in found for host in one.hosts))
    culprits = tuple(
        Culprit(kind="node", nodes=(host,), quantity=QUANTITY, words=one.words, cure=one.cure)
        for one in found
        for host in one.hosts
    )
    return replace(failed, culprits=culprits)


def read(lines: Iterable[OutputLine], site: base.Site) -> dict[str, NcclPath]:
    """Return what NCCL's log says by node, of the ranks that told it; a malformed line is passed over."""
    told: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for host, event in _of_nodes(lines, "nccl_path", site):
        told[host].append(event)
    return {host: joined(told[host]) for host in site.slots if host in told}


def _of_nodes(lines: Iterable[OutputLine], kind: str, site: base.Site) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the events of one kind with the inventory's name of their node, of nodes that take part."""
    for event in events_of(lines, kind):
        host = site.names.get(str(event.get("host")), str(event.get("host")))
        if host in site.slots:
            yield host, event
