"""What a check is: the site that it runs on, the program that it launches, and the judgement that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from clusterctl.launch import mpirun
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.model.results import CheckResult, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.analysis.nccl_path import FabricPath
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Culprit, Figure, Measurement, PairMatrix, RankReport

BEATS = 15  # signs of life that a waiting rank gives within the deadline


@dataclass(frozen=True)
class Site:
    """The nodes that a check runs on.

    Attributes:
        version: the release of Open MPI.
        slots: ranks of each node, in hostfile order.
        names: the inventory's name for each host name that nodes give themselves.
        platforms: the platform id of each node.
        libraries: the folder of each node that must hold its libmpi, with links resolved.
        cores: processor cores of each node.
        machines: an id of each node's machine. Containers of one machine have the same id and share its cores.
        stack: what each node has for training.
        layout: where the software lies on the nodes.
        rdma: the RDMA ports of each node that are up and of its fastest kind, ``mlx5_0:1``.
        gpus: the name of each node's GPUs, as the driver tells it.
        settings: where each node sets variables of NCCL and Gloo: a file, or "environment".
        mpi_networks: the settings of others by which each node's Open MPI chooses networks: value and place by name.
        fabric: the interfaces of each node that must carry jobs; a node without a fabric record is left out.
        switches: the switches that each node's links for jobs hang on; a node of which none is known is left out.
    """

    version: str
    slots: Mapping[str, int]
    names: Mapping[str, str] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)
    stack: Mapping[str, NodeStack] = field(default_factory=dict)
    fabric: Mapping[str, FabricPath] = field(default_factory=dict)
    layout: Layout = DEFAULT_LAYOUT
    rdma: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mpi_networks: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def placement(self) -> tuple[str, ...]:
        """The node of each rank."""
        return mpirun.placement(self.slots)

    @property
    def ranks_per_core(self) -> float:
        """How many ranks share a core on the busiest node, at least 1."""
        shares = [slots / max(1, self.cores.get(node, slots)) for node, slots in self.slots.items()]
        return max([1.0, *shares])


@dataclass(frozen=True)
class Judgement:
    """A verdict with what led to it."""

    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    evidence: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    matrices: tuple[PairMatrix, ...] = ()
    next_step: str = ""
    culprits: tuple[Culprit, ...] = ()  # where more than its hosts is known: the kind and the cause

    def result(self, check: str, **more: Any) -> CheckResult:
        """Return the result of a check; ``more`` are fields of it that the judgement lacks, or others than its own."""
        return CheckResult(check=check, **{**vars(self), **more})


class Check(Protocol):
    """One thing to prove: what to launch, and how to judge what it prints."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def title(self) -> str:
        """What it proves, in a few words."""

    @property
    def deadline_s(self) -> float:
        """Seconds for a few ranks with a core each."""

    @property
    def per_node(self) -> bool:
        """Whether mpirun starts one process per node, which fills the node's slots by itself."""

    def absent(self, stack: NodeStack) -> str:
        """Return why a node with this stack cannot take part ("no PyTorch"), empty when it can."""

    def program(self, site: Site, deadline_s: float) -> tuple[str, ...]:
        """Return the argv of one process."""

    def judge(self, site: Site, outcome: JobOutcome) -> Judgement:
        """Turn the outcome of the job into a verdict."""


@runtime_checkable
class Lasting(Protocol):
    """A check that measures longer on more nodes."""

    def measuring_s(self, site: Site) -> float:
        """Seconds of measuring on this site, on top of ``deadline_s``."""


@runtime_checkable
class Placed(Protocol):
    """A check that sets its own number of ranks per node."""

    def ranks_on(self, site: Site) -> Mapping[str, int]:
        """Return the ranks of each node, in hostfile order."""


@runtime_checkable
class MeasuresOn(Check, Protocol):
    """A check whose undecided pairs are measured on in further jobs."""

    @property
    def measure_on(self) -> float:
        """The share of the check's deadline that this may take, 0 for none."""

    def round_s(self, result: CheckResult) -> float | None:
        """Return the seconds that a round of one size took, None where the result does not tell."""

    def measuring_on(self, about: tuple[str, int], rounds: Sequence[Sequence[tuple[int, int]]], repeats: int) -> Check:
        """Return the check that measures these pairs of nodes alone, each so many times, with one quantity and size."""


def placed(check: Check, site: Site) -> Site:
    """Return the site with the number of ranks that the check sets."""
    return replace(site, slots=dict(check.ranks_on(site))) if isinstance(check, Placed) else site


def one_a_node(site: Site) -> Site:
    """Return the site with one rank per node, as a check with ``per_node`` fills it."""
    return replace(site, slots=dict.fromkeys(site.slots, 1))


def rank_program(site: Site, program: str, check: str, deadline: float, *more: str) -> tuple[str, ...]:
    """Return the argv of one process of a check.

    Args:
        site: where it runs.
        program: file name of a node program of the role ``validation``.
        check: the value of its option ``--check``.
        deadline: seconds after which the job ends.
        more: further options.
    """
    limits = ("--deadline", f"{deadline:g}", "--heartbeat", f"{deadline / BEATS:.3g}")
    return (site.layout.python, site.layout.program(program), "--check", check, *limits, *more)


def fail(judgement: Judgement, reason: str, hosts: Iterable[str]) -> Judgement:
    """Return the judgement as a FAIL with this reason and these hosts."""
    return replace(judgement, verdict=Verdict.FAIL, reason=reason, hosts=unique(hosts), culprits=())


def passed(judgement: Judgement, reason: str, *more: Measurement) -> Judgement:
    """Return the judgement as a PASS with this reason and more measurements."""
    measurements = (*judgement.measurements, *more)
    return replace(judgement, verdict=Verdict.PASS, reason=reason, hosts=(), measurements=measurements, evidence=())


def unique(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return each host once, in order."""
    return tuple(dict.fromkeys(hosts))
