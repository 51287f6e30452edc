"""The checks of Horovod with PyTorch: collectives with known answers, and a training that one process repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.analysis import rank_deaths
from clusterctl.model.results import Figure, Measurement, Verdict
from clusterctl.suite import CheckOptions
from clusterctl.suite.model import Count, Share
from clusterctl.validation.checks import base, causes, judging, nccl_diagnostics, rank_output
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport, Unit
    from clusterctl.validation.checks.base import Site


# What a check needs of a node's training stack: PyTorch, GPUs, and an NCCL that lets ranks share a GPU.

_SHARING_NCCL = (2, 30, 3)  # the first NCCL with NCCL_MULTI_RANK_GPU_ENABLE
# The first NCCL whose communicator takes several MIG instances of a GPU, and the CUDA that its driver must run (NCCL's
# user guide, "Creating a Communicator", "Using MIG instances"). Before, it takes two ranks on one GPU for an error.
_MIG_NCCL, _MIG_CUDA = (2, 31), 13


def without_pytorch(stack: NodeStack) -> str:
    """Return why a node cannot run PyTorch, empty when it can."""
    return "" if stack.framework == "pytorch" else "no PyTorch"


def gpus(site: Site) -> bool:
    """Whether every rank can use a GPU with PyTorch; ranks of a node may share one, but not a MIG instance."""
    return bool(site.stack) and all(
        stack.framework_cuda and stack.gpus and _suffice(stack, site.slots[node]) for node, stack in site.stack.items()
    )


def _suffice(stack: NodeStack, slots: int) -> bool:
    """Whether the NCCL that PyTorch loads joins so many ranks of a node."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", stack.framework_nccl or stack.nccl)[:3])
    if stack.most_instances > 1 and slots > 1:
        return stack.gpus >= slots and numbers >= _MIG_NCCL and stack.driver_cuda >= _MIG_CUDA
    return stack.gpus >= slots or (not stack.most_instances and numbers >= _SHARING_NCCL)


# The speed of a training: time of a step, scaling efficiency and throughput.

# The quantities of a training that a reference can name.
MEASURES: Mapping[str, Unit] = {"efficiency": "1", "time": "s", "throughput": "tokens/s"}
_SHORTEST_S = 1e-30  # a quotient by less may not be finite
_TOGETHER, _ALONE = "training_step", "single_process_step"  # the words of language_model.py


def figures(
    site: base.Site, outcome: JobOutcome, processes: int, tokens: float, confidence: float = 0.95
) -> tuple[Figure, ...]:
    """Return the times of a step, the scaling efficiency and the throughput; empty without printed times.

    Efficiency is strong scaling. One process and ``n`` processes train the same batches; without losses, ``n``
    processes take an ``n``-th of the time. Its interval is made of the ends of the intervals of both times, so its
    probability is the chance that both hold. Throughput follows from the time of a step and is not judged.
    """
    measured = rank_output.read(outcome.lines, site.placement, site.names).measured
    times = rank_output.figures([one for one in measured if one.quantity == "time"], confidence, together=True)
    by_operation = {figure.operation: figure for figure in times}
    together, alone = by_operation.get(_TOGETHER), by_operation.get(_ALONE)
    if together is None or alone is None or min(together.value, together.low or together.value) < _SHORTEST_S:
        return times
    low, high = (
        None if end is None or over is None else over / (processes * end)
        for end, over in ((together.high, alone.low), (together.low, alone.high))
    )
    efficiency = Figure(
        quantity="efficiency",
        operation=_TOGETHER,
        backend=together.backend,
        value=alone.value / (processes * together.value),
        unit="1",
        low=low,
        high=high,
        confidence=max(0.0, 2 * confidence - 1) if low is not None and high is not None else 0.0,
        better="higher",
    )
    throughput = Figure(
        quantity="throughput",
        operation=_TOGETHER,
        backend=together.backend,
        value=tokens / together.value,
        unit="tokens/s",
        low=None if together.high is None else tokens / together.high,
        high=None if together.low is None else tokens / together.low,
        confidence=together.confidence,
    )
    return (*times, efficiency, throughput)


