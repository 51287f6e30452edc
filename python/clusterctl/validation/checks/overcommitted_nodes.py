"""Overcommitted nodes: how long a job may take to start there, and whether too few cores explain a late job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.validation.checks.rank_output import CPUS, LOAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport
    from clusterctl.validation.checks.rank_output import Output

SLACK = 4.0  # times the expected start that a job may take; processes that share a core also share its caches
_RANK_CPU_S = 0.6  # processor time in which a rank starts Python, numpy and MPI
_NODE_CPU_S = 0.3  # the same for a node's ssh session and MPI daemon
_SECONDS_PER_RANK = 0.05
_SECONDS_PER_NODE = 0.1
_MOST = 0.5  # share of the nodes that are late; with fewer, a fault of these nodes is more likely
_BUSY = 2.0  # processes per core, from which on all are slow
_STILL_MOVING = 2 / 3  # of the deadline; ranks that hang do not come up or take new steps after it


@dataclass(frozen=True)
class Machine:
    """A machine that holds one node or, as containers, several."""

    nodes: tuple[str, ...]
    ranks: int
    cores: int

    @property
    def start_s(self) -> float:
        """Return the expected seconds of processor time per core until all ranks are up."""
        return (self.ranks * _RANK_CPU_S + len(self.nodes) * _NODE_CPU_S) / self.cores


@dataclass(frozen=True)
class Crowd:
    """Too many processes for the cores: what shows it, and what to do."""

    words: str
    next_step: str


def machines(placement: Sequence[str], cores: Mapping[str, int], shared: Mapping[str, str]) -> tuple[Machine, ...]:
    """Return the machines below the nodes.

    ``shared`` has an id of each node's machine; a node without one has a machine of its own. Nodes of one machine have
    the same cores.
    """
    ranks = Counter(placement)
    groups: dict[str, list[str]] = {}
    for node in ranks:
        groups.setdefault(shared.get(node) or f"machine of {node}", []).append(node)
    return tuple(
        Machine(
            nodes=tuple(nodes),
            ranks=sum(ranks[node] for node in nodes),
            cores=max(1, *(cores.get(node, ranks[node]) for node in nodes)),
        )
        for nodes in groups.values()
    )


def allowance_s(placement: Sequence[str], cores: Mapping[str, int], shared: Mapping[str, str]) -> float:
    """Return the seconds of a deadline that are for the start: more for more ranks, nodes and ranks per core.

    A machine with a core for each rank adds nothing.
    """
    crowded = [machine.start_s for machine in machines(placement, cores, shared) if machine.ranks > machine.cores]
    several = _SECONDS_PER_RANK * len(placement) + _SECONDS_PER_NODE * len(set(placement))
    return several + SLACK * max(crowded, default=0.0)


def crowd(below: Sequence[Machine], outcome: JobOutcome, output: Output, silent: Sequence[RankReport]) -> Crowd | None:
    """Return what shows that a job was late because all nodes were slow; None where a fault explains it better.

    Most nodes are late, and their machines have far more processes than cores. Also, ranks still came up or took new
    steps near the deadline; or some are not up, and the start is expected to take as long. In a hang all
    ranks are up and nothing moves. ``below`` are the machines of the job's nodes. ``silent`` are the ranks that gave no
    signs of life when the deadline passed.
    """
    if outcome.ending != "deadline" or any(not report.ok for report in output.in_state("answered")):
        return None
    late = {report.host for report in output.ranks if report.state != "answered"}
    mute = {report.host for report in silent} & late
    most = _MOST * sum(len(machine.nodes) for machine in below)
    if len(late) <= most or 0 < len(mute) <= most:
        return None
    up = output.in_state("started", "waiting", "answered")
    busy = [machine for machine in below if _is_busy(machine, output.ranks, told=bool(up))]
    if sum(node in late for machine in busy for node in machine.nodes) <= most:
        return None
    busiest = max(busy, key=lambda machine: machine.start_s * _slowdown(machine, output.ranks))
    start_s = busiest.start_s * _slowdown(busiest, output.ranks)
    stuck = not up or output.moved_s <= _STILL_MOVING * outcome.ending_s
    if stuck and (len(up) == len(output.ranks) or SLACK * start_s <= outcome.ending_s):
        return None
    load, cores = _load(output.ranks, busiest)
    return Crowd(
        words=f"the nodes are overcommitted: {_answered(output)} within {outcome.ending_s:.0f} s,"
        f" {_shown(busiest, load, cores)}",
        next_step=f"Give these nodes fewer slots, end other work on them, or give the check more time with --timeout"
        f" {max(2 * outcome.ending_s, SLACK * start_s + outcome.ending_s):.0f}.",
    )


def _is_busy(machine: Machine, ranks: Sequence[RankReport], *, told: bool) -> bool:
    """Whether a machine has far more processes than cores: by its load, or by its ranks where no rank is up."""
    load, cores = _load(ranks, machine)
    return (load if told else machine.ranks) >= _BUSY * cores


def _slowdown(machine: Machine, ranks: Sequence[RankReport]) -> float:
    """Return by how much other work slows the start of this job's ranks."""
    return max(1.0, _load(ranks, machine)[0] / machine.ranks)


def _load(ranks: Sequence[RankReport], machine: Machine) -> tuple[float, int]:
    """Return the highest load that ranks on a machine reported, 0 where none did, and the machine's CPUs."""
    told = [report.figures for report in ranks if report.host in machine.nodes and LOAD in report.figures]
    return (
        max((figures[LOAD] for figures in told), default=0.0),
        int(max((figures.get(CPUS, 0.0) for figures in told), default=0.0)) or machine.cores,
    )


def _answered(output: Output) -> str:
    nodes = len({report.host for report in output.ranks})
    answers = len(output.in_state("answered"))
    up = len(output.in_state("started", "waiting", "answered"))
    return f"{up} of {len(output.ranks)} ranks on {nodes} nodes came up and {answers} answered"


def _shown(machine: Machine, load: float, cores: int) -> str:
    nodes = f"{len(machine.nodes)} nodes share" if len(machine.nodes) > 1 else f"{machine.nodes[0]} has"
    ranks = f"{machine.ranks} ranks"
    measured = f"and the load was {load:.0f}" if load else "and no rank told the load"
    return f"{nodes} {cores} core{'s' if cores != 1 else ''} for {ranks}, {measured}"
