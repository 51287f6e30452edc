"""The results of the checks of a run, as they come in."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import CheckFinished, CheckResult, Verdict
from clusterctl.validation.bisect import FEWEST
from clusterctl.validation.checks import wrong_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterctl.model.results import ValidationEvent


INTERRUPTED = "the run was interrupted"

# The next step for a bad check whose culprit is not known: every FAIL and ERROR names nodes or says what to do.


def completed(result: CheckResult) -> CheckResult:
    """Return the result with a next step where it is bad and names no node; unchanged otherwise."""
    if not result.is_bad or result.hosts or result.culprits or result.next_step:
        return result
    step = f"run it again: {_again(result)}" if result.reason == INTERRUPTED else _step(result)
    return result.model_copy(update={"next_step": step})


def _again(result: CheckResult) -> str:
    return result.repeat or "'clusterctl validate'"


def _step(result: CheckResult) -> str:
    again = _again(result)
    nodes = {rank.host for rank in result.ranks}
    wrong = [problem for rank in result.ranks for problem in rank.problems]
    missed = [one for one in result.comparisons if one.verdict is Verdict.FAIL]
    if missed:
        return (
            f"compare this run with the last good one to see since when it is slower: clusterctl compare; then {again}"
        )
    if wrong and 1 < len(nodes) < FEWEST:
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


class CheckResults:
    """The result of each check by name, in the order in which the checks finished first."""

    def __init__(self, tell: Callable[[ValidationEvent], None]) -> None:
        """Start empty; ``tell`` hears of each result."""
        self._tell = tell
        self._found: dict[str, CheckResult] = {}

    def __contains__(self, check: str) -> bool:
        return check in self._found

    def __getitem__(self, check: str) -> CheckResult:
        """Return the result of a check, as the evidence of all has it."""
        return next(one for one in self.all if one.check == check)

    @property
    def all(self) -> tuple[CheckResult, ...]:
        """Every result, as the evidence of all of them has it."""
        return tuple(completed(one) for one in wrong_data.joined(tuple(self._found.values())))

    def finish(self, result: CheckResult) -> None:
        """Keep a result, in place of an earlier one of the same check; a bad one names nodes or the next step."""
        self._found[result.check] = result
        self._tell(CheckFinished(self[result.check]))

    def skip(self, check: str, why: str, verdict: Verdict = Verdict.SKIP, **fields: Mapping[str, str]) -> None:
        self.finish(CheckResult.model_validate({"check": check, "verdict": verdict, "reason": why, **fields}))

    def skip_rest(self, checks: Iterable[str], why: str, verdict: Verdict = Verdict.SKIP) -> None:
        """Skip every check that has no result yet; the first of them gets the verdict."""
        for check in checks:
            if check not in self._found:
                self.skip(check, why, verdict)
                verdict = Verdict.SKIP


def ended_during(result: CheckResult, why: str) -> CheckResult:
    """Return the result of a check whose nodes or pods went away meanwhile: what it says of them is their end."""
    told = {"verdict": Verdict.ERROR, "reason": f"{why}; it ended during this check", "next_step": ""}
    return result.model_copy(update={**told, "hosts": (), "culprits": ()})


def by_reason(left_out: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes of each reason as one folded name."""
    nodes: dict[str, list[str]] = {}
    for name, why in left_out.items():
        nodes.setdefault(why, []).append(name)
    return {why: nodeset.folded(names) for why, names in nodes.items()}