def words(found: tuple[Figure, ...]) -> str:
    """Return ``, scaling efficiency 61 %``, empty where it is not among the figures."""
    efficiency = next((one for one in found if one.quantity == "efficiency"), None)
    return "" if efficiency is None else f", scaling efficiency {100 * efficiency.value:.0f} %"


_START_S, _STEP_S = 110.0, 0.5  # importing PyTorch in every rank takes longer than a step
# The timeline names this in addition to the operations.
_FUSION = "MEMCPY_IN_FUSION_BUFFER"
_CALLED = {"cpu": "in main memory", "cuda": "on the GPUs"}


def devices(site: base.Site) -> tuple[str, ...]:
    """Return the devices of a check: main memory, and GPUs where every rank can use one."""
    by_gpu = all(stack.horovod_gpu_operations in {"NCCL", "MPI"} for stack in site.stack.values())
    return ("cpu", "cuda") if by_gpu and gpus(site) else ("cpu",)


class WithHorovod(base.Check):
    """A check that runs the program of Horovod."""

    file = "horovod_checks.py"

    def absent(self, stack: NodeStack) -> str:
        """Return why a node cannot take part, empty when it can."""
        if not stack.horovod:
            return "no Horovod"
        if stack.horovod_with != "pytorch":
            return f"Horovod with {stack.horovod_with or 'no framework'}, not with PyTorch"
        return without_pytorch(stack)

    def arguments(self, site: base.Site) -> tuple[str, ...]:
        """Return the check's options, and the devices whose tensors are sent."""
        return (*self.options.words, "--devices", ",".join(devices(site)))


