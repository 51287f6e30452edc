"""``gpu_compute``, ``gpu_copies`` and ``gpu_mpi``: GPUs that multiply, copy and take part in MPI rightly."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.model.findings import majority
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Verdict
from clusterctl.model.units import value_words
from clusterctl.suite import CheckOptions, MeasuringOptions
from clusterctl.suite.model import Seconds
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base, judging, rank_output, training
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure, RankReport

_TYPES = 5  # of numbers, that gpu_checks.py multiplies
_WAY_S = 0.5  # to take memory for a way of copies, and to compare it
_MOST_NAMED = 3
_MODEL = re.compile(r"gpu(?P<index>\d{1,3})_model")
_DIGEST = re.compile(r"(\w{1,8}) ([0-9a-f]{12})\b")
_ABOUT_A_GPU = re.compile(r"\bGPU \d")  # in what gpu_checks.py and gpu_state.py note of one
_CURE = "take this GPU out of use, and read 'clusterctl doctor' and 'dmesg' for Xid errors; reset or replace the GPU"
_CURE_COPIES = (
    "reseat the GPU or its riser, and look at the slot's settings in the firmware; 'lspci -vv' shows the link"
)
_CURE_MPI = (
    "Open MPI says that it takes GPU buffers, and fails: set openmpi_cuda_home to the CUDA of the nodes' driver and "
    "provision again, or set 'openmpi_cuda: never' and let jobs copy to main memory"
)
_STEP = "GPU buffers in MPI"  # how gpu_mpi_checks.py begins the name of a step


class _OnGpus(base.Check):
    """A check of a node's GPUs with PyTorch."""

    file = "gpu_checks.py"

    def absent(self, stack: NodeStack) -> str:
        """Return why a node's GPUs cannot be proved, empty where they can."""
        if not stack.gpus:
            return f"jobs cannot use {stack.idle_gpus}" if stack.idle_gpus else "no GPU"
        return training.without_pytorch(stack) or ("" if stack.framework_cuda else "its PyTorch is built without CUDA")


class GpuComputeOptions(CheckOptions):
    """``budget_s`` are the seconds for which every GPU multiplies in each type of numbers."""

    budget_s: Seconds = 5.0


@dataclass(frozen=True)
class GpuCompute(_OnGpus):
    """Every GPU multiplies matrices; a wrong value, or other bits than on GPUs of the same model, is a FAIL."""

    options: GpuComputeOptions = field(default_factory=GpuComputeOptions)
    name: str = "gpu_compute"
    title: str = "matrix products on every GPU: known results, the same bits on GPUs of one model, speed"
    deadline_s: float = 120.0
    per_node: bool = True

    def measuring_s(self, site: base.Site) -> float:  # noqa: ARG002 - all GPUs work at once
        return 1.5 * _TYPES * self.options.budget_s

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge each GPU's products, then hold their bits against those of the other GPUs of its model."""
        judgement = _judged(site, outcome, "gpu_compute", _CURE)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        groups = _digests(site, judgement.ranks)
        odd = [words for group in groups for words in group.odd]
        if odd:
            reason = and_more((words for _, words in odd), _MOST_NAMED, "; ")
            return _blamed(judgement, reason, odd, "gpu_compute", _CURE)
        unproved = [report.host for report in judgement.ranks if not _models(site, report)]
        if unproved:
            reason = f"no GPU of {folded(unproved)} was told"
            return replace(judgement, verdict=Verdict.ERROR, reason=reason, hosts=tuple(unproved))
        return base.passed(judgement, "; ".join([*_proved(site, judgement, groups), *_speeds(judgement.figures)]))


@dataclass(frozen=True)
class _Group:
    """The digests of one type of numbers on GPUs of one model with one software, by host and number of the GPU."""

    kind: str
    model: str
    digests: dict[tuple[str, int], str]

    @property
    def odd(self) -> list[tuple[str, str]]:
        """The GPUs with other bits than most of them: host and words."""
        found = majority(self.digests)
        of = f"GPUs of this model ({self.model})"
        than = f"than most {of}" if found.usual is not None else f"than other {of}, with no majority"
        return [
            (host, f"GPU {index} of {host} has other bits in {self.kind} products {than}")
            for host, index in (member for members in found.others.values() for member in members)
        ]


