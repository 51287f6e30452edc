"""Measure NCCL's collectives over message sizes, as ``sweep_checks.py`` says, and watch the GPUs' clocks meanwhile."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

import gpu_state
import measure
import nccl_log
import sweep_checks
from nccl_library import FLOAT32, FLOAT32_BYTES, SUM, Communicator, local_rank
from pair_checks import tournament

if TYPE_CHECKING:
    import rank_program
    from nccl_library import Cuda, Mpi, Nccl, Store


# Measure the time and the bus bandwidth of NCCL's operations as nccl-tests does.

SIZES = (4096, 1 << 20, 1 << 26, 1 << 29)  # bytes, as nccl-tests counts them
SHARED_SIZES = (4096, 1 << 20)
REPETITIONS = 5
REPETITION_S = 0.05  # a repetition launches as many operations as fit into this
MOST_LAUNCHES = 50
SLOWEST_S = 2.0  # an operation that is expected to take longer is not measured
MEASURE_SHARE = 0.75  # of the deadline


def bus_factor(operation: str, size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    Algorithm bandwidth is bytes over seconds. The bytes of allgather, reduce-scatter and all-to-all are those of the
    whole array (NVIDIA/nccl-tests, doc/PERFORMANCE.md; send and receive: src/sendrecv.cu). With one rank nothing
    crosses a bus, so the caller leaves the figure out.
    """
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in {"allgather", "reduce_scatter", "alltoall"}:
        return (size - 1) / size
    return 1.0


