"""Measure NCCL's collectives over message sizes, as ``sweep_checks.py`` says, and watch the GPUs' clocks meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import gpu_state
import measure
import sweep_checks
from nccl_library import FLOAT32, FLOAT32_BYTES, SUM
from rank_exchange import local_rank

if TYPE_CHECKING:
    import rank_program
    from nccl_communicator import Communicator


class Mover:
    """What a sweep needs: NCCL's collectives on arrays in the GPU's memory."""

    name = "nccl"

    def __init__(self, team: Communicator) -> None:
        """Take the ranks of a communicator."""
        self.team, self.rank, self.size = team, team.rank, team.size
        self.run: Callable[[], None] = team.wait
        self.given: Any = None
        self.room = 0

    def gathered(self, value: float) -> list[float]:
        """Return the numbers of all ranks."""
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
        """Return what arrived."""
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
        gpu_state.report(report, watch.looks)
        for index, values in gpu_state.clocks(watch.looks).items():
            measure.say(
                report.voice, values, quantity="gpu_clock", unit="Hz", better="higher", operation=f"gpu {index}"
            )
        if watch.problem:
            report.facts["gpu_state"] = watch.problem
    report.doing("ncclCommDestroy")
    team.leave()