def _digests(site: base.Site, reports: Sequence[RankReport]) -> list[_Group]:
    groups: dict[tuple[str, str, str], _Group] = {}
    for report in reports:
        for index, model in _models(site, report).items():
            for kind, digest in _DIGEST.findall(report.facts.get(f"gpu{index}_digests", "")):
                key = (model, report.facts.get("versions", ""), kind)
                groups.setdefault(key, _Group(kind, model, {})).digests[report.host, index] = digest
    return list(groups.values())


def _models(site: base.Site, report: RankReport) -> dict[int, str]:
    """Return the model of each GPU of a node; a node has no more votes than GPUs."""
    most = site.stack[report.host].gpus if report.host in site.stack else 0
    found = ((_MODEL.fullmatch(name), text) for name, text in report.facts.items())
    return {int(match["index"]): text for match, text in found if match and int(match["index"]) < most}


def _proved(site: base.Site, judgement: base.Judgement, groups: Sequence[_Group]) -> list[str]:
    """Return what a PASS proves of the products."""
    gpus = sum(len(_models(site, report)) for report in judgement.ranks)
    compared = sum(report.compared for report in judgement.ranks)
    kinds = ", ".join(dict.fromkeys(group.kind for group in groups))
    words = [f"{gpus} GPU{'s' if gpus != 1 else ''}, {compared:,} values right in {kinds}"]
    alone = all(len(group.digests) == 1 for group in groups)
    return [*words, "no other GPU of its model to compare bits with" if alone else "the same bits on GPUs of one model"]


def _speeds(figures: Sequence[Figure]) -> list[str]:
    """Return 'bf16 median 702 TFLOP/s, 655 TFLOP/s on GPU 3 of node2' for each type, with the slowest GPU."""
    words = []
    for operation in dict.fromkeys(figure.operation for figure in figures):
        group = [figure for figure in figures if figure.operation == operation]
        slowest = min(group, key=lambda figure: figure.value)
        middle = value_words(statistics.median(figure.value for figure in group), slowest.unit)
        least = f", {value_words(slowest.value, slowest.unit)} on {slowest.algorithm} of {slowest.nodes[0]}"
        words.append(f"{operation} median {middle}{least}" if len(group) > 1 else f"{operation} {middle}")
    return words


class GpuCopiesOptions(MeasuringOptions):
    """``budget_s`` are the seconds for one way of one GPU."""


