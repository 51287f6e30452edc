"""A check on the page: bad ranks first, equal ranks grouped, and every list bounded."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Verdict

if TYPE_CHECKING:
    from clusterctl.model.results import CheckResult, Comparison, Figure, RankReport

_RANKS = 48  # bad ranks; good ranks share lines
_PROBLEMS = 12
_GROUPS = 12
_FIGURES = 80
_COMPARISONS = 120
_EVIDENCE = 60
_STACKS = 24
_STACK = 6_000  # characters


@dataclass(frozen=True)
class Group:
    """Ranks that reported the same; ``nodes`` is folded."""

    count: int
    nodes: str
    words: str


@dataclass(frozen=True)
class Shown:
    """One check, ready for the template; the ``*_left`` fields count the entries beyond the limits."""

    result: CheckResult
    command: str
    hosts: str
    left_out: tuple[tuple[str, str], ...]
    bad_ranks: tuple[RankReport, ...]
    ranks_left: int
    groups: tuple[Group, ...]
    comparisons: tuple[Comparison, ...]
    comparisons_left: int
    figures: tuple[Figure, ...]
    figures_left: int
    evidence: tuple[str, ...]
    stacks: tuple[tuple[str, str], ...]
    log: str
    nodes: str


def shown(check: CheckResult, log: str) -> Shown:
    """Return a check as the page shows it."""
    bad = [report for report in check.ranks if not report.ok or report.state != "answered"]
    compared = sorted(check.comparisons, key=lambda one: one.verdict is not Verdict.FAIL)
    figures = [figure for figure in check.figures if not figure.nodes]
    culprits = (*check.culprits, *(check.search.culprits if check.search else ()))
    named = dict.fromkeys((*check.hosts, *(host for one in culprits for host in one.nodes)))
    return Shown(
        result=check,
        command=shlex.join(check.command),
        hosts=_folded(check.hosts),
        left_out=_left_out(check),
        bad_ranks=tuple(report.model_copy(update={"problems": report.problems[:_PROBLEMS]}) for report in bad[:_RANKS]),
        ranks_left=max(0, len(bad) - _RANKS),
        groups=_groups([report for report in check.ranks if report.ok and report.state == "answered"]),
        comparisons=tuple(compared[:_COMPARISONS]),
        comparisons_left=max(0, len(compared) - _COMPARISONS),
        figures=tuple(figures[:_FIGURES]),
        figures_left=len(check.figures) - len(figures[:_FIGURES]),
        evidence=check.evidence[:_EVIDENCE],
        stacks=tuple(
            (
                f"{one.host}, "
                + (f"rank {one.rank}" if one.rank is not None else f"process {one.pid}")
                + f" ({one.tool})",
                one.text[:_STACK],
            )
            for one in check.stacks[:_STACKS]
        ),
        log=log,
        nodes=" ".join(named),
    )


def _groups(reports: list[RankReport]) -> tuple[Group, ...]:
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for report in reports:
        said = (
            ("", report.library_version),
            ("", report.library_path),
            *report.libraries.items(),
            *report.facts.items(),
        )
        alike.setdefault(said, []).append(report.host)
    groups = [
        Group(
            count=len(hosts),
            nodes=_folded(tuple(dict.fromkeys(hosts))),
            words=", ".join(f"{name} {value}".strip() for name, value in said if value),
        )
        for said, hosts in list(alike.items())[:_GROUPS]
    ]
    if len(alike) > _GROUPS:
        rest = [host for hosts in list(alike.values())[_GROUPS:] for host in hosts]
        groups.append(Group(len(rest), _folded(tuple(dict.fromkeys(rest))), "and others"))
    return tuple(groups)


def _left_out(check: CheckResult) -> tuple[tuple[str, str], ...]:
    by_reason: dict[str, list[str]] = {}
    for node, why in check.left_out.items():
        by_reason.setdefault(why, []).append(node)
    return tuple((_folded(tuple(nodes)), why) for why, nodes in by_reason.items())


@lru_cache(maxsize=64)
def _folded(hosts: tuple[str, ...]) -> str:
    return nodeset.folded(hosts)
