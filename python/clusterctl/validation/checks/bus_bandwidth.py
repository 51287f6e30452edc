"""Algorithm and bus bandwidth of a collective from the time it took, as nccl-tests defines them.

NVIDIA/nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth is size over time; bus bandwidth is that times a factor of
the operation. That makes it comparable with the slowest link for any number of ranks. The size is that of the whole
array: what every rank has at the end (allreduce, broadcast, allgather) or at the start (reduce-scatter, all-to-all).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.model.results import Figure

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

    Args:
        time: the figure ``time`` of an operation and a size, in seconds.
        ranks: how many took part.
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
