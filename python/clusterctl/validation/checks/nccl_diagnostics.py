"""NCCL's own diagnostics (2.31 and later) in a verdict: a fault is a FAIL that names node, rank and cause."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterctl.analysis import nccl_diagnostics
from clusterctl.analysis.nccl_path import NcclPath, carrier_faults, joined, nccl_faults, proof, silent, together
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from clusterctl.analysis.nccl_diagnostics import DiagnosticFault
    from clusterctl.model.job_outcome import JobOutcome, OutputLine
    from clusterctl.model.results import RankReport


# The way that a check's traffic took, judged by :mod:`clusterctl.analysis.nccl_path`: a wrong way is a FAIL.

PATH_QUANTITY = "path"
_MOST_PATHS = 4


def path_judged(
    judgement: base.Judgement, site: base.Site, outcome: JobOutcome, users: Collection[str] = ()
) -> base.Judgement:
    """Return a PASS as a FAIL where traffic went a wrong way, else with the way in its reason.

    ``users`` are the nodes with ranks over NCCL, () where another library carries the check.
    """
    if judgement.verdict is not Verdict.PASS or len(site.slots) < 2:  # noqa: PLR2004 - one node has no way to others
        return judgement
    paths = read(outcome.lines, site)
    found = together([*nccl_faults(site, paths), *carrier_faults(site, _of_nodes(outcome.lines, "carried", site))])
    if not found:
        quiet = silent(users, paths) if len(users) > 1 else ()
        how = proof(site, paths, folded(quiet))
        return base.passed(judgement, "; ".join((judgement.reason, *how))) if how else judgement
    words = and_more((f"{folded(one.hosts)}: {one.words}; {one.cure}" for one in found), _MOST_PATHS, ". ")
    named = ((host, one.words, one.cure) for one in found for host in one.hosts)
    return base.blamed(judgement, words, named, PATH_QUANTITY)


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


QUANTITY = "diagnostics"
ASKED, RANK = "nccl_diagnostics", "nccl_rank"  # the facts of a rank that asked for them
_MOST_NAMED = 3
_IS_RANK = re.compile(r"[0-9]{1,9}")


def judged(judgement: base.Judgement, site: base.Site, outcome: JobOutcome) -> base.Judgement:
    """Return the judgement with what the diagnostics found.

    A PASS with a fault becomes a FAIL. A FAIL that names no node takes theirs. Without a fault a PASS tells what they
    proved, and what they noted.
    """
    if judgement.verdict not in {Verdict.PASS, Verdict.FAIL}:
        return judgement
    found = nccl_diagnostics.read(line.text for line in outcome.lines)
    places = _places(site, judgement.ranks)
    faults = [(one, _hosts(one, places, site.names)) for one in found.faults]
    if faults:
        return _failed(judgement, faults, places)
    if judgement.verdict is Verdict.FAIL:
        return judgement
    words = [found.praise] if found.praise else []
    words += [f"NCCL notes: {and_more((_placed(note, places) for note in found.notes), _MOST_NAMED, '; ')}"] * bool(
        found.notes
    )
    if not found.told and any(ASKED in report.facts for report in judgement.ranks):
        words.append("NCCL's own diagnostics printed nothing")
    return base.passed(judgement, "; ".join((judgement.reason, *words))) if words else judgement


def _failed(
    judgement: base.Judgement,
    faults: Sequence[tuple[DiagnosticFault, tuple[str, ...]]],
    places: Mapping[int, RankReport],
) -> base.Judgement:
    words = (f"{_who(one, hosts, places)}: {one.words}; {one.cure}" for one, hosts in faults)
    told = and_more(words, _MOST_NAMED, ". ")
    evidence = (*judgement.evidence, *(one.line for one, _hosts_of_it in faults if one.line))
    if judgement.verdict is Verdict.FAIL:
        told = f"{judgement.reason}. {told}"
    named = ((host, one.words, one.cure) for one, hosts in faults for host in hosts)
    found = judgement if judgement.hosts else base.blamed(judgement, told, named, QUANTITY)
    return replace(found, reason=told, evidence=evidence)


def _places(site: base.Site, reports: Sequence[RankReport]) -> dict[int, RankReport]:
    """Return the report of each rank of NCCL's communicator; ranks that did not tell theirs are taken in order."""
    known = {int(one.facts[RANK]): one for one in reports if _IS_RANK.fullmatch(one.facts.get(RANK, ""))}
    whole = len(reports) == sum(site.slots.values())
    return known or ({one.rank: one for one in reports} if whole else {})


def _hosts(one: DiagnosticFault, places: Mapping[int, RankReport], names: Mapping[str, str]) -> tuple[str, ...]:
    if one.host:
        return (names.get(one.host, one.host),)
    return base.unique(places[rank].host for rank in one.ranks if rank in places)


def _who(one: DiagnosticFault, hosts: Sequence[str], places: Mapping[int, RankReport]) -> str:
    """Return node and ranks: 'node2, ranks 4 and 5 (0000:1b:00.0, 0000:43:00.0)'."""
    if not one.ranks:
        return ", ".join(hosts)
    listed = [str(places[rank].rank) if rank in places else f"{rank} of the communicator" for rank in one.ranks]
    buses = [places[rank].facts.get("gpu_place", "") for rank in one.ranks if rank in places]
    where = f" ({and_more([bus for bus in buses if bus], _MOST_NAMED)})" if any(buses) else ""
    word = "rank" if len(listed) == 1 else "ranks"
    return f"{', '.join(hosts) or 'an unknown node'}, {word} {and_more(listed, _MOST_NAMED)}{where}"


def _placed(note: str, places: Mapping[int, RankReport]) -> str:
    """Return a note with the nodes of the ranks that it lists, where these are not all nodes."""
    listed = base.unique(places[rank].host for rank in nccl_diagnostics.ranks_of(note) if rank in places)
    everywhere = {report.host for report in places.values()}
    return f"{note} ({', '.join(listed[:_MOST_NAMED])})" if listed and set(listed) != everywhere else note
