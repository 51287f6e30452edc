"""Naming the ranks and hosts that are to blame for a verdict."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from clusterctl.model.results import Verdict
from clusterctl.support.words import and_more
from clusterctl.validation.checks.base import Judgement, fail, unique
from clusterctl.validation.checks.causes import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.model.results import RankReport
    from clusterctl.validation.checks.base import Site

Fault: TypeAlias = "tuple[str, tuple[str, ...]]"  # what is wrong in words, and the hosts that are to blame

_OWN_GRADIENT = "its own first gradient"  # the words of rank_program.py
_SENDER = re.compile(r"\bfrom rank (\d{1,9})\b")  # the words of mpi_checks.py
_MOST_NAMED = 8
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


def own_gradient(judgement: Judgement) -> Judgement:
    """Blame the ranks whose own gradient is wrong; averages spread their mistake to all ranks."""
    return at_source(judgement, lambda what: what == _OWN_GRADIENT)


def at_source(judgement: Judgement, is_source: Callable[[str], bool]) -> Judgement:
    """Blame only the ranks where a wrong answer begins.

    Args:
        judgement: over all ranks.
        is_source: whether a wrong answer of that name shows that the rank itself is wrong.
    """
    own = [report for report in judgement.ranks if any(is_source(wrong.what) for wrong in report.problems)]
    if judgement.verdict is not Verdict.FAIL or not own or len(own) == len(judgement.ranks):
        return judgement
    return fail(judgement, wrong_words(own), [report.host for report in own])


def lost_a_peer(report: RankReport) -> bool:
    """Whether all that a rank has against it is that it lost another rank."""
    return not report.ok and all(
        problem.expected == NO_ANSWER and _LOST_PEER.search(problem.got) is not None for problem in report.problems
    )


def one_sender(wrong: Sequence[RankReport], ranks: Sequence[RankReport]) -> RankReport | None:
    """Return the rank that sent every wrong value, where ranks on several nodes got wrong values from it alone.

    Of a value that a single node got wrong, it is not known which end made it wrong.
    """
    senders = {_sender(answer.what) for report in wrong for answer in report.problems}
    if len(senders) != 1 or len({report.host for report in wrong}) < 2:  # noqa: PLR2004 - several nodes
        return None
    return next((report for report in ranks if report.rank in senders), None)


def _sender(what: str) -> int | None:
    match = _SENDER.search(what)
    return int(match.group(1)) if match else None


def named(reports: Sequence[RankReport]) -> str:
    """Return ``rank 3 on node2, ranks 4 and 5 on node3``, for a readable number of nodes."""
    by_host: dict[str, list[str]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(str(report.rank))
    words = [
        f"rank {numbers[0]} on {host}" if len(numbers) == 1 else f"ranks {_numbers(numbers)} on {host}"
        for host, numbers in list(by_host.items())[:_MOST_NAMED]
    ]
    more = len(by_host) - len(words)
    return ", ".join(words) + (f" and those on {more} more nodes" if more else "")


def _numbers(numbers: Sequence[str]) -> str:
    if len(numbers) > _MOST_NAMED:
        return and_more(numbers, _MOST_NAMED)
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
        words += f"; wrong answers also at rank{'s' if len(others) > 1 else ''} {and_more(others, _MOST_NAMED)}"
    return words
