"""Prove that torchrun trains over the cluster: all ranks train the same model as a single process.

mpirun starts one process per node. That process asks the first node for a free port and becomes torchrun's parent. It
speaks for the node's ranks until torchrun has started them. Each rank is this program again, which its environment
tells it. ``rank_program.py`` explains the lines that they print; ranks are torch's.

Where no mpirun starts it, as in the pods of a PyTorchJob, ``--node`` and ``--port`` say what MPI would.

The model is in ``language_model.py``. Rank 0 computes the result of a single process when all are done.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import job_supervisor
import language_model
import rank_program

if TYPE_CHECKING:
    import argparse
    from typing import Mapping

CHECKS = ("torchrun",)
# Names the socket of the node's process, to which its workers say that they speak for themselves. The program's options
# stand in it too: torchrun takes options that come behind the program's name for its own.
HANDOVER = "CLUSTERCTL_TORCH_WORKER"
CORES = "CLUSTERCTL_CPUS"  # the cores of each of the node's workers, between '@'
# torchrun waits so long for its workers before it kills them. Older ones take no such option, and wait for 30 seconds.
SHUTDOWN = "--shutdown-timeout"
SHUTDOWN_S = 5

COUNTS = (1, 1001, 40009)


# --- one process a node: from mpirun to torchrun ----------------------------------------------------------------------


def reserved_port() -> int:
    """Return a free port, which the kernel gives to no other process while this one lives, even after an exec.

    The socket is left open on purpose.
    """
    holder = job_supervisor.reserved_port()
    holder.set_inheritable(True)
    port = int(holder.getsockname()[1])
    holder.detach()
    return port


def agreed_port(node: int, board: rank_program.Board) -> int:
    """Return the port that the first node has reserved."""
    board.step = "MPI_Init of the node's own process"
    from mpi4py import MPI  # noqa: PLC0415 - the import calls MPI_Init

    board.step = "the broadcast of torchrun's port"
    port = int(MPI.COMM_WORLD.bcast(reserved_port() if node == 0 else None, 0))
    board.step = "MPI_Finalize of the node's own process"
    MPI.Finalize()
    return port


def takes(option: str) -> bool:
    """Tell whether the torchrun of this PyTorch knows an option, by its source: an import would cost seconds."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    try:
        return f'"{option}"' in (Path(torch.origin).parent / "distributed" / "run.py").read_text(encoding="utf-8")
    except OSError:
        return False


def become_torchrun(arguments: argparse.Namespace, node: int, board: rank_program.Board) -> None:
    """Agree on a port with the other nodes, then replace this process by torchrun."""
    port = arguments.port or agreed_port(node, board)
    board.step = "torchrun, which has not started its workers"
    torchrun = Path(sys.executable).with_name("torchrun")
    words = [str(torchrun)] if torchrun.exists() else [sys.executable, "-m", "torch.distributed.run"]
    os.execv(  # noqa: S606 - no shell is wanted
        words[0],
        [
            *words,
            f"--nnodes={len(arguments.slots)}",
            f"--node_rank={node}",
            f"--nproc_per_node={arguments.slots[node]}",
            f"--master_addr={arguments.first_node}",
            f"--master_port={port}",
            "--max_restarts=0",
            f"--log_dir={os.devnull}",
            "--monitor_interval=0.2",
            *([f"{SHUTDOWN}={SHUTDOWN_S}"] if takes(SHUTDOWN) else []),
            str(Path(__file__).resolve()),
        ],
    )


