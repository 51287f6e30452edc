"""Which node makes values wrong: the evidence of all wrong answers, of one check and of all checks of a run.

Who saw a wrong value need not have made it. A wrong answer tells who got it and, where each rank gave a part, whose
part it is. Two ends come into question then. The end that has wrong values with several partners is to blame. Where
each end has one partner, both are named, and a search decides. Of a sum, everyone may be to blame who gave to it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.model.results import Culprit, Verdict
from clusterctl.support.words import and_more
from clusterctl.validation.checks.base import unique
from clusterctl.validation.checks.causes import NO_ANSWER, Fault, named, wrong_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.model.results import CheckResult, RankReport, WrongAnswer

# The words of the node programs.
_SENDER = re.compile(r"\bfrom rank (\d{1,9})\b")
_DIRECT = re.compile(r"(?:object|\w+\[\d+\]|send) to rank |piece \d|\d+ (?:B|KiB|MiB) from rank ")
_OWN = re.compile(r"its own (?:send buffer|first gradient)\b")
_AT_ROOT = re.compile(r"reduce\b.* to rank ")
_NO_VALUES = {"exit code 0", "full speed", "Pass"}  # what a program or a GPU had to be
_ABOUT_RANKS = re.compile(r"number of ranks")
_GARBLED = re.compile(r"MPI_ERR_TRUNCATE|UnpicklingError")  # bytes that arrived wrong, where a length was to come

_NOT_KNOWN = "it is not known which end makes it wrong"
_SEVERAL = 2
_FEWEST = 3  # nodes; of two, a search tells nothing
_MOST_NAMED = 6
_CURE = "take it out of use, and test its memory, its processor and its network card"


@dataclass(frozen=True)
class Trace:
    """One wrong answer: the rank that got it, and the rank whose part it is, None where that is not told."""

    answer: WrongAnswer
    finder: RankReport
    source: RankReport | None

    @property
    def is_own(self) -> bool:
        """Whether nothing came from another node."""
        if self.source is None or self.answer.expected == NO_ANSWER:
            return _OWN.match(self.answer.what) is not None
        return self.source.rank == self.finder.rank or (self.is_direct and self.source.host == self.finder.host)

    @property
    def is_direct(self) -> bool:
        """Whether the values came without a rank in between, which the parts of a collective may not."""
        return self.source is not None and _DIRECT.match(self.answer.what) is not None

    @property
    def is_local(self) -> bool:
        """Whether the finder alone is likely at fault: others would have got wrong values as well."""
        seen = _AT_ROOT.match(self.answer.what) or self.answer.expected == NO_ANSWER
        return self.source is None and not seen

    @property
    def way(self) -> tuple[str, str] | None:
        """The nodes from which and to which values went; None within a node, and where it is not told."""
        if self.source is None or self.source.host == self.finder.host:
            return None
        return self.source.host, self.finder.host


@dataclass(frozen=True)
class Origin:
    """The nodes that make values wrong, and the ways (sender, receiver) of which one end does; nothing if unknown.

    ``is_sure`` tells that values without a rank in between show the nodes.
    """

    nodes: tuple[str, ...] = ()
    ways: tuple[tuple[str, str], ...] = ()
    is_sure: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that come into question."""
        return unique((*self.nodes, *(end for way in self.ways for end in way)))


def traces(ranks: Sequence[RankReport]) -> tuple[Trace, ...]:
    """Return the wrong answers among the reports of a check's ranks; a rank that died has given none."""
    by_rank = {report.rank: report for report in ranks}
    found = []
    for report in ranks:
        for answer in () if report.ok or report.state != "answered" else report.problems:
            is_garbled = answer.expected == NO_ANSWER and _GARBLED.search(answer.got)
            if (answer.expected == NO_ANSWER and not is_garbled) or answer.expected in _NO_VALUES:
                continue
            if _ABOUT_RANKS.search(answer.what):
                continue
            sender = _SENDER.search(answer.what)
            found.append(Trace(answer, report, by_rank.get(int(sender[1])) if sender else None))
    return tuple(found)


def origin(checks: Iterable[Sequence[Trace]], everyone: Collection[str]) -> Origin:
    """Return who makes values wrong."""
    checks = [of_one for of_one in checks if of_one]
    every = [trace for of_one in checks for trace in of_one]
    own = unique(trace.finder.host for trace in every if trace.is_own)
    if own and not set(own) >= set(everyone):
        return Origin(own, is_sure=True)
    direct = unique_ways(trace for trace in every if trace.is_direct)
    all_ways = unique_ways(every)
    nodes, left = _with_several(direct)
    if nodes:
        return Origin(nodes, left, is_sure=True) if len(nodes) * 2 <= len(everyone) else Origin()
    top = _top(all_ways, {end for way in direct for end in way})
    if top:
        return Origin((top,), tuple(way for way in direct if top not in way))
    if direct or len(all_ways) == 1:
        return Origin((), _apart(direct or all_ways))
    if all_ways:
        return Origin()
    return Origin(unique(name for of_one in checks for name in _finders(of_one, everyone)))


