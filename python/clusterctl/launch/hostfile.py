"""The list of hosts that mpirun gets, its order, and the node of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def ordered(slots: Mapping[str, int], launch_node: str) -> dict[str, int]:
    """Return the slots with the launch node first.

    Open MPI 4.1 begins with the node it runs on, 5.0 follows the order of the hosts (both seen); with the launch node
    first they agree, and the place of each rank is known beforehand.
    """
    return {name: slots[name] for name in sorted(slots, key=lambda name: name != launch_node)}


def words(slots: Mapping[str, int]) -> str:
    """Return the slots as one word for a command line, ``name:N,…``."""
    return ",".join(f"{name}:{count}" for name, count in slots.items())


def placement(slots: Mapping[str, int]) -> tuple[str, ...]:
    """Return the node of each rank when every slot is filled with ``--map-by slot``."""
    return tuple(name for name, count in slots.items() for _ in range(count))