class Node:
    """The node's own process: torchrun's parent, which speaks for ranks until they are up."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Learn from mpirun or an option which node this is, and from that which ranks torchrun will start on it."""
        self.arguments = arguments
        self.number = rank_program.Voice(arguments.check).rank if arguments.node is None else arguments.node
        first, total = sum(arguments.slots[: self.number]), sum(arguments.slots)
        mine = range(first, first + arguments.slots[self.number])
        self.voices = {rank: rank_program.Voice(arguments.check, rank, total) for rank in mine}
        self.dumb = dict(self.voices)  # those that torchrun has not started yet
        self.board = rank_program.Board()
        self.ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ears.settimeout(0)
        self.ears.bind(f"\0clusterctl-{os.getpid()}-{time.monotonic_ns()}")  # abstract: nothing of it stays behind
        os.environ[HANDOVER] = json.dumps({"socket": self.ears.getsockname().decode(), "options": sys.argv[1:]})

    def run(self) -> int:
        """Start torchrun and stay until it has ended."""
        self.board.step = "the start of the program"
        for voice in self.dumb.values():
            voice.say("started", pid=os.getpid())
        rank_program.be_modest()
        child = os.fork()
        signal.alarm(int(self.arguments.deadline + rank_program.ALARM_GRACE_S))  # in both, and it survives the exec
        if not child:
            rank_program.end_with_parent()
            become_torchrun(self.arguments, self.number, self.board)
        beat_at = time.monotonic() + self.arguments.heartbeat
        while True:
            self.listen()
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() >= beat_at:
                beat_at += self.arguments.heartbeat
                if not rank_program.is_stopped(child):
                    for voice in self.dumb.values():
                        voice.beat(self.board.step)
            time.sleep(rank_program.POLL_S)
        self.listen()
        if os.WIFSIGNALED(status):  # it took its workers with it
            self.board.step, self.dumb = "torchrun", self.voices
        for voice in self.dumb.values():
            rank_program.farewell(voice, status, self.board)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def listen(self) -> None:
        """Stop speaking for the workers that have begun to do so themselves."""
        while True:
            try:
                self.dumb.pop(int(self.ears.recv(32)), None)
            except BlockingIOError:
                return


# --- one worker -------------------------------------------------------------------------------------------------------


def take_cores(environment: Mapping[str, str]) -> None:
    """Keep this worker on the cores that the launch line gave to it, between those of the node's other workers."""
    given = environment.get(CORES, "").split("@")
    local = int(environment["LOCAL_RANK"])
    if local < len(given) and given[local].strip("-"):
        spans = [word.partition("-") for word in given[local].split(",")]
        os.sched_setaffinity(
            0, {one for first, _unused, last in spans for one in range(int(first), int(last or first) + 1)}
        )


