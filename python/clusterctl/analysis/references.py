"""What a figure is to be, and what comes of holding it against that.

Three may speak, in this order: the user's file, the history of this cluster, the table of published figures. The first
one that knows the figure speaks, and the reference says who it was.

The history speaks of logarithms, so that a tenth too slow is the same distance everywhere. Its limit lies as far out as
chance puts one of so many figures: the scale is the normalised median absolute deviation of the last good runs. That is
a poor estimate of few runs, so the quantile is Student's (see :func:`from_history`).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.analysis import robust_stats
from clusterctl.model import nodeset, units
from clusterctl.model.results import Comparison, Reference, Verdict
from clusterctl.suite import HistoryOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.model.results import Figure
    from clusterctl.suite import ReferenceEntry

_MAD_EFFICIENCY = 0.37  # a MAD is worth so many of its values' squares (Rousseeuw and Croux, 1993)
_ENOUGH_FOR_MAD = 12  # values; of fewer a MAD may by chance be next to nothing
_FILE = "validation.yml"


@dataclass(frozen=True)
class Sources:
    """Who may speak of the figures of one check's run; call it with a figure."""

    check: str
    nodes: int  # how many nodes took part
    ranks: int  # how many ranks took part
    entries: Sequence[ReferenceEntry] = ()  # the references of the user's file
    file: str = _FILE  # how the report calls that file
    # returns the values of a figure in the last good runs, newest first
    history: Callable[[Figure], Sequence[float]] | None = None
    options: HistoryOptions = field(default_factory=HistoryOptions)  # when the history speaks
    level: float = 0.01  # how often a healthy run of the check may have any figure beyond its history
    figures: int = 1  # how many figures of the check are compared; they share that level
    machine: MachineType | None = None  # the GPUs that took part, None where there were none

    def __call__(self, figure: Figure) -> Reference | None:
        """Return the reference of this figure, None where it has none."""
        found = find(self.entries, self.check, figure, self.nodes, self.ranks, self.file)
        if found is None and self.history is not None:
            values = self.history(figure)[: self.options.runs]
            found = from_history(values, figure, self.options, self.level / max(1, self.figures))
        if found is None and self.machine is not None:
            found = find_published(figure, self.machine)
        return found


def find(
    entries: Sequence[ReferenceEntry], check: str, figure: Figure, nodes: int, ranks: int, file: str = _FILE
) -> Reference | None:
    """Return the entry of the user's file that speaks of a figure.

    What an entry leaves out is any. Of those that match, the one that gives most speaks, and of equals the last. The
    entries are in the order of the file, and in the units of what they are about.
    """
    has = (figure.operation, figure.backend, figure.algorithm, figure.size_bytes, nodes, ranks)
    best: tuple[int, ReferenceEntry] | None = None
    for entry in entries:
        if (entry.check, entry.quantity) != (check, figure.quantity) or entry.unit not in {None, figure.unit}:
            continue
        given = [(wanted, real) for wanted, real in zip(entry.about, has, strict=True) if wanted not in {"", None}]
        if all(wanted == real for wanted, real in given) and (best is None or len(given) >= best[0]):
            best = (len(given), entry)
    if best is None:
        return None
    entry = best[1]
    return Reference(
        value=entry.value, lower=entry.lower, upper=entry.upper, unit=figure.unit, source="file", citation=file
    )


