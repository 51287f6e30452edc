"""Measure an allreduce over one way of NCCL alone: NVLink, PCIe with main memory, or the network.

NCCL reads these variables once in a process, so each way is a job of its own: ``nccl_nvlink``, ``nccl_pcie`` and
``nccl_nic``. NVLink and PCIe are inside a node, so all nodes measure at once, each its own GPUs. The network is between
nodes, so pairs of nodes meet in the rounds of a tournament, with all of their GPUs and so with all of their ports.

NCCL's log tells which way the connections took. A rank with another way than the wanted one reports it, since then the
figure is not about this way.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

import measure
import nccl_log
import sweep_checks
from nccl_communicator import Communicator
from nccl_sweep import Mover
from nccl_timing import bus_factor
from pair_checks import tournament

if TYPE_CHECKING:
    import rank_program
    from cuda_driver import Cuda
    from nccl_library import Nccl
    from rank_exchange import Mpi, Store

BEGIN = "nccl_"  # of the names of the checks
MOST_ROUNDS = 8  # the check on the controller knows it, for its deadline
ROUNDS_SHARE = 0.7  # of the deadline; a later round is not begun
NOT_IN_A_GROUP = 0


class Way(NamedTuple):
    """One way: its words, what leaves NCCL this way alone, and how NCCL's log begins the way of each connection."""

    title: str
    settings: dict[str, str]
    begins: tuple[str, ...]


# NCCL's user guide, "Environment Variables"
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), has each of them:
# NCCL_P2P_LEVEL=NVL      GPUs reach each other directly where NVLink connects them, and nowhere else
# NCCL_P2P_DISABLE=1      no GPU reaches another one directly, by NVLink or by PCIe
# NCCL_SHM_DISABLE=1      no way over main memory; what is left is the network
# NCCL_NVLS_ENABLE=0      no NVLink SHARP, which would join GPUs beside these ways
# NCCL_MNNVL_ENABLE=0     no NVLink between nodes
# NCCL_PXN_DISABLE=1      a GPU uses its own port, and none of another GPU by NVLink
WAYS: dict[str, Way] = {
    "nvlink": Way("NVLink", {"NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}, ("P2P",)),
    "pcie": Way(
        "PCIe and main memory",
        {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"},
        ("SHM", "direct shared memory"),
    ),
    "nic": Way(
        "the network",
        {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_PXN_DISABLE": "1",
        },
        ("NET/",),
    ),
}
CHECKS = tuple(f"{BEGIN}{way}" for way in WAYS)


def rounds(way: str, hosts: Sequence[str]) -> list[list[list[int]]]:
    """Return the groups of ranks that measure at the same time, round by round.

    Args:
        way: of :data:`WAYS`.
        hosts: the node of each rank.
    """
    nodes = list(dict.fromkeys(hosts))
    ranks = [[rank for rank, host in enumerate(hosts) if host == node] for node in nodes]
    if way != "nic":
        return [[group for group in ranks if len(group) > 1]]
    return [[ranks[a] + ranks[b] for a, b in pairs] for pairs in tournament(len(nodes), MOST_ROUNDS)]


class Sweep(sweep_checks.Sweep):
    """A sweep whose figures are the bus bandwidth of one way, of a node or of two nodes."""

    way, kind, peer = "", "", ""

    def tell(self, point: sweep_checks.Point, samples: Sequence[float]) -> None:
        """Print the figures of a point."""
        bus = point.size_bytes * bus_factor(point.operation, self.backend.size)
        measure.say(
            self.report.voice,
            [bus / max(seconds, 1e-9) for seconds in samples],
            quantity=f"{self.way}_bandwidth",
            unit="B/s",
            better="higher",
            backend=self.backend.name,
            algorithm=self.kind,
            bytes=point.size_bytes,
            peer=self.peer,
        )


def go(report: rank_program.Rank, nccl: Nccl, cuda: Cuda, ranks: Mpi | Store, hosts: Sequence[str]) -> None:
    """Measure in all rounds, and note which way NCCL took.

    Args:
        report: what this rank finds goes there.
        nccl: the library.
        cuda: this rank's GPU, open.
        ranks: those with a GPU of their own.
        hosts: the node of each of them.
    """
    way = report.arguments.check[len(BEGIN) :]
    until = report.began + ROUNDS_SHARE * report.arguments.deadline
    played = 0
    for number, groups in enumerate(rounds(way, hosts)):
        report.doing(f"round {number + 1}")
        if not ranks.first_says(time.monotonic() < until):
            report.facts["rounds_left_out"] = "the time was over"
            break
        at = next((place for place, group in enumerate(groups, NOT_IN_A_GROUP + 1) if ranks.rank in group), 0)
        group = ranks.apart(at)
        if at == NOT_IN_A_GROUP:
            continue
        members = [hosts[rank] for rank in groups[at - 1]]
        played += 1
        play(report, Communicator(nccl, cuda, group, report), way, members)
    report.doing("the other nodes")
    ranks.gathered(0)
    cuda.close()
    if played:
        report.facts.update(taken(way, report.log.lines() if report.log is not None else []))
    else:
        report.facts["no_way"] = "one node" if way == "nic" else "one GPU on the node"


def play(report: rank_program.Rank, team: Communicator, way: str, hosts: Sequence[str]) -> None:
    """Form a communicator, measure in it, and end it."""
    team.join()
    room = min(team.ranks.gathered(team.cuda.free_bytes())) // 4  # two buffers, and as much again left free
    sweep = Sweep(report, Mover(team), team.numpy)
    sweep.way = way
    sweep.peer = next((host for host in hosts if host != hosts[0]), "")
    sweep.kind = "" if sweep.peer else f"{team.size} x {report.facts['gpu']}"[: nccl_log.MOST_TEXT]
    sweep.go(room)
    report.doing("ncclCommDestroy")
    team.disband()


def taken(way: str, lines: Sequence[str]) -> dict[str, str]:
    """Return the ways that NCCL's log names, and those of them that are not the wanted one."""
    told: dict[str, Any] = nccl_log.told(lines)
    took = list(told.get("ways", ()))
    other = [name for name in took if not name.startswith(WAYS[way].begins)]
    return {"way": way, "took": ", ".join(took), "took_other": ", ".join(other)}
