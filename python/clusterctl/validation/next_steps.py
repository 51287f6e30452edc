"""The next step for a bad check whose culprit is not known: every FAIL and ERROR names nodes or says what to do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.validation.bisect import FEWEST

if TYPE_CHECKING:
    from clusterctl.model.results import CheckResult


def completed(result: CheckResult) -> CheckResult:
    """Return the result with a next step where it is bad and names no node; unchanged otherwise."""
    if not result.is_bad or result.hosts or result.culprits or result.next_step:
        return result
    return result.model_copy(update={"next_step": _step(result)})


def _step(result: CheckResult) -> str:
    again = result.repeat or "'clusterctl validate'"
    nodes = {rank.host for rank in result.ranks}
    wrong = [problem for rank in result.ranks for problem in rank.problems]
    missed = [one for one in result.comparisons if one.verdict is Verdict.FAIL]
    if missed:
        return (
            f"compare this run with the last good one to see since when it is slower: clusterctl compare; then {again}"
        )
    if wrong and len(nodes) > 1:
        return f"run it on fewer nodes, to see which node brings the wrong answer: {again} --limit {_half(result)}"
    if result.search is not None:
        return f"read the launches of the search in {result.log}, and the kernel logs of the nodes; then {again}"
    if len(nodes) >= FEWEST:
        return f"have the check launched on groups of nodes until the node is known: {again} --search"
    if len(nodes) > 1:
        return f"run it on one node at a time: {again} --limit {_half(result)}"
    where = f"read {result.log}, then " if result.log else ""
    return f"{where}look at the nodes with 'clusterctl doctor', and run it again: {again}"


def _half(result: CheckResult) -> str:
    """Return the first half of the nodes as a value of --limit."""
    nodes = list(dict.fromkeys(rank.host for rank in result.ranks))
    return shlex.quote(",".join(nodes[: max(1, len(nodes) // 2)]))
