"""``torchrun``: PyTorch's launcher, started by mpirun on every node, trains a model over all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.analysis import rank_deaths
from clusterctl.model.results import Measurement, Verdict
from clusterctl.validation.checks import base, blame, judging, nccl_path, scaling, stack_needs
from clusterctl.validation.checks.registration import Registration

if TYPE_CHECKING:
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome


@dataclass(frozen=True)
class TorchrunCheck:
    """A model trained by DistributedDataParallel equals that of a single process."""

    name: str = "torchrun"
    title: str = "torchrun under mpirun trains what one process trains"
    deadline_s: float = 120.0
    per_node: bool = True

    def absent(self, stack: NodeStack) -> str:
        """Return whether PyTorch is missing."""
        return stack_needs.without_pytorch(stack)

    def program(self, site: base.Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of the process on each node, which starts torchrun."""
        return base.rank_program(
            site,
            "torch_checks.py",
            self.name,
            deadline_s,
            "--slots",
            ",".join(str(slots) for slots in site.slots.values()),
            "--first-node",
            next(iter(site.slots)),
            "--backend",
            _backend(site),
        )

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, who gave them, and what carried them."""
        judgement = judging.judge(site, outcome, with_mpi=False, per_node=True)
        if judgement.verdict is not Verdict.PASS:
            return blame.own_gradient(_with_root_cause(judgement, outcome))
        elsewhere = blame.misplaced(site, judgement.ranks)
        if elsewhere is not None:
            return base.fail(judgement, *elsewhere)
        wrong = blame.carried_by(judgement.ranks, _backend(site))
        if wrong is not None:
            return base.fail(judgement, *wrong)
        told = judgement.ranks[0].figures
        found = scaling.figures(site, outcome, len(judgement.ranks), told.get("tokens", 0.0))
        loss = f"loss {told['loss']:.6g} as of one process"
        judgement = base.passed(
            judgement,
            f"{judgement.reason} over {_backend(site)}, {loss}{scaling.words(found)}",
            Measurement(name="loss", value=told["loss"], unit="1"),
            Measurement(name="single_process_loss", value=told["single_process_loss"], unit="1"),
        )
        users = tuple(site.slots) if _backend(site) == "nccl" else ()
        return nccl_path.judged(replace(judgement, figures=found), site, outcome, users)


def _backend(site: base.Site) -> str:
    return "nccl" if stack_needs.gpus(site) else "gloo"


def _with_root_cause(judgement: base.Judgement, outcome: JobOutcome) -> base.Judgement:
    """Blame the worker that ended silently, as its torchrun names it.

    The torchrun of another node may name a worker of its own that ended because it lost that one. Such a worker has
    said so.
    """
    wrong = [report for report in judgement.ranks if report.state == "answered" and not report.ok]
    if not all(blame.lost_a_peer(report) for report in wrong):
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
        measures=scaling.MEASURES,
        first_suite="smoke",
        make=lambda _options: TorchrunCheck(),
    ),
)
