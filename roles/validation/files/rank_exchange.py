"""Let ranks exchange values with each other: over MPI, or over a key-value store such as PyTorch's TCPStore."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Mpi:
    """A group of ranks over MPI."""

    def __init__(self, comm: Any) -> None:
        """Keep an mpi4py communicator."""
        self._comm = comm
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return list(self._comm.allgather(value))

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self._comm.bcast(value, root=0)

    def among(self, members: Sequence[int]) -> Mpi:
        """Return the group of these ranks; all ranks call it, and the others get the group of the others."""
        return self.apart(int(self.rank not in members))

    def apart(self, number: int) -> Mpi:
        """Return the group of the ranks that give the same number; all ranks call it."""
        return Mpi(self._comm.Split(number, self.rank))


class Store:
    """A group of ranks over a key-value store such as PyTorch's TCPStore."""

    def __init__(self, store: Any, rank: int, size: int, prefix: str = "clusterctl") -> None:
        """Keep a store with ``set(key, text)`` and a blocking ``get(key)``."""
        self._store, self.rank, self.size, self._prefix = store, rank, size, prefix
        self._turn = 0

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks; a value is JSON."""
        self._turn += 1
        self._store.set(f"{self._prefix}/{self._turn}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{self._prefix}/{self._turn}/{rank}")) for rank in range(self.size)]

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self.gathered(value)[0]

    def among(self, members: Sequence[int]) -> Store:
        """Return the group of these ranks, or for another rank the group of the others."""
        side = [rank for rank in range(self.size) if (rank in members) == (self.rank in members)]
        return Store(self._store, side.index(self.rank), len(side), f"{self._prefix}/{self.rank in members}")

    def apart(self, number: int) -> Store:
        """Return the group of the ranks that give the same number; all ranks call it."""
        everybody = self.gathered(number)
        side = [rank for rank, given in enumerate(everybody) if given == number]
        return Store(self._store, side.index(self.rank), len(side), f"{self._prefix}/{self._turn}-{number}")


def local_rank() -> int:
    """Return which of its node's ranks this one is."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")))
