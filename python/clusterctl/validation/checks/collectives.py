"""Sweeps of collectives over message sizes with MPI, NCCL and Horovod: proved once, then measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Figure, Verdict
from clusterctl.model.units import size_words, value_words
from clusterctl.suite import MeasuringOptions
from clusterctl.suite.model import MIB, OPERATIONS, Operations, Sizes
from clusterctl.validation.checks import base, judging, nccl, nccl_diagnostics, rank_output, training
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure, RankReport, Unit
    from clusterctl.suite.catalogue import BuiltinName


# Algorithm and bus bandwidth of a collective from the time it took, as nccl-tests defines them.
#
# NVIDIA/nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth is size over time; bus bandwidth is that times a factor of
# the operation. That makes it comparable with the slowest link for any number of ranks. The size is that of the whole
# array: what every rank has at the end (allreduce, broadcast, allgather) or at the start (reduce-scatter, all-to-all).

# Transfers that every value of the array needs, over ranks that carry them at the same time.
_SHARES = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "alltoall": 1}


def factor(operation: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth: 2(n-1)/n, (n-1)/n, or 1 for a broadcast.

    One rank sends nothing over a bus, so its factor has no meaning.

    Raises:
        ValueError: the operation is unknown, or there are no ranks.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks have no bandwidth")
    if operation in _SHARES:
        return _SHARES[operation] * (ranks - 1) / ranks
    if operation == "broadcast":
        return 1.0
    raise ValueError(f"no factor is known for '{operation}'")


def bandwidths(time: Figure, ranks: int) -> tuple[Figure, ...]:
    """Return both bandwidths of an operation; one rank has an algorithm bandwidth alone.

    They have no samples, so that the history judges the time alone and a slow run is one finding instead of three.
    References of the user and published references can name each of them.
    """
    if min(time.value, time.value if time.low is None else time.low) <= 0:
        return ()  # a clock that stood still has no bandwidth
    size = float(time.size_bytes or 0)
    found = []
    for quantity, scale in (("algorithm_bandwidth", 1.0), ("bus_bandwidth", factor(time.operation, ranks))):
        if quantity == "bus_bandwidth" and ranks == 1:
            continue
        low, high = (None if end is None else size / end * scale for end in (time.high, time.low))
        changes = {
            "quantity": quantity,
            "value": size / time.value * scale,
            "unit": "B/s",
            "low": low,
            "high": high,
            "better": "none",
            "samples": (),
        }
        found.append(time.model_copy(update=changes))
    return tuple(found)


_START_S = 60.0
_PROOF_S = 1.0  # of a point, on top of measuring
_BUDGETS = 6  # what a point may take, in budgets; slow points still need the fewest samples


class SweepOptions(MeasuringOptions):
    """Collectives over message sizes; ``budget_s`` is for one operation and one size."""

    operations: Operations = OPERATIONS
    sizes: Sizes = (8, 65536, MIB, 16 * MIB)


def deadline_s(options: SweepOptions) -> float:
    """Return the seconds for a whole sweep: some for each of its points."""
    points = len(options.operations) * len(options.sizes)
    return _START_S + points * (_PROOF_S + _BUDGETS * options.budget_s)


@dataclass(frozen=True)
class _Sweep(base.Check):
    """What the sweeps share: options, their deadline, and figures made of times."""

    options: SweepOptions = field(default_factory=SweepOptions)
    name: str = ""
    title: str = ""
    deadline_s: float = deadline_s(SweepOptions())

    @classmethod
    def of(cls, options: SweepOptions) -> Self:
        return cls(options, deadline_s=deadline_s(options))

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, and make figures of the times."""
        judgement = judging.judge(site, outcome)
        return with_figures(judgement, site, outcome, self.options.confidence, judgement.ranks)


@dataclass(frozen=True)
class Collectives(_Sweep):
    """Time and bandwidths of MPI's collectives between all slots."""

    name: str = "collectives"
    title: str = "MPI's collectives over message sizes: right answers, time and bandwidths"
    file = "sweep_checks.py"