@dataclass(frozen=True)
class GpuCopies(_OnGpus):
    """Every GPU copies from and to the host, within its memory and to each other GPU of its node."""

    options: GpuCopiesOptions = field(default_factory=GpuCopiesOptions)
    name: str = "gpu_copies"
    title: str = "copies of every GPU: right bytes, and as fast as its PCIe link carries"
    deadline_s: float = 90.0
    per_node: bool = True

    def measuring_s(self, site: base.Site) -> float:
        """Return the seconds of the copies on the node with the most GPUs."""
        gpus = max((stack.gpus for stack in site.stack.values()), default=1)
        return gpus * (gpus + 2) * (self.options.budget_s + _WAY_S)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge bytes, links and rates, and make figures of the rates."""
        judgement = _judged(site, outcome, "copy_bandwidth", _CURE_COPIES)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        kinds: dict[str, list[float]] = {}
        for figure in judgement.figures:
            kinds.setdefault(_way(figure.algorithm), []).append(figure.value)
        words = [f"{value_words(statistics.median(found), 'B/s')} {kind}" for kind, found in kinds.items()]
        links = [
            report.facts.get(f"gpu{index}_link", "") for report in judgement.ranks for index in _models(site, report)
        ]
        told = ", ".join(base.unique(link for link in links if link))
        return base.passed(judgement, f"{judgement.reason}; {', '.join(words)}; PCIe links: {told}")


def _way(algorithm: str) -> str:
    """Return the kind of a way: 'host to GPU 0', 'GPU 0 to host', 'GPU 0 to GPU 1' or 'GPU 0'."""
    if algorithm.startswith("host"):
        return "from the host"
    if algorithm.endswith("host"):
        return "to the host"
    return "between GPUs" if " to " in algorithm else "within a GPU"


@dataclass(frozen=True)
class GpuMpi(_OnGpus):
    """Ranks send and reduce buffers in the memory of their GPUs, where Open MPI says that it takes them."""

    name: str = "gpu_mpi"
    title: str = "MPI sends and reduces buffers in GPUs' memory"
    deadline_s: float = 120.0
    file = "gpu_mpi_checks.py"

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers; an Open MPI that was built without CUDA on all nodes is a SKIP."""
        judgement = judging.judge(site, outcome)
        reports = judgement.ranks
        in_step = any(
            report.step.startswith(_STEP) or any(one.what.startswith(_STEP) for one in report.problems)
            for report in reports
        )
        if judgement.verdict is Verdict.FAIL and in_step:
            return replace(judgement, reason=f"{judgement.reason}; {_CURE_MPI}")  # a next step would prevent a search
        if judgement.verdict is not Verdict.PASS:
            return judgement
        without = base.unique(report.host for report in reports if report.facts.get("mpi_cuda") != "yes")
        if not without:
            gpus = ", ".join(base.unique(report.facts.get("gpu", "") for report in reports))
            return base.passed(judgement, f"{judgement.reason}, in the memory of {gpus}")
        if len(without) == len(site.slots):
            reason = (
                "Open MPI was built without CUDA, so MPI takes no GPU buffers; 'openmpi_cuda: always' builds it with "
                "CUDA where openmpi_cuda_home is on the builder"
            )
            return replace(judgement, verdict=Verdict.SKIP, reason=reason)
        reason = f"Open MPI takes no GPU buffers on {folded(without)}, and does on the other nodes"
        return replace(base.fail(judgement, reason, without), next_step="Provision these nodes again.")


def _judged(site: base.Site, outcome: JobOutcome, quantity: str, cure: str) -> base.Judgement:
    """Judge what the processes of the nodes said, with figures; GPUs are judged one by one, so all may be named."""
    site = base.one_a_node(site)
    judgement = judging.judge(site, outcome, with_mpi=False, per_node=True)
    if judgement.verdict is Verdict.ERROR:
        return judgement
    measured = rank_output.read(outcome.lines, site.placement, site.names).measured
    figures = rank_output.figures([one for one in measured if one.quantity == quantity])
    judgement = replace(judgement, figures=figures)
    wrong = [
        (report.host, f"{report.host}: {one.what}: expected {one.expected}, got {one.got}")
        for report in judgement.ranks
        for one in report.problems
        if _ABOUT_A_GPU.search(one.what)
    ]
    if not wrong:
        return judgement
    return _blamed(judgement, and_more((words for _, words in wrong), _MOST_NAMED, "; "), wrong, quantity, cure)


def _blamed(
    judgement: base.Judgement, reason: str, named: Sequence[tuple[str, str]], quantity: str, cure: str
) -> base.Judgement:
    """Return a FAIL that names these hosts, each with the words of its first GPU."""
    first = dict(reversed(named))
    hosts = base.unique(host for host, _ in named)
    return base.blamed(judgement, reason, [(host, first[host], cure) for host in hosts], quantity)


CHECKS = (
    Registration(
        name="gpu_compute",
        order=76,
        options=GpuComputeOptions,
        measures={"gpu_compute": "FLOP/s"},
        tuned={"full": GpuComputeOptions(budget_s=60.0)},
        make=GpuCompute,
    ),
    Registration(
        name="gpu_copies",
        order=77,
        options=GpuCopiesOptions,
        measures={"copy_bandwidth": "B/s"},
        tuned={"nightly": GpuCopiesOptions(budget_s=0.2), "full": GpuCopiesOptions(budget_s=1.0, precision=0.01)},
        make=GpuCopies,
    ),
    Registration(name="gpu_mpi", order=78, first_suite="smoke", make=lambda _options: GpuMpi()),
)
