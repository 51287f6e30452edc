"""The options of the checks, and what each check measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.base import Record
from clusterctl.suite.values import (
    OPERATIONS,
    Confidence,
    Count,
    Operations,
    PairSizes,
    Precision,
    Seconds,
    Share,
    Sizes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.results import Unit

_MIB = 1 << 20


class CheckOptions(Record):
    """What every check takes; ``deadline_s`` replaces its own deadline."""

    deadline_s: Seconds | None = None


class MeasuringOptions(CheckOptions):
    """How long a figure is measured: till its interval is narrow, and no longer than its budget.

    ``budget_s`` are the seconds for one figure; ``confidence`` is the probability of the median's interval, and
    ``precision`` the half width of that interval, relative to the median, at which the measuring stops early.
    """

    budget_s: Seconds = 0.5
    confidence: Confidence = 0.95
    precision: Precision = 0.02


class NodeSpeedOptions(MeasuringOptions):
    """Memory bandwidth and a compute loop on each node, ``budget_s`` for each."""


class PairsOptions(MeasuringOptions):
    """All pairs of nodes; ``budget_s`` is for one pair and one size.

    ``max_rounds`` None plays the whole tournament; a number samples so many of its rounds.
    """

    budget_s: Seconds = 0.1
    latency_bytes: PairSizes = (1, 64, 4096)
    bandwidth_bytes: PairSizes = (65536, _MIB, 8 * _MIB)
    max_rounds: Count | None = None


class SweepOptions(MeasuringOptions):
    """Collectives over message sizes; ``budget_s`` is for one operation and one size."""

    operations: Operations = OPERATIONS
    sizes: Sizes = (8, 65536, _MIB, 16 * _MIB)


class TrainingOptions(CheckOptions):
    """A fixed-seed language model of so many steps; the loss may miss the single process's by ``tolerance``."""

    steps: Count = 20
    tolerance: Share = 1e-8


# Every check that a suite can name, in the order in which they run, with the model of its options.
CHECKS: Mapping[str, type[CheckOptions]] = {
    "hello": CheckOptions,
    "point_to_point": CheckOptions,
    "broadcast": CheckOptions,
    "scatter": CheckOptions,
    "gather": CheckOptions,
    "reduce": CheckOptions,
    "allreduce": CheckOptions,
    "network": CheckOptions,
    "node_speed": NodeSpeedOptions,
    "pairs": PairsOptions,
    "collectives": SweepOptions,
    "nccl": CheckOptions,
    "nccl_sweep": SweepOptions,
    "torchrun": CheckOptions,
    "horovod": CheckOptions,
    "horovod_sweep": SweepOptions,
    "training": TrainingOptions,
}
GROUND = ("reachable", "provisioned", "skew")  # always looked at first, so that no suite needs to name them

SWEPT: Mapping[str, Unit] = {"time": "s", "algorithm_bandwidth": "B/s", "bus_bandwidth": "B/s"}
TRAINED: Mapping[str, Unit] = {"efficiency": "1", "time": "s", "throughput": "tokens/s"}
# What each check measures that a reference can speak of, and in which unit.
QUANTITIES: Mapping[str, Mapping[str, Unit]] = {
    "node_speed": {"memory_bandwidth": "B/s", "compute": "FLOP/s"},
    "pairs": {"latency": "us", "bandwidth": "B/s"},
    "collectives": SWEPT,
    "nccl_sweep": {**SWEPT, "gpu_clock": "Hz"},
    "horovod_sweep": SWEPT,
    "torchrun": TRAINED,
    "training": TRAINED,
}