def size_words(size_bytes: int) -> str:
    """Return 4KiB, 64MiB or 1GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes}B"


def launches(seconds_per_operation: float) -> int:
    """Return how many operations make one repetition."""
    return max(1, min(MOST_LAUNCHES, int(REPETITION_S / max(seconds_per_operation, 1e-6))))


class Timing:
    """Time every operation at every size."""

    def __init__(self, team: Communicator) -> None:
        self.team, self.numpy, self.nccl, self.cuda = team, team.numpy, team.nccl, team.cuda
        self.ranks, self.report, self.rank, self.size = team.ranks, team.report, team.rank, team.size

    def operations(self, size_bytes: int) -> dict[str, Callable[[], None]]:
        """Return the operations to measure: f4 values, out of place, ``size_bytes`` as nccl-tests counts them."""
        nccl, cuda, comm, stream = self.nccl, self.cuda, self.team.handle, self.cuda.stream
        count = size_bytes // FLOAT32_BYTES
        share = max(1, count // self.size)
        send, receive = cuda.send, cuda.receive
        following, preceding = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return {
            "allreduce": lambda: nccl("ncclAllReduce", send, receive, count, FLOAT32, SUM, comm, stream),
            "broadcast": lambda: nccl("ncclBroadcast", send, receive, count, FLOAT32, 0, comm, stream),
            "reduce": lambda: nccl("ncclReduce", send, receive, count, FLOAT32, SUM, 0, comm, stream),
            "allgather": lambda: nccl("ncclAllGather", send, receive, share, FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl("ncclReduceScatter", send, receive, share, FLOAT32, SUM, comm, stream),
            "send_receive": lambda: self.team.exchange(count, FLOAT32, following, preceding),
        }

    def measure(self, until: float, *, shared: bool) -> None:
        """Measure every operation and size; the first rank notes the figures and skips what would take too long.

        A repetition launches several operations one after the other and waits for the last. Its time is the average
        over the ranks, as in nccl-tests. The figure is the median of the repetitions. The calls come from Python, which
        adds a few microseconds to the smallest size. Ranks that share a GPU have no bus between them, so only times are
        noted.
        """
        with_bus = self.size > 1 and not shared
        last: dict[str, float] = {}  # the seconds that the last size took
        room = min(self.ranks.gathered(self.cuda.free_bytes())) // 4  # two buffers, and as much again left free
        sizes = [size for size in (SHARED_SIZES if shared else SIZES) if size <= room]
        for index, size_bytes in enumerate(sizes):
            growth = size_bytes / sizes[index - 1] if index else 0.0
            self.cuda.reserve(max(size_bytes, FLOAT32_BYTES * self.size))
            for name, operation in self.operations(size_bytes).items():
                expected_s = last.get(name, SLOWEST_S if index else 0.0) * growth
                if not self.ranks.first_says(expected_s < SLOWEST_S and time.monotonic() < until):
                    continue
                self.report.doing(f"measuring {name} of {size_bytes} bytes")
                seconds = self._seconds(operation)
                last[name] = seconds
                if self.rank == 0:
                    figures = self.report.figures
                    figures[f"{name}_{size_words(size_bytes)}_us"] = round(seconds * 1e6, 2)
                    if with_bus:
                        bus = size_bytes / seconds * bus_factor(name, self.size)
                        figures[f"{name}_{size_words(size_bytes)}_bus_bytes_per_s"] = float(f"{bus:.4g}")

    def _seconds(self, operation: Callable[[], None]) -> float:
        """Return the median time of one operation in seconds."""
        operation()  # connections are made at the first use
        self.team.wait()
        first = max(self.ranks.gathered(self._timed(operation, 1)))
        count = launches(first)
        repetitions = [self._timed(operation, count) / count for _unused in range(REPETITIONS)]
        everybody = self.ranks.gathered(repetitions)
        return statistics.median(statistics.fmean(times[turn] for times in everybody) for turn in range(REPETITIONS))

    def _timed(self, operation: Callable[[], None], count: int) -> float:
        self.ranks.gathered(0)
        operation()  # the ranks meet here more closely than at any barrier of the hosts
        self.team.wait()
        began = time.perf_counter()
        for _unused in range(count):
            operation()
        self.team.wait()
        return time.perf_counter() - began


class Mover:
    """What a sweep needs: NCCL's collectives on arrays in the GPU's memory."""

    name = "nccl"

    def __init__(self, team: Communicator) -> None:
        self.team, self.rank, self.size = team, team.rank, team.size
        self.run: Callable[[], None] = team.wait
        self.given: Any = None
        self.room = 0

    def gathered(self, value: float) -> list[float]:
        return [float(number) for number in self.team.ranks.gathered(value)]

    def first_says(self, value: float) -> float:
        """Return the first rank's number."""
        return float(self.team.ranks.first_says(value))

    def meet(self) -> None:
        """Wait for all ranks: first on the hosts, then on the GPUs, by an operation that is not timed."""
        self.team.ranks.gathered(0)
        self.run()
        self.team.wait()

    def wait(self) -> None:
        """Wait until all that was started is done."""
        self.team.wait()

    def load(self, point: sweep_checks.Point, given: Any, room: int) -> None:
        """Make :attr:`run` an operation on an array, with a buffer for so many values to come."""
        team = self.team
        blank = team.numpy.full(room, sweep_checks.BLANK, dtype="f4")
        team.cuda.reserve(max(given.nbytes, blank.nbytes))
        team.cuda.upload(team.cuda.send, given)
        team.cuda.upload(team.cuda.receive, blank)
        self.given, self.room = given, room
        count = len(given) // self.size if point.operation in {"reduce_scatter", "alltoall"} else len(given)
        self.run = self._operation(point.operation, count)

    def _operation(self, name: str, count: int) -> Callable[[], None]:
        """Return a call; ``count`` is what NCCL means by it: values of an array, or of a rank's share of it."""
        nccl, cuda, comm = self.team.nccl, self.team.cuda, self.team.handle
        send, receive, stream, root = cuda.send, cuda.receive, cuda.stream, sweep_checks.ROOT
        return {
            "allreduce": lambda: nccl("ncclAllReduce", send, receive, count, FLOAT32, SUM, comm, stream),
            "broadcast": lambda: nccl("ncclBroadcast", send, receive, count, FLOAT32, root, comm, stream),
            "allgather": lambda: nccl("ncclAllGather", send, receive, count, FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl("ncclReduceScatter", send, receive, count, FLOAT32, SUM, comm, stream),
            "alltoall": lambda: self._alltoall(count),
        }[name]

    def _alltoall(self, count: int) -> None:
        """Send and receive in one group, as nccl-tests does: ncclAlltoAll is younger than what clusters have."""
        nccl, cuda = self.team.nccl, self.team.cuda
        nccl("ncclGroupStart")
        for rank in range(self.size):
            place = rank * count * FLOAT32_BYTES
            nccl("ncclSend", cuda.send + place, count, FLOAT32, rank, self.team.handle, cuda.stream)
            nccl("ncclRecv", cuda.receive + place, count, FLOAT32, rank, self.team.handle, cuda.stream)
        nccl("ncclGroupEnd")

    def _downloaded(self, address: int, count: int) -> Any:
        array = self.team.numpy.empty(count, dtype="f4")
        self.team.cuda.download(array, address)
        return array

    def sent(self) -> Any:
        """Return what the send buffer holds."""
        return self._downloaded(self.team.cuda.send, len(self.given))

    def received(self) -> Any:
        return self._downloaded(self.team.cuda.receive, self.room)


def sweep(report: rank_program.Rank, team: Communicator) -> None:
    """Measure collectives over message sizes, and watch the GPUs of the node at it."""
    team.join()
    watch = gpu_state.Watch() if local_rank() == 0 else None
    if watch:
        watch.start()
    room = min(team.ranks.gathered(team.cuda.free_bytes())) // 4  # two buffers, and as much again left free
    sweep_checks.Sweep(report, Mover(team), team.numpy).go(room)
    if watch:
        watch.stop()
        gpu_state.report(report, watch.looks, watch.lost)
        for index, values in gpu_state.clocks(watch.looks).items():
            measure.say(
                report.voice, values, quantity="gpu_clock", unit="Hz", better="higher", operation=f"gpu {index}"
            )
        if watch.problem:
            report.facts["gpu_state"] = watch.problem
    report.doing("ncclCommDestroy")
    team.leave()


# Measure an allreduce over one way of NCCL alone: NVLink, PCIe with main memory, or the network.
#
# NCCL reads these variables once in a process, so each way is a job of its own: ``nccl_nvlink``, ``nccl_pcie`` and
# ``nccl_nic``. NVLink and PCIe are inside a node, so all nodes measure at once, each its own GPUs. The network is
# between nodes, so pairs of nodes meet in the rounds of a tournament, with all of their GPUs and so with all of their
# ports. ``nccl_pairs`` lets them meet in the same way and leaves the ways to NCCL.
#
# NCCL's log tells which way the connections took. A rank with another way than the wanted one reports it, since then
# the figure is not about this way.

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
    "pairs": Way("the ways that NCCL chooses", {}, ("",)),  # each way begins so
}
BETWEEN_NODES = ("nic", "pairs")
CHECKS = tuple(f"{BEGIN}{way}" for way in WAYS)


def rounds(way: str, hosts: Sequence[str]) -> list[list[list[int]]]:
    """Return the groups of ranks that measure at the same time, round by round.

    Args:
        way: of :data:`WAYS`.
        hosts: the node of each rank.
    """
    nodes = list(dict.fromkeys(hosts))
    ranks = [[rank for rank, host in enumerate(hosts) if host == node] for node in nodes]
    if way not in BETWEEN_NODES:
        return [[group for group in ranks if len(group) > 1]]
    return [[ranks[a] + ranks[b] for a, b in pairs] for pairs in tournament(len(nodes), MOST_ROUNDS)]


class Sweep(sweep_checks.Sweep):
    """A sweep whose figures are the bus bandwidth of one way, of a node or of two nodes."""

    way, kind, peer = "", "", ""

    def tell(self, point: sweep_checks.Point, samples: Sequence[float]) -> None:
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
        report.facts["no_way"] = "one node" if way in BETWEEN_NODES else "one GPU on the node"


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
