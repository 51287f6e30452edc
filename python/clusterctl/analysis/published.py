"""Figures that others have published of their clusters, each with its source.

A pass line depends on GPU, number of nodes and GPUs, operation, size and algorithm; a figure speaks only where all of
them match, the size to the byte. Within one machine the GPU's model stands for its links. From 1 GiB on, where the
bandwidth has reached its plateau, such a figure is judged. Between machines the network matters as much, and its speed
is not among the keys: those figures stand beside what was measured, and judge nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.results import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.results import Figure

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


def find(figure: Figure, machine: MachineType) -> Reference | None:
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