def collectives(rank: rank_program.Rank, torch: Any, device: Any) -> None:
    """Sums with known answers, so that a wrong loss can be told from a wrong sum."""
    for kind in (torch.float32, torch.float64, torch.int64):
        for count in COUNTS:
            what = rank.doing(f"all_reduce sum {str(kind).removeprefix('torch.')}[{count}]")
            values = torch.arange(count, device=device) % 7 + 1
            given = (values * (rank.rank + 1)).to(kind)
            torch.distributed.all_reduce(given)
            wanted = (values * (rank.size * (rank.size + 1) // 2)).to(kind)
            got, sums = given.cpu().numpy(), wanted.cpu().numpy()
            rank.findings.array(what, got, sums, shares=rank_program.shares_of_seven(rank.size))


def work(rank: rank_program.Rank) -> NoReturn:
    used: list[Any] = []
    rank.libraries = ("libnccl",)

    def check() -> None:
        rank.doing("import torch")
        import torch  # noqa: PLC0415 - "started" is said before anything that takes time or can fail

        torch.set_num_threads(1)
        backend = rank.arguments.backend
        place = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        device = rank_program.take_gpu(torch, *place) if backend == "nccl" else torch.device("cpu")
        rank.doing(f"init_process_group of {backend}")
        limit = timedelta(seconds=rank.arguments.deadline + rank_program.ALARM_GRACE_S)  # the job's deadline is earlier
        torch.distributed.init_process_group(backend, timeout=limit)
        used.append(torch.distributed)
        rank.begin()
        rank.facts = {"torch": torch.__version__, "backend": torch.distributed.get_backend(), "device": str(device)}
        collectives(rank, torch, device)
        trainer = language_model.Trainer(torch, device, rank.size, rank.doing)
        model = trainer.model()
        rank.doing("DistributedDataParallel")
        together = torch.nn.parallel.DistributedDataParallel(model)
        part, who = (rank.rank, rank.size), f"{rank.size} processes"
        course = trainer.train(together, trainer.optimizer(model), part, rank.arguments.steps, who)
        rank.figures["training_s"] = round(sum(course.seconds), 6)
        compare(rank, torch, trainer, model, course)

    ended = rank.attempt(check)
    if not ended:
        os._exit(1)  # torchrun ends the others; an orderly end would wait for them
    rank.doing("the barrier at the end")
    used[0].barrier()  # torchrun ends the others as soon as one leaves with an error; all have spoken now
    used[0].destroy_process_group()
    os._exit(
        rank.code
    )  # all is printed and closed; a normal exit takes thousands of modules apart, which costs each rank a second


def compare(
    rank: rank_program.Rank, torch: Any, trainer: language_model.Trainer, model: Any, course: language_model.Course
) -> None:
    """Compare losses and parameters with those of a single process, which rank 0 is in the meantime."""
    distributed, device, steps = torch.distributed, trainer.device, rank.arguments.steps
    tolerance = rank.arguments.tolerance
    rank.doing("the mean of all losses, and the slowest rank's times")
    losses = torch.tensor(course.losses, dtype=torch.float64, device=device)
    distributed.all_reduce(losses)
    losses /= rank.size
    slowest = torch.tensor(course.steady, dtype=torch.float64, device=device)
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    alone = trainer.model()
    reference = torch.zeros_like(losses)
    gradients = torch.zeros(rank.size, dtype=torch.float64, device=device)
    if rank.rank == 0:
        for part in range(rank.size):
            gradients[part] = rank_program.gradient_size(*trainer.first_gradient(part))
        single = trainer.train(alone, trainer.optimizer(alone), (0, 1), steps, "one process")
        reference = torch.tensor(single.losses, dtype=torch.float64, device=device)
        language_model.say_times(rank, rank.facts["backend"], slowest.tolist(), single.steady)
    rank.doing("the broadcast of what a single process gets")
    distributed.broadcast(gradients, 0)
    mine = rank_program.gradient_size(*trainer.first_gradient(rank.rank))
    rank.findings.near(rank_program.OWN_GRADIENT, mine, gradients[rank.rank].item(), tolerance)
    distributed.broadcast(reference, 0)
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in alone.parameters()])
    distributed.broadcast(parameters, 0)
    for step in language_model.told_steps(steps):
        rank.findings.near(f"loss after {step} steps", losses[step].item(), reference[step].item(), tolerance)
    if steps >= language_model.LEARNT_STEPS:
        rank.findings.value("a loss that falls", bool(reference[-1] < reference[0]), expected=True)
    mine = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    furthest = float((mine - parameters).abs().max() / parameters.abs().max())
    rank.findings.compared += parameters.numel() - 1
    rank.findings.near(f"largest of {parameters.numel()} parameters after {steps} steps", 1 + furthest, 1, tolerance)
    rank.figures |= {
        "loss": losses[-1].item(),
        "single_process_loss": reference[-1].item(),
        "first_loss": reference[0].item(),
        "tokens": trainer.batch,
    }


def main() -> int:
    """Be a node's own process or one worker."""
    parser = rank_program.parser("Prove that torchrun trains over the cluster. Started by mpirun, one a node.", CHECKS)
    parser.add_argument("--slots", required=True, type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--first-node", required=True, help="name under which the others find it")
    parser.add_argument("--node", type=int, help="which node this is; without it, mpirun says so")
    parser.add_argument("--port", type=int, help="the port on the first node; without it, the nodes agree by MPI")
    language_model.add_options(parser)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    if HANDOVER not in os.environ:
        return Node(parser.parse_args()).run()
    rank_program.end_with_parent()  # a torchrun that is killed cannot end its workers, which have sessions of their own
    take_cores(os.environ)
    handover = json.loads(os.environ[HANDOVER])
    arguments = parser.parse_args(handover["options"])
    voice = rank_program.Voice(arguments.check, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.sendto(str(voice.rank).encode(), handover["socket"])
    return rank_program.run(arguments, work, voice, nccl=arguments.backend == "nccl", counts=True)


if __name__ == "__main__":
    sys.exit(main())
