"""Causes of a failed launch, and the result of a check that names them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.model import nodeset
from clusterctl.model.results import Culprit
from clusterctl.support.words import and_more
from clusterctl.validation.checks.base import unique
from clusterctl.validation.checks.rank_output import CPUS, LOAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from clusterctl.model.findings import Finding
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import CheckResult, RankReport
    from clusterctl.validation.checks.base import Site

CauseKind: TypeAlias = Literal["node", "pair", "one_way", "together"]

NO_ANSWER = "an answer"  # rank_program.py expects this of a rank that died or raised an exception

_FILE_SYSTEMS = {"temporary files", "shared memory", "disk"}
_SOME_FILES = "files"
_LOGINS = "ssh"
_SUBJECTS = {"host_key": _LOGINS}  # of doctor's findings that have another name here
_MOST_NAMED = 6
_MOST_SLOWDOWN = 4.0


@dataclass(frozen=True)
class Cause:
    """Why a job failed."""

    # the nodes that have the fault, by inventory name; from and to for ``one_way``; empty where unknown
    hosts: tuple[str, ...]
    cause: str  # what is wrong there, without a full stop
    cure: str  # what to do, without a full stop
    kind: CauseKind = "node"  # as in :class:`clusterctl.model.results.Culprit`
    line: str = ""  # the line of output that says so, empty where a probe has seen it
    # whether it often follows from another fault, so that a look at the nodes may tell more
    is_consequence: bool = False
    # what it is about, as the ``check`` of doctor's findings ("temporary files", "ssh"); "files" where the file system
    # is unknown, empty where no finding says the same
    subject: str = ""

    def at(self, *hosts: str) -> Cause:
        return replace(self, hosts=hosts)

    @property
    def words(self) -> str:
        """The cause with its hosts, as in "node4: /tmp is full"."""
        if not self.hosts or (self.kind != "node" and all(host in self.cause for host in self.hosts)):
            return self.cause
        where = " to ".join(self.hosts) if self.kind == "one_way" else nodeset.folded(self.hosts)
        return f"{'from ' if self.kind == 'one_way' else ''}{where}: {self.cause}"


def hosts(causes: Iterable[Cause]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for cause in causes for host in cause.hosts))


def reason(causes: Sequence[Cause], then: str = "") -> str:
    """Return the causes, then the words that follow from them, then the cures."""
    told = and_more(dict.fromkeys(cause.words for cause in causes), _MOST_NAMED, "; ")
    cures = dict.fromkeys(cause.cure for cause in causes)
    return "; ".join(part for part in (told, then, *cures) if part)


def culprits(causes: Iterable[Cause]) -> tuple[Culprit, ...]:
    """Return one culprit for each node, pair or set of nodes, with all its causes in words."""
    by_nodes: dict[tuple[CauseKind, tuple[str, ...]], list[Cause]] = {}
    for cause in causes:
        if cause.kind == "node":
            for host in cause.hosts:
                by_nodes.setdefault(("node", (host,)), []).append(cause.at(host))
        elif cause.hosts:
            by_nodes.setdefault((cause.kind, cause.hosts), []).append(cause)
    return tuple(
        Culprit(
            kind=kind,
            nodes=nodes,
            words=and_more(dict.fromkeys(cause.words for cause in alike), _MOST_NAMED, "; "),
            cure="; ".join(dict.fromkeys(cause.cure for cause in alike)),
        )
        for (kind, nodes), alike in by_nodes.items()
    )


def explained(result: CheckResult, causes: Sequence[Cause], told: Sequence[Cause] = ()) -> CheckResult:
    """Return the result with these causes before its own words, and their hosts instead of its own.

    ``told`` are the causes that the launcher gave, which are in the result. Those that say the same as a cause that was
    found are left out.
    """
    if not causes:
        return result
    said = tuple(one for one in told if any(_says_the_same(one, cause) for cause in causes))
    kept = tuple(one for one in told if one not in said and (one.kind, one.hosts) in _blamed(result))
    own = culprits((*causes, *kept))
    known = {(one.kind, one.nodes) for one in (*own, *culprits(told))}
    cures = {one.cure for one in said if one.cure not in {cause.cure for cause in kept}}
    seen = tuple(dict.fromkeys(cause.words for cause in causes))
    rest = _without(result.reason, [one.words for one in said], [*cures, *(cause.cure for cause in causes)])
    return result.model_copy(
        update={
            "reason": reason(causes, rest),
            "hosts": hosts(causes) or result.hosts,
            "culprits": (*own, *(one for one in result.culprits if (one.kind, one.nodes) not in known)),
            "evidence": tuple(dict.fromkeys((*seen, *result.evidence))),
        }
    )


def _blamed(result: CheckResult) -> set[tuple[str, tuple[str, ...]]]:
    return {(one.kind, one.nodes) for one in result.culprits}


def by_logins(told: Iterable[Cause], missed: Collection[str]) -> tuple[Cause, ...]:
    """Return the launcher's causes; that a node's daemon is lost says the same as a failed login to that node.

    ``missed`` are the nodes to which a login failed.
    """
    return tuple(
        replace(one, subject=_LOGINS) if one.is_consequence and one.hosts and set(one.hosts) <= set(missed) else one
        for one in told
    )


def _says_the_same(told: Cause, found: Cause) -> bool:
    """Whether the launcher's cause says what a look found: about the same node, or about an unknown one.

    A look tries the launcher's logins to all nodes. So what it found of them stands for all that the launcher says.
    """
    if told.subject == found.subject == _LOGINS:
        return True
    if told.hosts and not set(told.hosts) & set(found.hosts):
        return False
    if told.is_consequence:
        return bool(told.hosts)
    alike = found.subject in _FILE_SYSTEMS if told.subject == _SOME_FILES else told.subject == found.subject
    return bool(told.subject) and alike


def _without(text: str, told: Iterable[str], cures: Iterable[str]) -> str:
    """Return a reason (see :func:`reason`) without these causes and cures."""
    framed = f"; {text}; "
    for part in (*told, *cures):
        framed = framed.replace(f"; {part}; ", "; ")
    for part in told:  # a cause without a node stands after the words that it explains
        framed = framed.replace(f": {part}; ", "; ")
    return framed.removeprefix("; ").removesuffix("; ")


def of_findings(found: Iterable[Finding], failed: Iterable[tuple[str, str]] = ()) -> tuple[Cause, ...]:
    """Return the errors among findings as causes; ``failed`` are connections that failed, from source to target."""
    ways = set(failed)
    return tuple(
        Cause(one.hosts, one.cause, one.cure, kind_of(one.hosts, ways), subject=_SUBJECTS.get(one.check, one.check))
        for one in found
        if one.severity == "error"
    )


def kind_of(hosts: Sequence[str], failed: Collection[tuple[str, str]]) -> CauseKind:
    """Return what a finding about these hosts blames; ``failed`` are connections, from source to target."""
    if len(hosts) != 2:  # noqa: PLR2004 - a pair
        return "node" if len(hosts) == 1 or not failed else "together"
    source, target = hosts
    return "one_way" if (source, target) in failed and (target, source) not in failed else "pair"


def broke(result: CheckResult, outcome: JobOutcome) -> bool:
    """Whether the job hung or crashed, and did not end with a wrong answer."""
    if outcome.ending != "exited":
        return outcome.ending == "deadline"
    wrong = [problem for rank in result.ranks for problem in rank.problems if problem.expected != NO_ANSWER]
    return outcome.rc != 0 and not wrong


def came_up(result: CheckResult) -> bool:
    return any(rank.state != "absent" for rank in result.ranks)


def slowdown(result: CheckResult) -> float:
    """Return by how much the machines of the ranks are slowed by other work, from their signs of life: 1 to 4."""
    loads = [
        rank.figures[LOAD] / max(1.0, rank.figures.get(CPUS, 1.0)) for rank in result.ranks if LOAD in rank.figures
    ]
    return min(_MOST_SLOWDOWN, max(1.0, *loads)) if loads else 1.0


def is_open(result: CheckResult, outcome: JobOutcome) -> bool:
    """Whether a look at the nodes can tell more about a result: its job broke, and its nodes still answer ssh."""
    if not result.is_bad or result.next_step or any(sweep.problem for sweep in outcome.sweeps):
        return False
    lost = not came_up(result) or all(rank.state != "answered" for rank in result.ranks)
    return broke(result, outcome) or (outcome.ending == "exited" and lost)  # PRRTE ends with 0 where it lost a daemon


def is_certain(result: CheckResult, outcome: JobOutcome) -> bool:
    """Whether the result names nodes by more than what followed from the fault of another.

    The launcher gave the cause, or its ranks alone fell silent before the deadline.
    """
    return bool(result.culprits) or (len(result.hosts) == 1 and outcome.ending == "deadline")


# Naming the ranks and hosts that are to blame for a verdict.

Fault: TypeAlias = "tuple[str, tuple[str, ...]]"  # what is wrong in words, and the hosts that are to blame

_MOST_BLAMED = 8
# What gloo, NCCL and PyTorch's store say on a rank whose peer has ended.
_LOST_PEER = re.compile(
    r"closed by (?:remote )?peer|reset by peer|Broken pipe|remote process exited|Socket closed"
    r"|failed to recv, got 0 bytes|Connection was likely closed",
    re.IGNORECASE,
)


def misplaced(site: Site, reports: Sequence[RankReport]) -> Fault | None:
    """Find nodes whose number of ranks differs from their slots; the hostfile gives every slot one rank."""
    seen = Counter(report.host for report in reports)
    odd = [node for node in unique((*site.slots, *seen)) if seen[node] != site.slots.get(node, 0)]
    if not odd:
        return None
    words = ", ".join(f"{node} has {seen[node]} of {site.slots.get(node, 0)}" for node in odd)
    return f"ranks are not where the hostfile puts them: {words}", tuple(odd)


def carried_by(reports: Sequence[RankReport], expected: str) -> Fault | None:
    """Find ranks whose answers another backend carried, by their fact ``backend``."""
    other = [report for report in reports if report.facts.get("backend") != expected]
    if not other:
        return None
    found = other[0].facts.get("backend") or "an unnamed backend"
    verb = "was" if len(other) == 1 else "were"
    return f"{named(other)} {verb} carried by {found} and not by {expected}", unique(report.host for report in other)


def lost_a_peer(report: RankReport) -> bool:
    """Whether all that a rank has against it is that it lost another rank."""
    return not report.ok and all(
        problem.expected == NO_ANSWER and _LOST_PEER.search(problem.got) is not None for problem in report.problems
    )


def named(reports: Sequence[RankReport]) -> str:
    """Return ``rank 3 on node2, ranks 4 and 5 on node3``, for a readable number of nodes."""
    by_host: dict[str, list[str]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(str(report.rank))
    words = [
        f"rank {numbers[0]} on {host}" if len(numbers) == 1 else f"ranks {_numbers(numbers)} on {host}"
        for host, numbers in list(by_host.items())[:_MOST_BLAMED]
    ]
    more = len(by_host) - len(words)
    return ", ".join(words) + (f" and those on {more} more nodes" if more else "")


def _numbers(numbers: Sequence[str]) -> str:
    if len(numbers) > _MOST_BLAMED:
        return and_more(numbers, _MOST_BLAMED)
    return ", ".join(numbers[:-1]) + f" and {numbers[-1]}"


def wrong_words(wrong: Sequence[RankReport]) -> str:
    """Return the first wrong answer of the first of these ranks, and the numbers of the other ranks."""
    first = wrong[0]
    where = f"rank {first.rank} on {first.host}"
    if first.problems:
        answer = first.problems[0]
        words = f"{where}: {answer.what}: expected {answer.expected}, got {answer.got}"
    else:
        words = f"{where} compared {first.compared} values"
    others = [f"{report.rank}" for report in wrong[1:]]
    if others:
        words += f"; wrong answers also at rank{'s' if len(others) > 1 else ''} {and_more(others, _MOST_BLAMED)}"
    return words
