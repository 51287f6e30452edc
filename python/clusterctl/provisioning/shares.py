"""Divide the hosts of a run among controllers: by the inventory's groups, or in equal parts; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from clusterctl.model.nodeset import folded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Shares: TypeAlias = "dict[str, tuple[str, ...]]"  # hosts by the name of the worker
OWN = ""  # the first controller's own share


def by_pattern(hosts: Sequence[str], wanted: Mapping[str, Collection[str]]) -> Shares:
    """Return the hosts of each worker, and under :data:`OWN` those that no worker names.

    Args:
        hosts: of the run, in the inventory's order.
        wanted: by worker, the hosts that its pattern names; hosts of another run are left out.

    Raises:
        ValueError: two workers name the same host; its text is a sentence.
    """
    found: Shares = {}
    owner: dict[str, str] = {}
    for worker, its in wanted.items():
        if twice := [name for name in hosts if name in its and name in owner]:
            raise ValueError(
                f"{owner[twice[0]]} and {worker} both name {folded(twice)}; leave each host to one of the workers."
            )
        found[worker] = tuple(name for name in hosts if name in its)
        owner.update(dict.fromkeys(found[worker], worker))
    return {OWN: tuple(name for name in hosts if name not in owner), **found}


def equal(hosts: Sequence[str], workers: Sequence[str], only_here: Collection[str] = ()) -> Shares:
    """Return the hosts in parts of equal size, for the first controller and each worker.

    Args:
        hosts: of the run, in the inventory's order; neighbours stay together.
        workers: the names of the workers.
        only_here: hosts that only the first controller can reach; they count as a part of its share.
    """
    here = [name for name in hosts if name in only_here]
    rest = [name for name in hosts if name not in only_here]
    most = -(-len(hosts) // (1 + len(workers)))
    own = max(0, most - len(here))
    found = {OWN: tuple(name for name in hosts if name in {*here, *rest[:own]})}
    at = own
    for left, worker in zip(range(len(workers), 0, -1), workers, strict=True):
        size = -(-(len(rest) - at) // left)
        found[worker] = tuple(rest[at : at + size])
        at += size
    return found


def without(found: Shares, hosts: Collection[str]) -> Shares:
    """Return the shares without these hosts."""
    return {worker: tuple(name for name in its if name not in hosts) for worker, its in found.items()}


def words(found: Shares) -> str:
    """Return who plays what, for people."""
    shown = {worker or "this controller": its for worker, its in found.items() if its}
    return "; ".join(f"{worker}: {folded(its)}" for worker, its in shown.items())
