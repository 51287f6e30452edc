"""Decide about parts of a cluster: how many hosts may fail, which ones finished, and the batches of a rolling run.

No I/O. A percentage refers to the hosts that ``--limit`` leaves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.model.events import HostResult
    from clusterctl.model.hosts import Host
    from clusterctl.model.run_record import Problem

LAST_STAGE = "validation"  # the last role of the playbook: what it has done on a host, the host has finished
JOINT_TAGS = ("hosts", "ssh_mesh", "fabric")  # the roles by which nodes meet each other
_AMOUNT = re.compile(r"([0-9]{1,6})(%?)")
_MOST_PERCENT = 100
_BUILDERS = ("openmpi_builder", "python_env_builder", "mpi4py_builder", "nccl_builder", "horovod_builder")


@dataclass(frozen=True)
class Amount:
    """A number of hosts, or a share of them in per cent."""

    number: int
    is_percent: bool = False

    def of(self, hosts: int) -> int:
        """Return the number of hosts; a share is rounded down."""
        return self.number * hosts // _MOST_PERCENT if self.is_percent else self.number


def amount(text: str, least: int) -> Amount:
    """Read ``5`` or ``10%``.

    Raises:
        ValueError: the text is neither, or is out of range; its text is a clause.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is neither a number of hosts, such as 5, nor a share of them, such as 10%")
    found = Amount(int(match[1]), bool(match[2]))
    if found.number < least:
        raise ValueError(f"{text!r} is too small; the least is {least}")
    if found.is_percent and found.number > _MOST_PERCENT:
        raise ValueError(f"{text!r} is more than all hosts; the most is 100%")
    return found


def can_be_left_out(problems: Iterable[Problem], selected: Collection[str]) -> bool:
    """Whether the hosts with problems cannot be reached, all of them, and others are left."""
    found = list(problems)
    hosts = {problem.host for problem in found}
    return bool(found) and all(problem.kind == "unreachable" for problem in found) and not hosts >= set(selected)


def too_many(lost: int, allowed: int | None) -> str:
    """Return why a run stops that has lost so many hosts; '' where it may go on."""
    if allowed is None or lost <= allowed:
        return ""
    words = "1 host" if lost == 1 else f"{lost} hosts"
    return f"Stopped: {words} failed or could not be reached, and --max-fail allows {allowed}."


def finished(
    hosts: Iterable[str],
    results: Iterable[HostResult],
    lost: Collection[str],
    only_meeting: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the hosts on which the last role of the playbook did its work, without those that were lost.

    ``only_meeting`` are hosts that play the roles by which nodes meet each other, and no others.
    """
    through = {
        result.host
        for result in results
        if result.stage == (JOINT_TAGS[-1] if result.host in only_meeting else LAST_STAGE)
        and result.outcome in {"ok", "changed", "skipped"}
    }
    return tuple(name for name in hosts if name in through and name not in lost)


def builders(hosts: Sequence[Host], platforms: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that compile: those that a variable of the inventory names, and the first of each platform."""
    names = [host.name for host in hosts]
    named = {str(host.variables[word]) for host in hosts for word in _BUILDERS if host.variables.get(word)}
    first = {platforms[name]: name for name in reversed(names) if name in platforms}
    return tuple(name for name in names if name in named or name in first.values())


def batches(hosts: Sequence[str], size: int, first: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return the hosts in groups of ``size``. The builders are all in the first group, however many they are."""
    leading = [name for name in hosts if name in first]
    rest = [name for name in hosts if name not in first]
    head = max(size, len(leading))
    order = [*leading, *rest]
    return (tuple(order[:head]), *(tuple(order[at : at + size]) for at in range(head, len(order), size)))


@dataclass(frozen=True)
class Progress:
    """How far a rolling run came.

    Attributes:
        number: of the batch at work, from 1.
        count: of all batches.
        done: the hosts of the batches that passed.
        lost: the hosts that failed or could not be reached.
        beside: the other hosts of the batch at work.
        untouched: the hosts of the batches that did not begin.
    """

    number: int
    count: int
    done: tuple[str, ...]
    lost: tuple[str, ...]
    beside: tuple[str, ...]
    untouched: tuple[str, ...]

    def words(self, what: str) -> str:
        """Return a sentence for a run that ends here; ``what`` says how, for example "failed"."""
        parts = (
            ("done", self.done),
            ("failed", self.lost),
            ("in this batch", self.beside),
            ("not touched", self.untouched),
        )
        where = "; ".join(f"{word}: {folded(names)}" for word, names in parts if names)
        return f"Batch {self.number} of {self.count} {what} ({where})."
