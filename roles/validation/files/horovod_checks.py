"""Prove that Horovod with PyTorch gives right answers, and that all ranks train the same model as one process.

mpirun starts one process per rank; ``rank_program.py`` explains the lines that they print.

``horovod``   Collectives with known answers. Sums are small integers, exact in every type used. An average is a sum
              times the number nearest to 1/ranks, so it may be off by two roundings. Rank 0 makes Horovod write its
              timeline, which names the carrier of every tensor (``MPI_ALLREDUCE``, ``NCCL_ALLREDUCE``, ...).
``horovod_sweep``  Collectives over message sizes, as ``sweep_checks.py`` measures them. They run on GPUs where every
              rank has one, and otherwise in main memory.
``training``  A character model of generated text. Rank 0 trains it alone while the others wait. Then all ranks train it
              again, each with a part of each batch. In float64 the two differ only by the order of additions.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import sys
from typing import Any, Callable, Iterator, NoReturn

import language_model
import measure
import rank_program
import sweep_checks

CHECKS = ("horovod", "horovod_sweep", "training")
KINDS = ("int32", "int64", "float32", "float64")
COUNTS = (1, 3, 1001, 40009)  # one value, odd ones, and one beyond every eager limit
AVERAGE_TOLERANCE = {"float32": 2.4e-7, "float64": 4.5e-16}  # two units in the last place
LIBRARY_VERSION_LENGTH = 1024
CARRIER = re.compile(r"(?:MPI|NCCL|GLOO|CCL|DDL)_[A-Z_]+")
FUSED = "MEMCPY_IN_FUSION_BUFFER"


class Bench:
    """What both checks work with: torch, Horovod, the devices, and who this rank is."""

    def __init__(self, rank: rank_program.Rank) -> None:
        """Import and initialise; this takes seconds."""
        rank.doing("import torch")
        import torch  # noqa: PLC0415 - "started" is said before anything that takes time or can fail

        torch.set_num_threads(1)
        rank.doing("import horovod.torch")
        import horovod  # noqa: PLC0415
        import horovod.torch as hvd  # noqa: PLC0415

        # The first optimizer imports half of torch. From hvd.init on, the background threads of all ranks poll for
        # messages, and where ranks outnumber the cores, an import would take its turn with them.
        torch.optim.SGD([torch.zeros(1)], lr=1.0)
        rank.doing("hvd.init")
        hvd.init()
        self.torch, self.hvd, self.findings, self.doing = torch, hvd, rank.findings, rank.doing
        self.rank, self.size = hvd.rank(), hvd.size()
        rank.library_version = mpi_version()
        rank.findings.value("rank and number of ranks", (self.rank, self.size), (rank.rank, rank.size))
        rank.facts = {"horovod": horovod.__version__, "torch": torch.__version__}
        self.devices = [torch.device("cpu")]
        if "cuda" in rank.arguments.devices:
            self.devices.append(rank_program.take_gpu(torch, hvd.local_rank(), hvd.local_size()))
            rank.facts["gpu"] = torch.cuda.get_device_name()

    def values(self, count: int) -> Any:
        """Return whole numbers from 1 to 7 that differ by position."""
        return self.torch.arange(count) % 7 + 1

    def compare(self, what: str, got: Any, expected: Any, tolerance: float = 0.0, **more: Any) -> None:
        """Compare two tensors value by value; ``more`` tells who gave what."""
        got, expected = (tensor.detach().cpu().numpy() for tensor in (got, expected))
        self.findings.array(what, got, expected, tolerance=tolerance, **more)

    def compare_sum(self, what: str, got: Any, values: Any, kind: Any) -> None:
        """Compare a sum of which each rank gave the values times its number."""
        expected = (values * (self.size * (self.size + 1) // 2)).to(kind)
        self.compare(what, got, expected, shares=rank_program.shares_of_seven(self.size))


def mpi_version() -> str:
    """Return what the mapped libmpi says of itself."""
    text = ctypes.create_string_buffer(LIBRARY_VERSION_LENGTH)
    path = rank_program.mapped_library("libmpi")
    if path:
        ctypes.CDLL(path).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
    return text.value.decode("utf-8", "replace").strip()


# --- horovod ----------------------------------------------------------------------------------------------------------


def collectives(rank: rank_program.Rank) -> None:
    """Run every operation on every device, then read from the timeline what carried them."""
    timeline = os.memfd_create("timeline", 0)  # a file without a name: nothing of it stays behind
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")  # milliseconds; answers count here, and polling takes the cores
    os.environ["HOROVOD_TIMELINE"] = f"/proc/{os.getpid()}/fd/{timeline}"  # rank 0 alone writes to its own
    bench = Bench(rank)
    rank.begin()
    for device in bench.devices:
        sums(bench, device)
        averages(bench, device)
        fused(bench, device)
        broadcasts(bench, device)
        gathers(bench, device)
    model_from_rank_0(bench)
    objects(bench)
    bench.doing("the end of the timeline")
    bench.hvd.stop_timeline()
    if bench.rank == 0:
        with os.fdopen(timeline, "rb") as file:
            file.seek(0)
            carriers = carried(json.loads(file.read()))
        rank.facts |= {f"{kind}_operations": " ".join(sorted(found)) for kind, found in carriers.items()}
        if bench.size > 1:
            bench.findings.value("tensors of a group go through one buffer", FUSED in carriers["cpu"], expected=True)


def carried(events: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return the operations that carried the tensors of each kind of device, by the first word of the tensor's name."""
    tensors = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    found: dict[str, set[str]] = {"cpu": set()}
    for event in events:
        kind = re.search(r"(?:^|\.)(cpu|cuda)\.", tensors.get(event.get("pid"), ""))
        name = event.get("name", "")
        if kind and (CARRIER.fullmatch(name) or name == FUSED):
            found.setdefault(kind[1], set()).add(name)
    return found