def from_history(
    values: Sequence[float], figure: Figure, options: HistoryOptions, level: float = 0.001
) -> Reference | None:
    """Return what a figure was on the last good runs, and how far it may stray from that on its bad side.

    The limit lies z scaled MADs out, in logarithms, and never nearer than the floor. z is ``options.mads``, or the
    quantile of Student's t that a healthy figure exceeds with probability ``level`` if that is more. The degrees of
    freedom follow from the efficiency of a MAD, 37 % of its values (Rousseeuw and Croux, *Alternatives to the Median
    Absolute Deviation*, JASA 88, 1993). Of fewer than 12 values it may by chance be next to nothing, so there the
    standard deviation counts where it is larger; the runs were good ones, so it is not made of outliers. Nor is the
    limit nearer than the second worst of them: figures with two states (ranks on one core or on two) have a small MAD.

    Args:
        values: of the last good runs, in the figure's unit.
        figure: what was measured now.
        options: how many runs it takes, and the least that counts.
        level: how often a healthy figure may lie beyond the limit.

    Returns:
        None where the runs are too few, or the figure has no bad side.
    """
    if figure.better == "none" or len(values) < options.at_least or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    centre = statistics.median(logs)
    scale = robust_stats.NORMAL * robust_stats.mad(logs)
    dof = round(_MAD_EFFICIENCY * len(values))
    if len(values) < _ENOUGH_FOR_MAD:
        scale, dof = max(scale, _deviation(logs)), len(values) - 1
    # The median of few runs strays as well: its variance adds pi/2n to that of the figure.
    spread = scale * math.sqrt(1 + math.pi / 2 / len(values))
    higher = figure.better == "higher"
    # What came twice on good runs is no news; the worst of them alone may be an accident.
    seen = sorted(centre - value if higher else value - centre for value in logs)[-2]
    distance = max(max(options.mads, robust_stats.t_quantile(level, dof)) * spread, math.log1p(options.floor), seen)
    return Reference(
        value=math.exp(centre),
        lower=math.expm1(-distance) if higher else None,
        upper=None if higher else math.expm1(min(distance, 700.0)),
        unit=figure.unit,
        source="history",
        citation=f"median of the last {len(values)} good runs",
    )


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; the standard library's reckons in fractions, which takes far longer."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def compare(figure: Figure, reference: Reference) -> Comparison:
    """Hold a figure against its reference.

    Beyond a limit is a FAIL. Against the history it takes the figure's whole interval: a night on which the samples
    scattered so much that the figure might as well be within is no proof of anything.

    Raises:
        ValueError: they are in units of different kinds.
    """
    value = units.converted(reference.value, reference.unit, figure.unit)
    reference = reference.model_copy(update={"value": value, "unit": figure.unit})
    best, worst = figure.value, figure.value
    if reference.source == "history":
        best = figure.high if figure.high is not None else best
        worst = figure.low if figure.low is not None else worst
    low = reference.lower is not None and best < value * (1 + reference.lower)
    high = reference.upper is not None and worst > value * (1 + reference.upper)
    return Comparison(
        figure=figure.model_copy(update={"samples": ()}),
        reference=reference,
        verdict=Verdict.FAIL if low or high else Verdict.PASS,
        words=f"{about(figure)}: {units.value_words(figure.value, figure.unit)}{_of_what(figure)}, "
        f"{_distance(figure, reference)} ({reference.citation or reference.source})",
    )


def badness(comparison: Comparison) -> float:
    """Return how far a figure is from its reference, as a factor; 1 is on it."""
    value, wanted = comparison.figure.value, comparison.reference.value
    if value <= 0 or wanted <= 0:
        return math.inf
    return max(value / wanted, wanted / value)


def about(figure: Figure) -> str:
    """Return 'allreduce of 64 MiB', 'node3: memory bandwidth', 'nccl allgather of 1 GiB'."""
    words = figure.operation.replace("_", " ") or figure.quantity.replace("_", " ")
    if figure.operation and figure.backend not in {"", "mpi"}:
        words = f"{figure.backend} {words}"
    if figure.size_bytes is not None:
        words += f" of {units.size_words(figure.size_bytes)}"
    if figure.algorithm:
        words += f" ({figure.algorithm})"
    return f"{nodeset.folded(figure.nodes)}: {words}" if figure.nodes else words


def _of_what(figure: Figure) -> str:
    """Return ' of bus bandwidth' behind a value whose subject is named by an operation."""
    return f" of {figure.quantity.replace('_', ' ')}" if figure.operation and figure.quantity != "time" else ""


def _distance(figure: Figure, reference: Reference) -> str:
    wanted = units.value_words(reference.value, reference.unit)
    part = figure.value / reference.value - 1
    if abs(part) < 0.0005:  # noqa: PLR2004 - 0.05 %, which rounds to nothing
        return f"as {wanted}"
    if part > 1:
        return f"{figure.value / reference.value:.3g} times {wanted}"
    return f"{units.percent(abs(part))} {'above' if part > 0 else 'below'} {wanted}"


# --- Figures that others have published of their clusters, each with its source ---------------------------------------

_MIB, _GIB = 1 << 20, 1 << 30
# Azure's health check passes an H200 machine from 431 GB/s on for 16 GiB (Azure/azurehpc-health-checks,
# conf/nd96isr_h200_v5.conf), which is 10 % below the 481 GB/s that are published for it.
_WITHIN_ONE_MACHINE = -0.10
_PLATEAU = _GIB  # below it the release of NCCL matters as much as the machine

_ML_ENGINEERING = "stas00/ml-engineering, network/README.md"
_ML_BENCHMARKS = "stas00/ml-engineering, network/benchmarks/README.md"
_AWSOME = "aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
_COREWEAVE = "coreweave/nccl-tests, README.md"
_DEEPOPS = "NVIDIA/deepops, docs/slurm-cluster/slurm-perf-cluster.md"

# Names as nvidia-smi gives them; others of the same chip (PCIe cards, superchips) have other links.
_MODELS = {
    "H200": ("NVIDIA H200",),
    "H100": ("NVIDIA H100 80GB HBM3",),
    "A100": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"),
}


