"""The state of each node by the runs of its cluster: a check that named a node must pass with it before it is healthy.

A run that leaves the node out, and a check that is SKIP, ERROR or FAIL, prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.model.node_states import NodeHealth
from clusterctl.model.results import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from clusterctl.model.node_states import DoctorErrors
    from clusterctl.state.history import StoredResult, StoredRun

OF_ALL = ("together", "boundary")  # kinds of culprits that blame no node
_BAD = frozenset({Verdict.FAIL, Verdict.ERROR})


@dataclass
class _NodePast:
    """What the runs so far tell of a node; ``waits`` has the last run that named it by check."""

    waits: dict[str, str] = field(default_factory=dict)
    passed: bool = False
    good_at: datetime | None = None


def blamed(result: StoredResult) -> frozenset[str]:
    """Return the nodes that a bad check blames by themselves, in a pair, or without any culprit."""
    if result.verdict not in _BAD:
        return frozenset()
    single = {node for one in result.culprits if one.kind not in OF_ALL for node in one.blamed}
    of_all = {node for one in result.culprits if one.kind in OF_ALL for node in one.nodes}
    return frozenset(single | (set(result.named) - of_all))


def proves(run: StoredRun, result: StoredResult, nodes: Iterable[str]) -> bool:
    """Whether nodes passed a check: they took part in it, and its verdict is PASS."""
    there = set(run.hosts) - set(result.apart)
    return result.verdict is Verdict.PASS and set(nodes) <= there


def states(runs: Iterable[StoredRun], doctor: Mapping[str, DoctorErrors]) -> tuple[NodeHealth, ...]:
    """Return the state of each node of the runs, in the order in which runs first had them.

    Args:
        runs: of one cluster, the oldest first.
        doctor: the last errors that doctor found, by node.
    """
    seen: dict[str, _NodePast] = {}
    newest = ""
    for run in runs:
        newest = run.run_id
        for node in run.hosts:
            _add(seen.setdefault(node, _NodePast()), node, run)
    names = dict.fromkeys([*seen, *doctor])
    return tuple(_state(node, seen.get(node) or _NodePast(), doctor.get(node), newest) for node in names)


def _add(seen: _NodePast, node: str, run: StoredRun) -> None:
    named = {one.check for one in run.results if node in blamed(one)}
    passed = {one.check for one in run.results if proves(run, one, [node])}
    if not named and not passed:
        return  # it took no part, or nothing was found out
    seen.waits = {check: at for check, at in seen.waits.items() if check not in passed}
    seen.waits.update(dict.fromkeys(sorted(named), run.run_id))
    seen.passed = seen.passed or bool(passed)
    if run.verdict is Verdict.PASS:
        seen.good_at = run.started


def _state(node: str, seen: _NodePast, doctor: DoctorErrors | None, newest: str) -> NodeHealth:
    errors = None if doctor is None or (seen.good_at is not None and seen.good_at > doctor.at) else doctor
    healthy = seen.passed and not seen.waits and errors is None
    last = max(seen.waits.values(), default="")
    return NodeHealth(
        node=node,
        state="failed" if last and last == newest else "healthy" if healthy else "not proved",
        checks=tuple(seen.waits),
        run_id=last,
        doctor=errors,
    )
