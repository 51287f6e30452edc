"""Causes of a failed launch, and the result of a check that names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.model import nodeset
from clusterctl.model.culprits import Culprit
from clusterctl.support.words import and_more
from clusterctl.validation.checks.rank_output import CPUS, LOAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from clusterctl.model.findings import Finding
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import CheckResult

CauseKind: TypeAlias = Literal["node", "pair", "one_way", "together"]

NO_ANSWER = "an answer"  # rank_program.py expects this of a rank that died or raised an exception

_MOST_NAMED = 6
_MOST_SLOWDOWN = 4.0


@dataclass(frozen=True)
class Cause:
    """Why a job failed.

    Attributes:
        hosts: the nodes that have the fault, by inventory name; from and to for ``one_way``; empty where unknown.
        kind: as in :class:`clusterctl.model.culprits.Culprit`.
        cause: what is wrong there, without a full stop.
        cure: what to do, without a full stop.
        line: the line of output that says so, empty where a probe has seen it.
        is_consequence: whether it often follows from another fault, so that a look at the nodes may tell more.
    """

    hosts: tuple[str, ...]
    cause: str
    cure: str
    kind: CauseKind = "node"
    line: str = ""
    is_consequence: bool = False

    def at(self, *hosts: str) -> Cause:
        """Return the cause with these hosts."""
        return replace(self, hosts=hosts)

    @property
    def words(self) -> str:
        """The cause with its hosts, as in "node4: /tmp is full"."""
        if not self.hosts or (self.kind != "node" and all(host in self.cause for host in self.hosts)):
            return self.cause
        where = " to ".join(self.hosts) if self.kind == "one_way" else nodeset.folded(self.hosts)
        return f"{'from ' if self.kind == 'one_way' else ''}{where}: {self.cause}"


def hosts(causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return every host that has a cause, once."""
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


def explained(result: CheckResult, causes: Sequence[Cause]) -> CheckResult:
    """Return the result with these causes before its own words, and their hosts instead of its own."""
    if not causes:
        return result
    named = hosts(causes)
    own = culprits(causes)
    others = [one for one in result.culprits if (one.kind, one.nodes) not in {(two.kind, two.nodes) for two in own}]
    seen = tuple(dict.fromkeys(cause.words for cause in causes))
    return result.model_copy(
        update={
            "reason": reason(causes, result.reason),
            "hosts": named or result.hosts,
            "culprits": (*own, *others),
            "evidence": tuple(dict.fromkeys((*seen, *result.evidence))),
        }
    )


def of_findings(found: Iterable[Finding], failed: Iterable[tuple[str, str]] = ()) -> tuple[Cause, ...]:
    """Return the errors among findings as causes; ``failed`` are connections that failed, from source to target."""
    ways = set(failed)
    return tuple(
        Cause(one.hosts, one.cause, one.cure, kind_of(one.hosts, ways)) for one in found if one.severity == "error"
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
    """Whether a rank of the job came up."""
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