def unique_ways(found: Iterable[Trace]) -> tuple[tuple[str, str], ...]:
    """Return the ways of wrong values between nodes, each once."""
    return tuple(dict.fromkeys(trace.way for trace in found if trace.way is not None))


def _partners(ways: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for source, target in ways:
        found[source].add(target)
        found[target].add(source)
    return found


def _with_several(ways: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the nodes that have wrong values with several partners, worst first, and the ways that they leave open."""
    nodes: list[str] = []
    while True:
        partners = _partners(ways)
        best = max(partners, key=lambda name: len(partners[name]), default="")
        if len(partners[best]) < _SEVERAL:
            return tuple(nodes), _apart(ways)
        rivals = [name for name in partners[best] if len(partners[name]) == len(partners[best])]
        if any(len(partners[name] - {best}) < _SEVERAL for name in rivals):
            return tuple(nodes), _apart(ways)  # either of them explains as much
        nodes.append(best)
        ways = tuple(way for way in ways if best not in way)


def _top(ways: tuple[tuple[str, str], ...], among: Collection[str]) -> str:
    """Return the node that has more partners than any other, '' without one; ``among`` limits it where it is given."""
    partners = _partners(ways)
    ranked = sorted(((len(its), name) for name, its in partners.items() if not among or name in among), reverse=True)
    if not ranked or ranked[0][0] < _SEVERAL or (len(ranked) > 1 and ranked[1][0] == ranked[0][0]):
        return ""
    return ranked[0][1]


def _apart(ways: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the ways whose ends have no other partner."""
    partners = _partners(ways)
    return tuple(way for way in ways if all(len(partners[end]) < _SEVERAL for end in way))


def _finders(found: Sequence[Trace], everyone: Collection[str]) -> tuple[str, ...]:
    """Return the nodes that got wrong values of which it is not known whose they are.

    Where most nodes got some, nobody is known. To the sums of a root everyone gives, so a root is named only where it
    alone got wrong sums, several times.
    """
    local = unique(trace.finder.host for trace in found if trace.is_local or (trace.source and not trace.way))
    if local:
        return local if len(set(everyone)) == 1 or len(local) * 2 <= len(set(everyone)) else ()
    roots = unique(trace.finder.host for trace in found if _AT_ROOT.match(trace.answer.what))
    return roots if len(roots) == 1 and len(found) >= _SEVERAL else ()


# --- One check --------------------------------------------------------------------------------------------------------


def fault(found: Sequence[Trace], wrong: Sequence[RankReport], ranks: Sequence[RankReport]) -> Fault:
    """Return what is wrong in words, and the nodes that come into question."""
    one = origin([found], {report.host for report in ranks})
    own = unique_reports(trace.finder for trace in found if trace.is_own and trace.finder.host in one.nodes)
    told = [words for name in one.nodes if (words := _words(name, found))]
    told += [_way_words(way, found) for way in one.ways]
    return "; ".join((*told, wrong_words(own or wrong))), one.hosts


def unique_reports(reports: Iterable[RankReport]) -> tuple[RankReport, ...]:
    """Return each rank's report once."""
    return tuple({report.rank: report for report in reports}.values())


def _words(name: str, found: Sequence[Trace]) -> str:
    """Return what a node does, '' where its own answers say it."""
    sent = [(trace.source, trace) for trace in found if trace.source and trace.way and trace.source.host == name]
    got = [(trace.source, trace) for trace in found if trace.source and trace.way and trace.finder.host == name]
    if len(sent) >= len(got) and sent:
        senders = named(unique_reports(source for source, _ in sent))
        return f"{senders} {_verb(sent)} wrong values to {named(unique_reports(trace.finder for _, trace in sent))}"
    if got:
        finders = named(unique_reports(trace.finder for _, trace in got))
        senders = named(unique_reports(source for source, _ in got))
        return f"{finders} gets wrong values from {senders}"
    return ""


def _verb(sent: Sequence[tuple[RankReport, Trace]]) -> str:
    return "sends" if len({source.rank for source, _ in sent}) == 1 else "send"


def _way_words(way: tuple[str, str], found: Sequence[Trace]) -> str:
    its = [trace for trace in found if trace.way == way and trace.source]
    senders = named(unique_reports(trace.source for trace in its if trace.source))
    finders = named(unique_reports(trace.finder for trace in its))
    return f"what {senders} sent arrived wrong at {finders}, and {_NOT_KNOWN}"


# --- All checks of a run ----------------------------------------------------------------------------------------------


def undecided(results: Iterable[CheckResult]) -> CheckResult | None:
    """Return the quickest of the checks with wrong values, where all of them together tell no node; else None."""
    found = [one for one in results if one.verdict is Verdict.FAIL and traces(one.ranks)]
    if any(culprit.kind == "node" for one in found for culprit in one.culprits):
        return None
    several = (one for one in found if one.search is None and len({rank.host for rank in one.ranks}) >= _FEWEST)
    return min(several, key=lambda one: one.seconds, default=None)


def _own(result: CheckResult, found: Sequence[Trace]) -> Origin:
    return origin([found], {report.host for report in result.ranks})


def joined(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results, of which those with wrong values name whom the evidence of all of them names.

    A result that was judged by something else than its wrong values stays as it is.
    """
    found = {result.check: its for result in results if result.is_bad and (its := traces(result.ranks))}
    everyone = {report.host for result in results for report in result.ranks}
    searched = unique(name for result in results if result.check in found for name in _searched(result))
    whole = Origin(searched, is_sure=True) if searched else origin(found.values(), everyone)
    own = {result.check: _own(result, found[result.check]) for result in results if result.check in found}
    shown = {
        name: [one.check for one in results if one.check in own and name in (*own[one.check].hosts, *_searched(one))]
        for name in whole.nodes
    }
    return tuple(
        _told(result, found[result.check], own[result.check], whole, shown) if result.check in found else result
        for result in results
    )


def _searched(result: CheckResult) -> tuple[str, ...]:
    """Return the nodes that a search blamed for themselves."""
    culprits = result.search.culprits if result.search else ()
    return unique(name for one in culprits if one.kind == "node" for name in one.nodes)


def _told(
    result: CheckResult, found: Sequence[Trace], own: Origin, whole: Origin, shown: Mapping[str, Sequence[str]]
) -> CheckResult:
    if result.culprits or result.verdict is not Verdict.FAIL or set(own.hosts) != set(result.hosts):
        return result
    mine = tuple(name for name in whole.nodes if _fits(name, found, result))
    if own.nodes and (own.is_sure or all(trace.is_local for trace in found)):
        mine = own.nodes
    if not mine or set(mine) == set(own.hosts):
        return result.model_copy(update={"culprits": _culprits(result, own, found, shown)})
    culprits = _culprits(result, Origin(mine), found, shown)
    told = "; ".join(one.words for one in culprits)
    reason = f"{told}; {result.reason.rpartition(f'{_NOT_KNOWN}; ')[2]}"
    return result.model_copy(update={"culprits": culprits, "hosts": mine, "reason": reason})


def _fits(name: str, found: Sequence[Trace], result: CheckResult) -> bool:
    """Whether a node can be the origin of a check's wrong values: it took part, and is an end of each direct way."""
    direct = unique_ways(trace for trace in found if trace.is_direct)
    return any(report.host == name for report in result.ranks) and (not direct or any(name in way for way in direct))


def _culprits(
    result: CheckResult, one: Origin, found: Sequence[Trace], shown: Mapping[str, Sequence[str]]
) -> tuple[Culprit, ...]:
    nodes = (
        Culprit(kind="node", nodes=(name,), words=_node_words(name, found, shown.get(name, ())), cure=_CURE)
        for name in one.nodes
    )
    ways = {frozenset(way): way for way in one.ways}  # both directions of a pair are one
    pairs = (
        Culprit(
            kind="pair" if way[::-1] in one.ways else "one_way",
            nodes=way,
            words=_way_words(way, found),
            cure=_next(result, way),
        )
        for way in ways.values()
    )
    return (*nodes, *pairs)


def _node_words(name: str, found: Sequence[Trace], checks: Sequence[str]) -> str:
    words = _words(name, found)
    if words:
        return words
    if checks:
        which = and_more([f"'{check}'" for check in checks], _MOST_NAMED)
        return f"{name} makes values wrong, as {which} show{'s' if len(checks) == 1 else ''}"
    wrong = unique_reports(trace.finder for trace in found if trace.finder.host == name)
    return wrong_words(wrong) if wrong else f"{name} makes values wrong"


def _next(result: CheckResult, way: tuple[str, str]) -> str:
    """Return what decides between the ends of a way."""
    again = result.repeat or "'clusterctl validate'"
    others = sorted({report.host for report in result.ranks} - set(way))
    if not others:
        return f"run it on {folded(way)} together with a third node; whichever end is wrong with it is to blame"
    if result.search is not None:
        return "test the path between both: cables, switch ports, offloads; each does well with others"
    return f"have it launched on groups of nodes, which tells the end or the path between: {again} --search"
