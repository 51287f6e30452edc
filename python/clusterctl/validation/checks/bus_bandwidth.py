"""Algorithm and bus bandwidth of a collective from the time it took, as nccl-tests defines them.

NVIDIA/nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth is size over time; bus bandwidth is that times a factor of
the operation, which makes it comparable with what the slowest link can carry, whatever the number of ranks. The size is
that of the whole array: what everybody has in the end (allreduce, broadcast, allgather) or in the beginning
(reduce-scatter, all-to-all).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.model.results import Figure

# Transfers that every value of the array needs, over ranks that carry them at the same time.
_SHARES = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "alltoall": 1}


def factor(operation: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth: 2(n-1)/n, (n-1)/n, or 1 for a broadcast.

    With one rank nothing crosses a bus, whatever the formula says.

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
    """Return both bandwidths of an operation that took a time, algorithm bandwidth alone where there is one rank.

    They have no samples of their own, and history judges the time alone: one slow night is one finding, and not three.
    A reference of the user's file or a published one may speak of either.

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
