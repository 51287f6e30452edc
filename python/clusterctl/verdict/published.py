"""Figures that others have published of their clusters, each with its source.

A pass line depends on GPU, number of nodes and GPUs, operation, size and algorithm; a figure speaks only where all of
them match, the size to the byte. Within one machine the GPU's model stands for its links, so such a figure is judged.
Between machines the network matters as much, and its speed is not among the keys: those figures stand beside what was
measured, and judge nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.result import Reference

if TYPE_CHECKING:
    from clusterctl.result import Figure

_MIB, _GIB = 1 << 20, 1 << 30
# Azure's health checks pass an H200 machine from 431 GB/s on (Azure/azurehpc-health-checks, conf/nd96isr_h200_v5.conf),
# which is 10 % below the 480 GB/s that are published for it.
_WITHIN_ONE_MACHINE = -0.10

_ML_ENGINEERING = "stas00/ml-engineering, network/README.md"
_AWSOME = "awslabs/awsome-distributed-training, micro-benchmarks/nccl-tests"
_COREWEAVE = "coreweave/nccl-tests, README.md"
_DEEPOPS = "NVIDIA/deepops, docs/slurm-cluster/slurm-perf-cluster.md"

# Names as nvidia-smi gives them; others of the same chip (PCIe cards, superchips) have other links.
_MODELS = {
    "H200": ("NVIDIA H200",),
    "H100": ("NVIDIA H100 80GB HBM3",),
    "A100": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"),
}


@dataclass(frozen=True)
class Machine:
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
_H200_PARTS = {4: 363e9, 5: 414e9, 6: 436e9, 7: 460e9, 8: 473e9}

TABLE: tuple[_Published, ...] = (
    _Published("H200", 1, 8, "allreduce", 16 * _GIB, 480.0e9, f"{_ML_ENGINEERING}, with NVLS", _NVLS),
    _Published("H200", 1, 8, "allreduce", 16 * _GIB, 367.2e9, f"{_ML_ENGINEERING}, without NVLS", _NO_NVLS),
    _Published("H200", 1, 8, "allgather", 16 * _GIB, 361.4e9, _ML_ENGINEERING),
    _Published("H200", 1, 8, "reduce_scatter", 16 * _GIB, 362.9e9, _ML_ENGINEERING),
    *(
        _Published("H200", 1, gpus, "allreduce", 8 * _GIB, value, _ML_ENGINEERING, _NVLS)
        for gpus, value in _H200_PARTS.items()
    ),
    _Published("H200", 4, 32, "allreduce", 4 * _GIB, 364.9e9, f"{_ML_ENGINEERING}, p5en"),
    _Published("H100", 2, 16, "allreduce", 16 * _GIB, 487.1e9, f"{_AWSOME}, p5.48xlarge"),
    _Published("H100", 2, 16, "allreduce", 128 * _MIB, 289.2e9, f"{_AWSOME}, p5.48xlarge"),
    _Published("A100", 2, 16, "allreduce", 2 * _GIB, 78.3e9, f"{_AWSOME}, p4de"),
    _Published("H100", 8, 64, "allreduce", 8 * _GIB, 386.56e9, f"{_COREWEAVE}, with SHARP"),
    _Published("A100", 4, 32, "allreduce", 4 * _GIB, 191.05e9, f"{_DEEPOPS}, DGX A100"),
    _Published("A100", 4, 32, "allreduce", 256 * _MIB, 168.69e9, f"{_DEEPOPS}, DGX A100"),
    _Published("A100", 4, 32, "allreduce", 64 * _MIB, 120.44e9, f"{_DEEPOPS}, DGX A100"),
)


def find(figure: Figure, machine: Machine) -> Reference | None:
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
                lower=_WITHIN_ONE_MACHINE if entry.nodes == 1 else None,
                unit="B/s",
                source="published",
                citation=f"published: {entry.source}",
            )
    return None
