"""Decide about parts of a cluster: how many hosts may fail, which ones finished, batches, and hosts that only join.

No I/O. A percentage refers to the hosts that ``--limit`` leaves. In a rolling run each batch runs alone, then meets
the batches before it. A batch passes when its nodes pass the proofs of the roles, and log in to the nodes of earlier
batches and back. The first bad batch ends the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.model.nodeset import folded
from clusterctl.provisioning import plan, software
from clusterctl.provisioning.members import watch_after
from clusterctl.provisioning.playbook import End

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from clusterctl.model.hosts import Host
    from clusterctl.model.run_record import HostResult, Problem
    from clusterctl.model.snapshot import HostSnapshot, Snapshot

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
    last: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the hosts on which the last role did its work, without those that were lost.

    ``last`` names the last role of hosts that do not play the playbook to its end.
    """
    stages = last or {}
    through = {
        result.host
        for result in results
        if result.stage == stages.get(result.host, LAST_STAGE) and result.outcome in {"ok", "changed", "skipped"}
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
    """How far a rolling run came."""

    number: int  # of the batch at work, from 1
    count: int  # of all batches
    done: tuple[str, ...]  # the hosts of the batches that passed
    lost: tuple[str, ...]  # the hosts that failed or could not be reached
    beside: tuple[str, ...]  # the other hosts of the batch at work
    untouched: tuple[str, ...]  # the hosts of the batches that did not begin

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


@dataclass(frozen=True)
class Steps:
    """What a rolling run does with hosts."""

    begin: Callable[[int, Sequence[str]], None]  # hears the number of a batch, from 1, and its hosts
    play: Callable[[Sequence[str]], End]  # provisions these hosts
    join: Callable[[Sequence[str]], End]  # lets these hosts, of the batch and of all batches before it, meet each other
    reached: Callable[[Sequence[str]], Sequence[str]]  # says which of these hosts a play took to its end


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


def join_only(
    as_left: Collection[str], snapshots: Mapping[str, HostSnapshot], cached_trees: Collection[str]
) -> frozenset[str]:
    """Return the hosts that play only the roles by which nodes meet each other.

    A host that plays no role of the software cannot give its own to others. So the cache has to have it. The hosts
    ``as_left`` are as their last run left them, and as the inputs ask for. ``cached_trees`` are names of folders.
    """
    trees = software.trees_of(entry for name in as_left for entry in snapshots[name].watch)
    return frozenset(as_left) if trees <= frozenset(cached_trees) else frozenset()


def joined_watch(
    results: Iterable[HostResult],
    joined: Iterable[str],
    snapshots: Mapping[str, HostSnapshot],
    roles: Collection[str] = (),
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return per host what should hold from now on; as before for roles that ``joined`` did not play.

    Of ``roles``, which ``joined`` played from the beginning to the end, nothing holds that they did not say again.
    """
    said = plan.watch_of(results)
    kept = {name: [one for one in snapshots[name].watch if one.get("role") not in roles] for name in joined}
    return {**said, **{name: watch_after(kept[name], said.get(name, ())) for name in kept}}


def join_variables(selected: Sequence[str], joined: Collection[str], before: Snapshot) -> dict[str, Any]:
    """Return the variables of a play in which the hosts of ``joined`` only meet the others.

    Those of them with a snapshot have files that hold its members.
    """
    whole = [name for name in selected if name not in joined]
    return {
        "provision_whole": ",".join(whole) or "!all",
        "provision_settled": ",".join(name for name in selected if name in joined) or "!all",
        "preflight_settled": [name for name in selected if name in joined and name in before.hosts],
        "preflight_known_members": before.members,
    }