@dataclass(frozen=True)
class Horovod(WithHorovod):
    """Every operation that a training needs, and the library that carried it."""

    name: str = "horovod"
    title: str = "Horovod's collectives, over the expected backend"
    deadline_s: float = 120.0

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, then the library that carried them; rank 0 reads it from Horovod's timeline."""
        judgement = judging.judge(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        first = judgement.ranks[0]
        carriers = []
        for device in devices(site):
            found = carried_by(first, device)
            wanted = _expected(site, device)
            if found != {wanted}:
                words = " and ".join(sorted(found)) or "a library that the timeline does not name"
                operations = first.facts.get(f"{device}_operations", "none")
                reason = f"tensors {_CALLED[device]} were carried by {words} and not by {wanted}: {operations}"
                return base.fail(judgement, reason, site.slots)
            carriers.append(f"{wanted} {_CALLED[device]}" if device == "cuda" else wanted)
        judgement = base.passed(judgement, f"{judgement.reason} over {' and '.join(carriers)}")
        by_nccl = "cuda" in devices(site) and _expected(site, "cuda") == "NCCL"
        return nccl_diagnostics.path_judged(judgement, site, outcome, tuple(site.slots) if by_nccl else ())


def carried_by(report: RankReport, device: str) -> set[str]:
    """Return the libraries that carried the tensors of a device; the first word of an operation names it."""
    operations = report.facts.get(f"{device}_operations", "").split()
    return {operation.partition("_")[0] for operation in operations if operation != _FUSION}


def _expected(site: base.Site, device: str) -> str:
    first = next(iter(site.stack.values()), None)
    return "MPI" if device == "cpu" or first is None else first.horovod_gpu_operations


class TrainingOptions(CheckOptions):
    """A fixed-seed language model of so many steps; the loss may miss the single process's by ``tolerance``."""

    steps: Count = 20
    tolerance: Share = 1e-8


@dataclass(frozen=True)
class Training(WithHorovod):
    """A model trained with Horovod equals that of a single process; the scaling efficiency is reported."""

    options: TrainingOptions = field(default_factory=TrainingOptions)
    name: str = "training"
    title: str = "a language model trained by all is that of one process"
    deadline_s: float = 120.0

    @classmethod
    def of(cls, options: TrainingOptions) -> Training:
        return cls(options, deadline_s=_START_S + _STEP_S * options.steps)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, and report the times."""
        judgement = judging.judge(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        told = judgement.ranks[0].figures
        found = figures(site, outcome, len(judgement.ranks), told.get("tokens", 0.0))
        nodes = f"{len(site.slots)} node{'s' if len(site.slots) != 1 else ''}"
        result = f"perplexity {told['perplexity']:.6g} as of one process{words(found)}"
        judgement = base.passed(
            judgement,
            f"{len(judgement.ranks)} ranks on {nodes}, {result}",
            Measurement(name="perplexity", value=told["perplexity"], unit="1"),
            Measurement(name="single_process_perplexity", value=told["single_process_perplexity"], unit="1"),
        )
        return replace(judgement, figures=found)


# ``torchrun``: PyTorch's launcher, started by mpirun on every node, trains a model over all ranks.


@dataclass(frozen=True)
class TorchrunCheck(base.Check):
    """A model trained by DistributedDataParallel equals that of a single process."""

    name: str = "torchrun"
    title: str = "torchrun under mpirun trains what one process trains"
    deadline_s: float = 120.0
    per_node: bool = True
    file = "torch_checks.py"

    def absent(self, stack: NodeStack) -> str:
        return without_pytorch(stack)

    def arguments(self, site: base.Site) -> tuple[str, ...]:
        """Return where the workers of torchrun run, and what carries their tensors."""
        slots, first = ",".join(str(slots) for slots in site.slots.values()), next(iter(site.slots))
        return "--slots", slots, "--first-node", first, "--backend", _backend(site)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, who gave them, and what carried them."""
        judgement = judging.judge(site, outcome, with_mpi=False, per_node=True)
        if judgement.verdict is not Verdict.PASS:
            return _with_root_cause(judgement, outcome)
        elsewhere = causes.misplaced(site, judgement.ranks)
        if elsewhere is not None:
            return base.fail(judgement, *elsewhere)
        wrong = causes.carried_by(judgement.ranks, _backend(site))
        if wrong is not None:
            return base.fail(judgement, *wrong)
        told = judgement.ranks[0].figures
        found = figures(site, outcome, len(judgement.ranks), told.get("tokens", 0.0))
        loss = f"loss {told['loss']:.6g} as of one process"
        judgement = base.passed(
            judgement,
            f"{judgement.reason} over {_backend(site)}, {loss}{words(found)}",
            Measurement(name="loss", value=told["loss"], unit="1"),
            Measurement(name="single_process_loss", value=told["single_process_loss"], unit="1"),
        )
        users = tuple(site.slots) if _backend(site) == "nccl" else ()
        return nccl_diagnostics.path_judged(replace(judgement, figures=found), site, outcome, users)


def _backend(site: base.Site) -> str:
    return "nccl" if gpus(site) else "gloo"


def _with_root_cause(judgement: base.Judgement, outcome: JobOutcome) -> base.Judgement:
    """Blame the worker that ended silently, as its torchrun names it.

    The torchrun of another node may name a worker of its own that ended because it lost that one. Such a worker has
    said so.
    """
    wrong = [report for report in judgement.ranks if report.state == "answered" and not report.ok]
    if not all(causes.lost_a_peer(report) for report in wrong):
        return judgement
    said = "\n".join(line.text for line in outcome.lines if line.stream == "stderr")
    others = {report.rank: report for report in judgement.ranks if report not in wrong}
    ends = [end for end in rank_deaths.torchrun_ends(said) if end.rank in others]
    if not ends:
        return judgement
    found = min(ends, key=lambda end: end.signal in {"", "SIGTERM"})  # those may be ended by what came first
    report = others[found.rank]
    how = f"was killed by {found.signal}" if found.signal else f"ended with code {found.code}"
    return base.fail(
        judgement, f"rank {report.rank} on {report.host} {how}, and torchrun ended the others", [report.host]
    )


CHECKS = (
    Registration(
        name="torchrun",
        order=80,
        measures=MEASURES,
        first_suite="smoke",
        make=lambda _options: TorchrunCheck(),
    ),
    Registration(name="horovod", order=90, first_suite="smoke", make=lambda _options: Horovod()),
    Registration(
        name="training",
        order=100,
        options=TrainingOptions,
        measures=MEASURES,
        tuned={"full": TrainingOptions(steps=100)},
        make=Training.of,
    ),
)
