"""The checks of Horovod with PyTorch: collectives with known answers, and a training that one process repeats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.model.results import Measurement, Verdict
from clusterctl.suite import CheckOptions
from clusterctl.suite.model import Count, Share
from clusterctl.validation.checks import base, blame, judging, nccl_path, scaling, stack_needs
from clusterctl.validation.checks.registration import Registration

if TYPE_CHECKING:
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport

_PROGRAM = "horovod_checks.py"
_START_S, _STEP_S = 110.0, 0.5  # importing PyTorch in every rank takes longer than a step
# The timeline names this in addition to the operations.
_FUSION = "MEMCPY_IN_FUSION_BUFFER"
_CALLED = {"cpu": "in main memory", "cuda": "on the GPUs"}


def absent(stack: NodeStack) -> str:
    """Return why a node cannot take part, empty when it can."""
    if not stack.horovod:
        return "no Horovod"
    if stack.horovod_with != "pytorch":
        return f"Horovod with {stack.horovod_with or 'no framework'}, not with PyTorch"
    return stack_needs.without_pytorch(stack)


def devices(site: base.Site) -> tuple[str, ...]:
    """Return the devices of a check: main memory, and GPUs where every rank can use one."""
    by_gpu = all(stack.horovod_gpu_operations in {"NCCL", "MPI"} for stack in site.stack.values())
    return ("cpu", "cuda") if by_gpu and stack_needs.gpus(site) else ("cpu",)


def _program(site: base.Site, check: str, deadline_s: float) -> tuple[str, ...]:
    return base.rank_program(site, _PROGRAM, check, deadline_s, "--devices", ",".join(devices(site)))


@dataclass(frozen=True)
class Horovod:
    """Every operation that a training needs, and the library that carried it."""

    name: str = "horovod"
    title: str = "Horovod's collectives, over the expected backend"
    deadline_s: float = 120.0
    per_node: bool = False

    def absent(self, stack: NodeStack) -> str:
        """Return why a node cannot take part, empty when it can."""
        return absent(stack)

    def program(self, site: base.Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of one rank."""
        return _program(site, self.name, deadline_s)

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
        return nccl_path.judged(judgement, site, outcome, tuple(site.slots) if by_nccl else ())


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
class Training:
    """A model trained with Horovod equals that of a single process; the scaling efficiency is reported."""

    options: TrainingOptions = field(default_factory=TrainingOptions)
    name: str = "training"
    title: str = "a language model trained by all is that of one process"
    deadline_s: float = 120.0
    per_node: bool = False

    @classmethod
    def of(cls, options: TrainingOptions) -> Training:
        """Return the check with these options and their deadline."""
        return cls(options, deadline_s=_START_S + _STEP_S * options.steps)

    def absent(self, stack: NodeStack) -> str:
        """Return why a node cannot take part, empty when it can."""
        return absent(stack)

    def program(self, site: base.Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of one rank."""
        options = ("--steps", str(self.options.steps), "--tolerance", f"{self.options.tolerance:g}")
        return (*_program(site, self.name, deadline_s), *options)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, and report the times."""
        judgement = judging.judge(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return blame.own_gradient(judgement)
        told = judgement.ranks[0].figures
        found = scaling.figures(site, outcome, len(judgement.ranks), told.get("tokens", 0.0))
        nodes = f"{len(site.slots)} node{'s' if len(site.slots) != 1 else ''}"
        result = f"perplexity {told['perplexity']:.6g} as of one process{scaling.words(found)}"
        judgement = base.passed(
            judgement,
            f"{len(judgement.ranks)} ranks on {nodes}, {result}",
            Measurement(name="perplexity", value=told["perplexity"], unit="1"),
            Measurement(name="single_process_perplexity", value=told["single_process_perplexity"], unit="1"),
        )
        return replace(judgement, figures=found)


CHECKS = (
    Registration(name="horovod", order=90, first_suite="smoke", make=lambda _options: Horovod()),
    Registration(
        name="training",
        order=100,
        options=TrainingOptions,
        measures=scaling.MEASURES,
        tuned={"full": TrainingOptions(steps=100)},
        make=Training.of,
    ),
)
