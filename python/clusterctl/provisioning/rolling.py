"""Provision in batches: each batch runs alone, then meets the batches before it, and the first bad batch ends the run.

A batch passes when its nodes pass the proofs of the roles, and log in to the nodes of earlier batches and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.provisioning.partial import Progress
from clusterctl.provisioning.playbook import End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Steps:
    """What a rolling run does with hosts.

    Attributes:
        begin: hears the number of a batch, from 1, and its hosts.
        play: provisions these hosts.
        join: lets these hosts, of the batch and of all batches before it, meet each other.
        reached: says which of these hosts a play took to its end.
    """

    begin: Callable[[int, Sequence[str]], None]
    play: Callable[[Sequence[str]], End]
    join: Callable[[Sequence[str]], End]
    reached: Callable[[Sequence[str]], Sequence[str]]


@dataclass
class Rolled:
    """How a rolling run ended: all its plays as one, and its progress where it ended early."""

    end: End
    done: list[str] = field(default_factory=list)
    stopped: Progress | None = None


def roll(batches: Sequence[Sequence[str]], steps: Steps, allowed: int) -> Rolled:
    """Run one batch after the other; more than ``allowed`` lost hosts end the run after the batch."""
    rolled = Rolled(End("successful", 0))
    for number, batch in enumerate(batches, 1):
        steps.begin(number, batch)
        ends = [rolled.end, steps.play(batch)]
        good = [name for name in steps.reached(batch) if name not in lost_hosts(ends)]
        if rolled.done and good and not _is_over(ends, allowed):
            ends.append(steps.join([*rolled.done, *good]))
        rolled.end = as_one(ends)
        lost = lost_hosts(ends)
        rolled.done = [name for name in rolled.done if name not in lost]
        if _is_over(ends, allowed):
            rolled.stopped = Progress(
                number=number,
                count=len(batches),
                done=tuple(rolled.done),
                lost=tuple(sorted(lost)),
                beside=tuple(name for name in batch if name not in lost),
                untouched=tuple(name for later in batches[number:] for name in later),
            )
            return rolled
        rolled.done += [name for name in good if name not in lost]
    return rolled


def lost_hosts(ends: Sequence[End]) -> frozenset[str]:
    """Return the hosts that failed or could not be reached in any of these plays."""
    return frozenset().union(*(end.failed | end.unreachable for end in ends))


def _is_over(ends: Sequence[End], allowed: int) -> bool:
    """Whether the run ends: too many hosts are lost, or a play ended badly for another reason than a host."""
    last = ends[-1]
    by_hosts = bool(last.failed or last.unreachable) and last.status != "canceled"
    return len(lost_hosts(ends)) > allowed or (last.status != "successful" and not by_hosts)


def as_one(ends: Sequence[End]) -> End:
    """Return how several plays ended together; the last bad end gives status and code."""
    bad = [end for end in ends if end.status != "successful" or end.rc != 0]
    worst = bad[-1] if bad else ends[-1]
    return End(
        worst.status,
        worst.rc,
        tuple(dict.fromkeys(text for end in ends for text in end.complaints)),
        failed=frozenset().union(*(end.failed for end in ends)),
        unreachable=frozenset().union(*(end.unreachable for end in ends)),
    )
