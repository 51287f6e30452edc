"""Causes of a failed launch, and the result of a check that names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.model import nodeset
from clusterctl.model.culprits import Culprit
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.model.results import CheckResult

CauseKind: TypeAlias = Literal["node", "pair", "one_way", "together"]

_MOST_NAMED = 6


@dataclass(frozen=True)
class Cause:
    """Why a job failed.

    Attributes:
        hosts: the nodes that have the fault, by inventory name; from and to for ``one_way``; empty where unknown.
        kind: as in :class:`clusterctl.model.culprits.Culprit`.
        cause: what is wrong there, without a full stop.
        cure: what to do, without a full stop.
        line: the line of output that says so, empty where a probe has seen it.
    """

    hosts: tuple[str, ...]
    cause: str
    cure: str
    kind: CauseKind = "node"
    line: str = ""

    def at(self, *hosts: str) -> Cause:
        """Return the cause with these hosts."""
        return replace(self, hosts=hosts)

    @property
    def words(self) -> str:
        """The cause with its hosts, as in "node4: /tmp is full"."""
        if not self.hosts:
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
        Culprit(kind=kind, nodes=nodes, words=reason(alike)) for (kind, nodes), alike in by_nodes.items()
    )


def explained(result: CheckResult, causes: Sequence[Cause]) -> CheckResult:
    """Return the result with these causes before its own words, and their hosts instead of its own."""
    if not causes:
        return result
    named = hosts(causes)
    seen = tuple(dict.fromkeys(cause.words for cause in causes))
    return result.model_copy(
        update={
            "reason": reason(causes, result.reason),
            "hosts": named or result.hosts,
            "culprits": (*culprits(causes), *result.culprits),
            "evidence": tuple(dict.fromkeys((*seen, *result.evidence))),
        }
    )