def cases(bench: Bench, device: Any, operation: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield a name in words, one for Horovod, the type and the values for each type and size."""
    for kind in kinds:
        for count in COUNTS:
            what = bench.doing(f"{operation} {kind}[{count}] on {device.type}")
            yield what, f"{device.type}.{operation}.{kind}.{count}", getattr(bench.torch, kind), bench.values(count)


def sums(bench: Bench, device: Any) -> None:
    """The numbers of all ranks, summed one tensor at a time."""
    for what, name, kind, values in cases(bench, device, "sum", KINDS):
        given = (values * (bench.rank + 1)).to(kind).to(device)
        got = bench.hvd.allreduce(given, op=bench.hvd.Sum, name=name)
        bench.compare_sum(what, got, values, kind)


def averages(bench: Bench, device: Any) -> None:
    """The mean of all ranks' numbers."""
    for what, name, kind, values in cases(bench, device, "average", tuple(AVERAGE_TOLERANCE)):
        given = (values * 2 * (bench.rank + 1)).to(kind).to(device)
        got = bench.hvd.allreduce(given, op=bench.hvd.Average, name=name)
        wanted = (values * (bench.size + 1)).to(kind)
        bench.compare(what, got, wanted, AVERAGE_TOLERANCE[str(kind).rpartition(".")[2]])


def fused(bench: Bench, device: Any) -> None:
    """Many tensors of one type in one group, which travel together."""
    kind = bench.torch.float32
    parts = [bench.values(count) for count in (1, 3, 7, 1001, 5)]
    what = bench.doing(f"sum of a group of {len(parts)} tensors on {device.type}")
    given = [(values * (bench.rank + 1)).to(kind).to(device) for values in parts]
    for number, got in enumerate(bench.hvd.grouped_allreduce(given, op=bench.hvd.Sum, name=f"{device.type}.group")):
        bench.compare_sum(f"{what}, tensor {number}", got, parts[number], kind)


def broadcasts(bench: Bench, device: Any) -> None:
    """One rank's numbers reach all ranks, from the first and from the last rank."""
    for root in sorted({0, bench.size - 1}):
        for what, name, kind, values in cases(bench, device, f"broadcast from rank {root}", KINDS):
            given = (values * (bench.rank + 3)).to(kind).to(device)
            bench.compare(what, bench.hvd.broadcast(given, root, name=name), (values * (root + 3)).to(kind))


def gathers(bench: Bench, device: Any) -> None:
    """The rows of all ranks in the order of ranks, unequal in number."""

    def rows(rank: int, kind: Any) -> Any:
        return (bench.values(4 * (rank % 3 + 1)) * (rank + 1)).reshape(-1, 4).to(kind)

    for kind in KINDS:
        what = bench.doing(f"allgather of unequal {kind} rows on {device.type}")
        exact = getattr(bench.torch, kind)
        got = bench.hvd.allgather(rows(bench.rank, exact).to(device), name=f"{device.type}.allgather.{kind}")
        every = [rows(rank, exact) for rank in range(bench.size)]
        bench.compare(what, got, bench.torch.cat(every), parts=[part.numel() for part in every])


def model_from_rank_0(bench: Bench) -> None:
    """A model and an optimizer that differ between ranks become rank 0's, as at the start of any training.

    They hold whole numbers that differ by tensor, position and rank; what a rank computes, its processor rounds.
    """
    torch, device = bench.torch, bench.devices[-1]
    states = ("exp_avg", "exp_avg_sq")

    def known(number: int, rank: int, shape: Any) -> Any:
        return ((bench.values(math.prod(shape)) + 10 * number) * (rank + 1)).reshape(shape)

    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.0 ** -(bench.rank % 8 + 3))
    variables = model.state_dict()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # so that there is a state
        for number, tensor in enumerate(variables.values()):
            tensor.copy_(known(number, bench.rank, tensor.shape))
        for number, parameter in enumerate(model.parameters()):
            for state in states:
                optimizer.state[parameter][state].copy_(known(number, bench.rank + len(state), parameter.shape))
    bench.doing("broadcast of a model's variables from rank 0")
    bench.hvd.broadcast_parameters(variables, root_rank=0)
    for number, (name, tensor) in enumerate(variables.items()):
        bench.compare(f"variable {name} from rank 0", tensor, known(number, 0, tensor.shape).to(tensor.dtype))
    bench.doing("broadcast of an optimizer's state from rank 0")
    bench.hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    bench.findings.value("learning rate from rank 0", optimizer.param_groups[0]["lr"], 0.125)
    for number, parameter in enumerate(model.parameters()):
        for state in states:
            wanted = known(number, len(state), parameter.shape).to(parameter.dtype)
            bench.compare(f"{state} {number} from rank 0", optimizer.state[parameter][state], wanted)


