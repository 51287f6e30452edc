"""Nodes that became a little slower, found in all runs of the history together, in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.analysis import slow_drift
from clusterctl.model import results, units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from clusterctl.model.results import CheckResult, Figure, FigureKey, ValidationRecord
    from clusterctl.state.history import Store

    _Figures: TypeAlias = "tuple[tuple[str, str], list[str], slow_drift.Floats | None]"

_MOST_RUNS = 100


@dataclass(frozen=True)
class Slowdown:
    """A node that became a little slower: by which figure, and the sentence that tells it."""

    check: str
    quantity: str
    node: str
    words: str


def sentences(history: Store, cluster: str, record: ValidationRecord) -> tuple[str, ...]:
    """Return who became slower over the runs, or after how many more runs that would show.

    Args:
        history: the runs.
        cluster: their cluster.
        record: the last run; its checks and nodes are looked at.
    """
    return tuple(words for check in record.checks for words in _of_check(history, cluster, record, check))


def slower(history: Store, cluster: str, record: ValidationRecord) -> tuple[Slowdown, ...]:
    """Return who became slower over the runs, and nothing where nobody did; the arguments are :func:`sentences`'."""
    found = (one for check in record.checks for one in _judged_of(history, cluster, record, check))
    return tuple(named for about, nodes, figures in found for named in _slower(about, nodes, figures))


def _of_check(history: Store, cluster: str, record: ValidationRecord, check: CheckResult) -> Iterator[str]:
    for about, nodes, figures in _judged_of(history, cluster, record, check):
        yield from _told(about, nodes, figures)


def _judged_of(history: Store, cluster: str, record: ValidationRecord, check: CheckResult) -> Iterator[_Figures]:
    """Yield check and quantity, the nodes in order, and their figures by kind, run and node, of each quantity."""
    groups: dict[tuple[str, str], dict[tuple[object, ...], dict[str, FigureKey]]] = {}
    better: dict[tuple[str, str], int] = {}
    for key, figure in results.keys(record, check).items():
        if len(figure.nodes) == 1 and figure.better != "none":
            about = (figure.quantity, figure.backend)
            better[about] = -1 if figure.better == "higher" else 1
            groups.setdefault(about, {}).setdefault(_kind(figure), {})[figure.nodes[0]] = key
    for about, kinds in groups.items():
        nodes = sorted(set.intersection(*(set(each) for each in kinds.values())))
        if len(nodes) >= slow_drift.FEWEST_NODES:
            values = _values(history, cluster, nodes, kinds.values())
            yield (check.check, about[0]), nodes, slow_drift.stacked(values, better[about]) if values[0] else None


def _values(
    history: Store, cluster: str, nodes: list[str], kinds: Iterable[dict[str, FigureKey]]
) -> list[list[list[float]]]:
    """Return the figures by kind, run (oldest first) and node, of the runs that have all of them."""
    found: list[list[dict[str, float]]] = [
        [{one.run_id: one.value for one in history.past(cluster, keys[node], _MOST_RUNS)} for node in nodes]
        for keys in kinds
    ]
    runs = set.intersection(*(set(each) for kind in found for each in kind))
    return [[[of_node[run] for of_node in kind] for run in sorted(runs)] for kind in found]


def _slower(about: tuple[str, str], nodes: list[str], figures: slow_drift.Floats | None) -> Iterator[Slowdown]:
    judged = slow_drift.judge(figures) if figures is not None else None
    for one in judged.drifts if judged is not None else ():
        name, by = nodes[one.node], f"{100 * slow_drift.part(one.distance):.2g} %"
        words = f"{name} is {by} worse on the last {one.nights} runs than before; the others are not."
        yield Slowdown(*about, name, f"{_words(about)}: {words}")


def _words(about: tuple[str, str]) -> str:
    return f"{about[0]}: {about[1].replace('_', ' ')}"


def _told(about: tuple[str, str], nodes: list[str], figures: slow_drift.Floats | None) -> Iterator[str]:
    what = _words(about)
    judged = slow_drift.judge(figures) if figures is not None else None
    runs = figures.shape[1] if figures is not None else 0
    if judged is None:
        missing = slow_drift.FEWEST_NIGHTS - runs
        if missing > 0:
            yield f"{what}: {missing} more run{'s' if missing > 1 else ''} needed before small slowdowns can be judged."
        return
    if judged.drifts:
        yield from (one.words for one in _slower(about, nodes, figures))
        return
    noise = f"a node differs by {100 * slow_drift.part(judged.noise):.2g} % from run to run"
    small = units.percent(slow_drift.SLOWDOWN)
    if judged.needed is not None:
        yield f"{what}: {noise}, so one that becomes {small} worse is named after {judged.needed} runs."
        return
    wanted = slow_drift.nights_before(judged.noise, judged.nights, len(nodes))
    if wanted is None:
        yield f"{what}: {noise}, so {small} less cannot be seen with any number of runs; quieter nodes show it."
    else:
        yield f"{what}: {noise}, so {wanted - judged.nights} more runs are needed until {small} less can be seen."


def _kind(figure: Figure) -> tuple[object, ...]:
    return (figure.operation, figure.algorithm, figure.size_bytes, figure.unit)
