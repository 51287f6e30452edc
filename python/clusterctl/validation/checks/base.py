"""What a check is: the site that it runs on, the program that it launches, and the judgement that it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from clusterctl.launch import mpirun
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.model.results import CheckResult, Culprit, Verdict
from clusterctl.suite import CheckOptions, Declaration
from clusterctl.validation.checks import overcommitted_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterctl.analysis.carriers import FabricPath
    from clusterctl.analysis.nccl_path import GidTable
    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure, Measurement, PairMatrix, RankReport

BEATS = 15  # signs of life that a waiting rank gives within the deadline


@dataclass(frozen=True)
class Site:
    """The nodes that a check runs on."""

    version: str  # the release of Open MPI
    slots: Mapping[str, int]  # ranks of each node, in hostfile order
    # the inventory's name for each host name that nodes give themselves
    names: Mapping[str, str] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)  # the platform id of each node
    # the folder of each node that must hold its libmpi, with links resolved
    libraries: Mapping[str, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)  # processor cores of each node
    # an id of each node's machine. Containers of one machine have the same id and share its cores.
    machines: Mapping[str, str] = field(default_factory=dict)
    stack: Mapping[str, NodeStack] = field(default_factory=dict)  # what each node has for training
    # the interfaces of each node that must carry jobs; a node without a fabric record is left out
    fabric: Mapping[str, FabricPath] = field(default_factory=dict)
    layout: Layout = DEFAULT_LAYOUT  # where the software lies on the nodes
    # the RDMA ports of each node that are up and of its fastest kind, ``mlx5_0:1``
    rdma: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gids: Mapping[str, Mapping[str, GidTable]] = field(default_factory=dict)  # the GIDs of the RoCE ports of each node
    gpus: Mapping[str, str] = field(default_factory=dict)  # the name of each node's GPUs, as the driver tells it
    # where each node sets variables of NCCL and Gloo: a file, or "environment"
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # the settings of others by which each node's Open MPI chooses networks: value and place by name
    mpi_networks: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    # the switches that each node's links for jobs hang on; a node of which none is known is left out
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unused_rdma: str = ""  # says that MPI goes over TCP although every node has RDMA, and why; '' where it does not

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


class Check(ABC):
    """One thing to prove: what to launch, and how to judge what it prints. Each kind is a frozen dataclass."""

    name: str  # on the command line
    title: str  # what it proves, in a few words
    deadline_s: float  # seconds for a few ranks with a core each
    per_node: bool = False  # whether mpirun starts one process per node, which fills the node's slots by itself
    options: CheckOptions = CheckOptions()
    file: str  # a node program of the role ``validation``

    def absent(self, stack: NodeStack) -> str:  # noqa: ARG002 - MPI and numpy are on every node that takes part
        """Return why a node with this stack cannot take part ("no PyTorch"), empty when it can."""
        return ""

    def ranks_on(self, site: Site) -> Mapping[str, int]:
        """Return the ranks of each node, in hostfile order."""
        return site.slots

    def measuring_s(self, site: Site) -> float:  # noqa: ARG002 - most checks measure as long on many nodes
        """Return the seconds of measuring on this site, on top of a deadline that the user has not set."""
        return 0.0

    def arguments(self, site: Site) -> tuple[str, ...]:  # noqa: ARG002 - most programs are told nothing of it
        """Return what the program is told beside its check and its deadline."""
        return self.options.words

    def program(self, site: Site, deadline_s: float) -> tuple[str, ...]:
        limits = ("--deadline", f"{deadline_s:g}", "--heartbeat", f"{deadline_s / BEATS:.3g}")
        head = (site.layout.python, site.layout.program(self.file))
        return (*head, "--check", self.word, *limits, *self.arguments(site))

    @property
    def word(self) -> str:
        """The value of the program's option ``--check``."""
        return self.name

    @abstractmethod
    def judge(self, site: Site, outcome: JobOutcome) -> Judgement:
        """Turn the outcome of the job into a verdict."""


def placed(check: Check, site: Site) -> Site:
    """Return the site with the number of ranks that the check sets."""
    return replace(site, slots=dict(check.ranks_on(site)))


def deadline_s(check: Check, site: Site, started_s: float = 0.0) -> float:
    """Return the seconds that a check may take on a site; starting ranks and sharing cores take time.

    ``started_s`` are the seconds until all ranks of an earlier job on these nodes were up, 0 where it is not known.
    """
    measuring_s = check.measuring_s(site) if check.options.deadline_s is None else 0.0
    start_s = max(
        overcommitted_nodes.allowance_s(site.placement, site.cores, site.machines),
        overcommitted_nodes.SLACK * started_s,
    )
    return round(check.deadline_s * site.ranks_per_core + measuring_s + start_s, 3)


def one_a_node(site: Site) -> Site:
    """Return the site with one rank per node, as a check with ``per_node`` fills it."""
    return replace(site, slots=dict.fromkeys(site.slots, 1))


def fail(judgement: Judgement, reason: str, hosts: Iterable[str]) -> Judgement:
    """Return the judgement as a FAIL with this reason and these hosts."""
    return replace(judgement, verdict=Verdict.FAIL, reason=reason, hosts=unique(hosts), culprits=())


def blamed(judgement: Judgement, reason: str, named: Iterable[tuple[str, str, str]], quantity: str = "") -> Judgement:
    """Return the judgement as a FAIL that blames nodes: each with what is wrong in words, and the cure."""
    culprits = tuple(
        Culprit(kind="node", nodes=(host,), quantity=quantity, words=words, cure=cure) for host, words, cure in named
    )
    return replace(fail(judgement, reason, (one.nodes[0] for one in culprits)), culprits=culprits)


def passed(judgement: Judgement, reason: str, *more: Measurement) -> Judgement:
    """Return the judgement as a PASS with this reason and more measurements."""
    measurements = (*judgement.measurements, *more)
    return replace(judgement, verdict=Verdict.PASS, reason=reason, hosts=(), measurements=measurements, evidence=())


def unique(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts))


# The registration of a check: what suites know of it, and how it is made of its options.


@dataclass(frozen=True, kw_only=True)
class Registration(Declaration):
    """One entry of a check module's ``CHECKS``; ``make`` takes the options and returns the check."""

    make: Callable[[Any], Check]

    def check(self, options: CheckOptions) -> Check:
        """Return the check with these options; a deadline among them replaces the check's own."""
        if not isinstance(options, self.options):
            raise TypeError(f"{self.name} takes {self.options.__name__}, not {type(options).__name__}")
        made = self.make(options)
        if options.deadline_s is None:
            return made
        return cast("Check", replace(cast("Any", made), deadline_s=options.deadline_s))  # checks are frozen dataclasses