def objects(bench: Bench) -> None:
    what = bench.doing("broadcast of an object from rank 0")
    bench.findings.value(what, bench.hvd.broadcast_object({"rank": bench.rank, "text": "Grüße"})["rank"], 0)
    what = bench.doing("allgather of objects")
    got = bench.hvd.allgather_object([bench.rank] * (bench.rank % 3))
    bench.findings.value(what, got, [[rank] * (rank % 3) for rank in range(bench.size)])


# --- horovod_sweep ---------------------------------------------------------------------------------------------------


class Mover:
    """What a sweep needs: Horovod's collectives on tensors of one device."""

    name = "horovod"

    def __init__(self, bench: Bench) -> None:
        """Take all ranks, and the last device: the GPU where there is one."""
        self.bench, self.hvd, self.torch, self.device = bench, bench.hvd, bench.torch, bench.devices[-1]
        self.rank, self.size = bench.rank, bench.size
        younger = {"reduce_scatter": "reducescatter", "alltoall": "alltoall"}
        self.offers = [name for name in sweep_checks.OPERATIONS if hasattr(self.hvd, younger.get(name, name))]
        self.run: Callable[[], None] = self.wait
        self.given: Any = None
        self.got: Any = None

    def gathered(self, value: float) -> list[float]:
        mine = self.torch.tensor([value], dtype=self.torch.float64)
        return [float(number) for number in self.hvd.allgather(mine, name="clusterctl.gathered")]

    def first_says(self, value: float) -> float:
        """Return the first rank's number."""
        mine = self.torch.tensor([value], dtype=self.torch.float64)
        return float(self.hvd.broadcast(mine, 0, name="clusterctl.first_says"))

    def meet(self) -> None:
        self.gathered(0.0)

    def wait(self) -> None:
        """Wait until all that was started is done."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def load(self, point: sweep_checks.Point, given: Any, room: int) -> None:  # noqa: ARG002 - Horovod makes room
        """Make :attr:`run` an operation on an array."""
        hvd, root = self.hvd, sweep_checks.ROOT
        tensor = self.torch.from_numpy(given.copy()).to(self.device)
        name = f"clusterctl.{point.operation}.{point.size_bytes}"
        call: Callable[[], Any] = {
            "allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum, name=name),
            "broadcast": lambda: hvd.broadcast(tensor, root, name=name),
            "allgather": lambda: hvd.allgather(tensor, name=name),
            "reduce_scatter": lambda: hvd.reducescatter(tensor, op=hvd.Sum, name=name),
            "alltoall": lambda: hvd.alltoall(tensor, name=name),
        }[point.operation]

        def run() -> None:
            self.got = call()

        self.given, self.run = tensor, run

    def sent(self) -> Any:
        """Return what the send buffer holds."""
        return self.given.cpu().numpy()

    def received(self) -> Any:
        return self.got.cpu().numpy()


def sweep(rank: rank_program.Rank) -> None:
    """Measure Horovod's collectives; what they take holds the waiting for its next cycle."""
    bench = Bench(rank)
    rank.begin()
    import numpy as np  # noqa: PLC0415 - see Bench

    mover = Mover(bench)
    rank.facts["device"] = mover.device.type
    local = measure.available_bytes() / bench.hvd.local_size() / sweep_checks.ARRAYS
    sweep_checks.Sweep(rank, mover, np).go(min(mover.gathered(local)))