@dataclass(frozen=True)
class MachineType:
    """The GPUs of a run: their model as nvidia-smi names it, the same on all, on how many nodes, and how many."""

    gpu: str
    nodes: int
    gpus: int


@dataclass(frozen=True)
class _Published:
    """A bus bandwidth in B/s; ``algorithms`` are those it holds for, empty being NCCL's own choice."""

    gpu: str
    nodes: int
    gpus: int
    operation: str
    size_bytes: int
    bytes_per_s: float
    source: str
    algorithms: tuple[str, ...] = ("",)


_NVLS = ("", "nvls")
_NO_NVLS = ("ring", "tree")
_H200_PARTS = {4: 363e9, 5: 414e9, 6: 436e9, 7: 460e9}

# Out of place, in GB/s by size; machines of eight GPUs.
_H200 = {
    32 * _MIB: 298.44,
    64 * _MIB: 369.82,
    128 * _MIB: 411.21,
    256 * _MIB: 442.27,
    512 * _MIB: 455.82,
    _GIB: 464.00,
    2 * _GIB: 468.31,
    4 * _GIB: 473.10,
    8 * _GIB: 475.16,
    16 * _GIB: 480.70,
}
_P5 = {
    32 * _MIB: 143.09,
    64 * _MIB: 209.19,
    128 * _MIB: 289.16,
    256 * _MIB: 342.81,
    512 * _MIB: 393.34,
    _GIB: 436.95,
    2 * _GIB: 443.72,
    4 * _GIB: 465.87,
    8 * _GIB: 479.28,
    16 * _GIB: 487.09,
}
_P4DE = {32 * _MIB: 40.85, 64 * _MIB: 47.58, 128 * _MIB: 64.31, 256 * _MIB: 69.89, _GIB: 76.79, 2 * _GIB: 78.33}
_SUNK = {512 * _MIB: 356.01, _GIB: 365.90, 2 * _GIB: 380.73, 4 * _GIB: 383.23, 8 * _GIB: 386.56}
_DGX_A100 = {32 * _MIB: 110.90, 64 * _MIB: 120.44, 256 * _MIB: 168.69, _GIB: 178.69, 2 * _GIB: 190.22, 4 * _GIB: 191.05}


def _series(
    gpu: str, nodes: int, by_size: Mapping[int, float], source: str, algorithms: tuple[str, ...] = ("",)
) -> tuple[_Published, ...]:
    return tuple(
        _Published(gpu, nodes, 8 * nodes, "allreduce", size, value * 1e9, source, algorithms)
        for size, value in by_size.items()
    )


TABLE: tuple[_Published, ...] = (
    *_series("H200", 1, _H200, f"{_ML_BENCHMARKS}, nccl-tests, NCCL 2.30.7", _NVLS),
    _Published("H200", 1, 8, "allreduce", 16 * _GIB, 367.2e9, f"{_ML_ENGINEERING}, without NVLS", _NO_NVLS),
    _Published("H200", 1, 8, "allgather", 16 * _GIB, 361.4e9, _ML_ENGINEERING),
    _Published("H200", 1, 8, "reduce_scatter", 16 * _GIB, 362.9e9, _ML_ENGINEERING),
    *(
        _Published("H200", 1, gpus, "allreduce", 8 * _GIB, value, _ML_ENGINEERING, _NVLS)
        for gpus, value in _H200_PARTS.items()
    ),
    _Published("H200", 4, 32, "allreduce", 4 * _GIB, 364.9e9, f"{_ML_ENGINEERING}, p5en"),
    *_series("H100", 2, _P5, f"{_AWSOME}, p5.48xlarge"),
    *_series("A100", 2, _P4DE, f"{_AWSOME}, p4de.24xlarge"),
    *_series("H100", 8, _SUNK, f"{_COREWEAVE}, with SHARP"),
    *_series("A100", 4, _DGX_A100, f"{_DEEPOPS}, DGX A100"),
)


def find_published(figure: Figure, machine: MachineType) -> Reference | None:
    """Return what is published of a figure on such GPUs, None where nothing is."""
    if (figure.quantity, figure.backend, figure.unit) != ("bus_bandwidth", "nccl", "B/s") or figure.nodes:
        return None
    for entry in TABLE:
        same = (entry.nodes, entry.gpus, entry.operation, entry.size_bytes) == (
            machine.nodes,
            machine.gpus,
            figure.operation,
            figure.size_bytes,
        )
        if same and machine.gpu in _MODELS[entry.gpu] and figure.algorithm.lower() in entry.algorithms:
            return Reference(
                value=entry.bytes_per_s,
                lower=_WITHIN_ONE_MACHINE if entry.nodes == 1 and entry.size_bytes >= _PLATEAU else None,
                unit="B/s",
                source="published",
                citation=f"published: {entry.source}",
            )
    return None
