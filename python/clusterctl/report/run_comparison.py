"""Comparison of two runs, figure by figure; a difference counts only beyond the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clusterctl import suite
from clusterctl.analysis import trend
from clusterctl.model import results
from clusterctl.model.base import Record
from clusterctl.model.results import Better, Figure, Unit, ValidationRecord, Verdict
from clusterctl.report import run_resolver
from clusterctl.state import history as run_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.results import FigureKey, Fineness
    from clusterctl.state.history import Store

_FLOOR = 0.03  # the least relative difference that matters, as for outliers
_FLOOR_WITHOUT_INTERVAL = 0.10  # of figures that do not say how sure they are, as in a history
_COARSEST = 0.99  # of a bandwidth: what could lack all but a hundredth unseen is not compared
_ABOUT = ("quantity", "operation", "backend", "algorithm", "size_bytes", "nodes", "unit")


class Side(Record):
    """One of two compared runs."""

    run_id: str
    inventory: str
    started: datetime
    verdict: Verdict
    suite: str
    hosts: tuple[str, ...]


class Difference(Record):
    """A figure of both runs; ``change`` is a fraction of ``first``, None where that is 0.

    ``noise`` is a fraction as well: one figure has to be more than ``1 + noise`` times the other.
    """

    check: str
    quantity: str
    operation: str
    backend: str
    algorithm: str
    size_bytes: int | None
    nodes: tuple[str, ...]
    unit: Unit
    better: Better
    first: float
    second: float
    change: float | None
    noise: float
    beyond_noise: bool

    @property
    def figure(self) -> Figure:
        """The figure of the first run."""
        return Figure(value=self.first, **_of(self, _ABOUT))

    @property
    def worse(self) -> bool:
        """Whether it moved to its bad side, beyond the noise."""
        fell = self.second < self.first
        return self.beyond_noise and (fell if self.better == "higher" else not fell and self.better == "lower")


class RunComparison(Record):
    """Two runs side by side; ``versions`` and ``verdicts`` hold the pairs that differ, empty text for a missing one."""

    first: Side
    second: Side
    versions: dict[str, tuple[str, str]]
    verdicts: dict[str, tuple[str, str]]
    figures: tuple[Difference, ...]
    only_first: int
    only_second: int
    notes: tuple[str, ...] = ()


def compare(first: str, second: str, inventory: AnyInventory | None = None) -> RunComparison:
    """Put the figures of two runs side by side.

    Args:
        first: the earlier run, as :func:`clusterctl.report.run_resolver.resolve` takes it.
        second: the later run, likewise.
        inventory: the inventory whose runs are meant; None takes the cluster of the named run.

    Raises:
        ConfigError: a run is unknown, a name is the beginning of several ids, a record is damaged, or the runs are of
            different clusters.
        StoreError: the history cannot be read.
    """
    names = (first, second)
    if None not in map(run_resolver.path_of, names):
        before, after = (run_resolver.resolve(name).record for name in names)
        return _compared(before, after)
    with run_history.open() as history:
        cluster = run_resolver.cluster_meant(history, names, inventory)
        before, after = (run_resolver.resolve(name, history, cluster).record for name in names)
        return _compared(before, after, history, cluster)


def _compared(
    first: ValidationRecord, second: ValidationRecord, history: Store | None = None, cluster: str = ""
) -> RunComparison:
    before, after = dict(_figures(first)), dict(_figures(second))
    pairs = tuple(
        _difference(place[0], before[place], after[place], history, cluster) for place in before if place in after
    )
    versions = [dict(record.versions or {"openmpi": record.openmpi_version}) for record in (first, second)]
    verdicts = [{one.check: one.verdict.value for one in record.checks} for record in (first, second)]
    return RunComparison(
        first=Side(**_of(first, Side.model_fields)),
        second=Side(**_of(second, Side.model_fields)),
        versions=_differing(*versions),
        verdicts=_differing(*verdicts),
        figures=pairs,
        only_first=len(before.keys() - after.keys()),
        only_second=len(after.keys() - before.keys()),
        notes=tuple(history.warnings) if history is not None else (),
    )


def _of(one: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _differing(first: dict[str, str], second: dict[str, str]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*first, *second))
    both = {name: (first.get(name, ""), second.get(name, "")) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class _Measured:
    """A figure of a run, its key, and how finely its check could judge."""

    key: FigureKey
    figure: Figure
    fineness: tuple[Fineness, ...]


def _figures(record: ValidationRecord) -> Iterator[tuple[tuple[Any, ...], _Measured]]:
    """Yield each figure with the fields that both runs must share; versions may differ, to compare them."""
    for check in record.checks:
        for key, figure in results.keys(record, check).items():
            place = (check.check, *figure.identity, key.unit, key.nodes, key.ranks)
            yield place, _Measured(key, figure, check.fineness)


def _difference(
    check: str,
    before: _Measured,
    after: _Measured,
    history: Store | None,
    cluster: str,
) -> Difference:
    first, second = before.figure, after.figure
    change = second.value / first.value - 1 if first.value else None
    around = max(
        _FLOOR,
        _uncertainty(first, second),
        _scatter((before.key, after.key), history, cluster),
        *map(_unseen, (before, after)),
    )
    return Difference(
        **_of(first, (*_ABOUT, "better")),
        check=check,
        first=first.value,
        second=second.value,
        change=change,
        noise=around,
        beyond_noise=_is_beyond(first.value, second.value, around),
    )


def _is_beyond(first: float, second: float, noise: float) -> bool:
    """Whether one is more than ``1 + noise`` times the other."""
    if first <= 0 or second <= 0:
        return first != second
    return max(first / second, second / first) > 1 + noise


def _uncertainty(first: Figure, second: Figure) -> float:
    """Return the halves of both medians' intervals together, as a fraction of the first."""
    halves = [(one.high - one.low) / 2 for one in (first, second) if one.low is not None and one.high is not None]
    return sum(halves) / abs(first.value) if first.value else 0.0


_KINDS = {0: "job", 1: "node", 2: "link"}  # of fineness, by the nodes that a figure is about


def _unseen(one: _Measured) -> float:
    """Return the difference that the run of a figure could not see, as the fraction by which one exceeds the other.

    Where the figure has no interval, all that its check told of the same quantity counts.
    """
    figure = one.figure
    has_interval = figure.low is not None and figure.high is not None
    kind = _KINDS.get(len(figure.nodes), "job")
    told = [
        found.fraction
        for found in one.fineness
        if found.quantity == figure.quantity and (found.kind == kind or not has_interval)
    ]
    if figure.better == "higher":  # 0.4 is a bandwidth that lacks 40 %
        told = [1 / (1 - min(fraction, _COARSEST)) - 1 for fraction in told]
    return max((*told, 0.0 if has_interval else _FLOOR_WITHOUT_INTERVAL))


def _scatter(keys: tuple[FigureKey, FigureKey], history: Store | None, cluster: str) -> float:
    """Return how far good runs lie apart, as a fraction of their median; 0 where they are too few to say."""
    if history is None:
        return 0.0
    found = []
    options = suite.HistoryOptions()
    for key in dict.fromkeys(keys):
        values = history.reference_values(cluster, key, options.runs)
        around = run_history.band(values, replace(trend.noise_of(options), floor=0.0))
        if around is not None and around.median > 0:
            found.append(around.high / around.median - 1)
    return max(found, default=0.0)