# --- training ---------------------------------------------------------------------------------------------------------


def training(rank: rank_program.Rank) -> None:
    """Train with one process, then with all, and compare."""
    bench = Bench(rank)
    rank.begin()
    steps, tolerance = rank.arguments.steps, rank.arguments.tolerance
    trainer = language_model.Trainer(bench.torch, bench.devices[-1], bench.size, bench.doing)
    alone: dict[str, Any] = {}
    if bench.rank == 0:
        model = trainer.model()
        untrained = trainer.perplexity(model)
        course = trainer.train(model, trainer.optimizer(model), (0, 1), steps, "one process")
        alone = {"perplexity": trainer.perplexity(model), "untrained": untrained, "losses": course.losses}
        alone["seconds"] = course.steady
        alone["gradients"] = [gradient_size(trainer, number) for number in range(bench.size)]
    bench.doing("the end of the training by one process")
    alone = bench.hvd.broadcast_object(alone, name="alone")

    mine = gradient_size(trainer, bench.rank)
    bench.findings.near(rank_program.OWN_GRADIENT, mine, alone["gradients"][bench.rank], tolerance)
    model = trainer.model()
    optimizer = bench.hvd.DistributedOptimizer(trainer.optimizer(model), named_parameters=model.named_parameters())
    bench.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    course = trainer.train(model, optimizer, (bench.rank, bench.size), steps, f"{bench.size} processes")
    perplexity = trainer.perplexity(model)
    bench.doing("the mean of all losses, and everybody's times")
    mean = bench.torch.tensor(course.losses, dtype=bench.torch.float64)
    losses = bench.hvd.allreduce(mean, op=bench.hvd.Average, name="losses").tolist()
    times = bench.torch.tensor([course.steady], dtype=bench.torch.float64)
    slowest = bench.hvd.allgather(times, name="times").amax(0).tolist()
    for step in language_model.told_steps(steps):
        bench.findings.near(f"loss after {step} steps", losses[step], alone["losses"][step], tolerance)
    bench.findings.near(f"perplexity after {steps} steps", perplexity, alone["perplexity"], tolerance)
    if steps >= language_model.LEARNT_STEPS:
        learnt = perplexity < alone["untrained"] / 2
        bench.findings.value("a perplexity of less than half of the untrained model's", learnt, expected=True)
    rank.figures = {
        "perplexity": perplexity,
        "single_process_perplexity": alone["perplexity"],
        "untrained_perplexity": alone["untrained"],
        "loss": losses[-1],
        "single_process_loss": alone["losses"][-1],
        "tokens": trainer.batch,
    }
    if bench.rank == 0:
        language_model.say_times(rank, "horovod", slowest, alone["seconds"])


def gradient_size(trainer: language_model.Trainer, rank: int) -> float:
    """Return the size of the gradient of a rank's part of the first batch."""
    return rank_program.gradient_size(*trainer.first_gradient(rank))


# --- one rank ---------------------------------------------------------------------------------------------------------

BODIES: dict[str, Callable[[rank_program.Rank], None]] = {
    "horovod": collectives,
    "horovod_sweep": sweep,
    "training": training,
}


def work(rank: rank_program.Rank) -> NoReturn:
    rank.libraries = ("libmpi", "libnccl") if "cuda" in rank.arguments.devices else ("libmpi",)
    if not rank.attempt(lambda: BODIES[rank.arguments.check](rank)):
        os._exit(1)  # mpirun ends the others, who would wait for this rank until the deadline
    import horovod.torch as hvd  # noqa: PLC0415 - it is there, or the check had not come to its end

    rank.doing("the barrier at the end")
    hvd.barrier()  # mpirun ends the other ranks as soon as one leaves with an error; all have spoken now
    rank.doing("hvd.shutdown")
    hvd.shutdown()  # finalizes MPI
    os._exit(
        rank.code
    )  # all is printed and closed; a normal exit takes thousands of modules apart, which costs each rank a second


def main() -> int:
    """Say that this rank is up, then run the check."""
    parser = rank_program.parser("Prove that Horovod with PyTorch gives right answers. Started by mpirun.", CHECKS)
    sweep_checks.add_options(parser)
    language_model.add_options(parser)
    parser.add_argument("--devices", default="cpu", choices=["cpu", "cpu,cuda"], help="where tensors are")
    arguments = parser.parse_args()
    return rank_program.run(arguments, work, nccl="cuda" in arguments.devices, counts=True)


if __name__ == "__main__":
    sys.exit(main())