@dataclass(frozen=True)
class NcclSweep(_Sweep, nccl.WithNccl):
    """The same between GPUs, with their clocks watched."""

    name: str = "nccl_sweep"
    title: str = "NCCL's collectives over message sizes: right answers, time, bandwidths, and the GPUs' clocks"

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge which NCCL answered, the answers and the GPUs' state, and make figures of the times."""
        judgement = nccl.judged(site, outcome)
        if judgement.verdict is Verdict.SKIP:
            return judgement
        players = [report for report in judgement.ranks if "points" in report.facts]
        shared = next((report.facts["shared"] for report in players if "shared" in report.facts), "")
        found = with_figures(judgement, site, outcome, self.options.confidence, players, shared)
        proved = nccl_diagnostics.path_judged(found, site, outcome, nccl.users(judgement.ranks))
        return nccl_diagnostics.judged(proved, site, outcome)


@dataclass(frozen=True)
class HorovodSweep(_Sweep, training.WithHorovod):
    """The same through Horovod: on GPUs where every rank has one, else in main memory."""

    name: str = "horovod_sweep"
    title: str = "Horovod's collectives over message sizes: right answers, time and bandwidths"


def with_figures(
    judgement: base.Judgement,
    site: base.Site,
    outcome: JobOutcome,
    confidence: float,
    players: Sequence[RankReport],
    shared: str = "",
) -> base.Judgement:
    """Return a judgement with the figures of a sweep; a PASS without figures becomes an ERROR.

    ``shared`` says why a bandwidth has no meaning, where ranks share a GPU; empty elsewhere.
    """
    measured = rank_output.read(outcome.lines, site.placement, site.names).measured
    times = rank_output.figures([one for one in measured if one.quantity == "time"], confidence, together=True)
    others = rank_output.figures([one for one in measured if one.quantity != "time"], confidence)
    widths = [] if shared else [figure for time in times for figure in bandwidths(time, len(players))]
    judgement = replace(judgement, figures=(*times, *widths, *others))
    if judgement.verdict is not Verdict.PASS:
        return judgement
    if not times:
        left_out = next((report.facts["left_out"] for report in players if "left_out" in report.facts), "nothing")
        return replace(judgement, verdict=Verdict.ERROR, reason=f"nothing was measured; left out: {left_out}")
    return base.passed(judgement, "; ".join(_words(judgement, widths or times, players, shared)))


def _words(
    judgement: base.Judgement, figures: Sequence[Figure], players: Sequence[RankReport], shared: str
) -> list[str]:
    """Return what a PASS proves, its largest allreduce, and what was left out."""
    words = [judgement.reason]
    best = max((one for one in figures if one.quantity in {"bus_bandwidth", "time"}), key=_weight, default=None)
    if best is not None:
        what = f"{best.operation.replace('_', '-')} of {size_words(best.size_bytes or 0)}"
        how = "bus bandwidth" if best.quantity == "bus_bandwidth" else "an operation"
        words.append(f"{what}: {value_words(best.value, best.unit)} {'of ' if how[0] == 'b' else ''}{how}")
    if shared:
        words.append(f"bandwidths are not meaningful and left out ({shared})")
    left_out = next((report.facts["left_out"] for report in players if "left_out" in report.facts), "")
    if left_out:
        words.append(f"left out: {left_out}")
    without = [report for report in judgement.ranks if "no_gpu" in report.facts]
    if without:
        words.append(f"no GPU on {nodeset.folded(base.unique(report.host for report in without))}")
    return words


def _weight(figure: Figure) -> tuple[bool, int]:
    """Rank figures by how much they tell: allreduce first, then the largest."""
    return figure.operation == "allreduce", figure.size_bytes or 0


_TUNED: Mapping[BuiltinName, SweepOptions] = {
    "full": SweepOptions(
        budget_s=3.0,
        precision=0.01,
        sizes=(8, 1024, 8192, 65536, 524288, 4 * MIB, 32 * MIB, 256 * MIB),
    )
}
_MEASURES: Mapping[str, Unit] = {"time": "s", "algorithm_bandwidth": "B/s", "bus_bandwidth": "B/s"}


def _registration(kind: type[Collectives | NcclSweep | HorovodSweep], order: int, **measures: Unit) -> Registration:
    return Registration(
        name=kind.name,
        order=order,
        options=SweepOptions,
        measures={**_MEASURES, **measures},
        tuned=_TUNED,
        make=kind.of,
    )


CHECKS = (
    _registration(Collectives, order=50),
    _registration(NcclSweep, order=70, gpu_clock="Hz"),
    _registration(HorovodSweep, order=95),
)
