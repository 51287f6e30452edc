"""NCCL over one way alone (NVLink, PCIe, the network), and between two nodes at a time, held against other nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.model.units import size_words, value_words
from clusterctl.suite import MeasuringOptions
from clusterctl.suite.model import MIB, Sizes
from clusterctl.support.words import and_more
from clusterctl.validation.checks import base, nccl, pairs, rank_output
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Figure, RankReport

_START_S = 60.0
_MOST_ROUNDS = 8  # of nccl_sweep.py
_ROUND_S = 5.0  # to form a communicator and to end it
_PROOF_S = 8.0  # of a large array, with the slow first operations
_BUDGETS = 6  # what a point may take, in budgets
_MOST_NAMED = 3
_TITLES = {
    "nvlink": "NVLink",
    "pcie": "PCIe and main memory",
    "nic": "the network",
    "pairs": "NCCL between two nodes at a time",
}
_BETWEEN_NODES = ("nic", "pairs")


class WayOptions(MeasuringOptions):
    """An allreduce of these sizes over one way; ``budget_s`` is for one size, and for one pair of nodes."""

    sizes: Sizes = (256 * MIB,)

    @property
    def words(self) -> tuple[str, ...]:
        return "--operations", "allreduce", *super().words


@dataclass(frozen=True)
class NcclWay(nccl.WithNccl):
    """An allreduce over one way: of each node's own GPUs, or of the GPUs of two nodes in the rounds of a tournament.

    ``way`` is a name of nccl_sweep.py; ``pairs`` leaves the way to NCCL.
    """

    way: str
    options: WayOptions = field(default_factory=WayOptions)
    name: str = ""
    title: str = ""
    deadline_s: float = _START_S

    @classmethod
    def of(cls, options: WayOptions, way: str) -> NcclWay:
        where = "between two nodes at a time" if way == "pairs" else f"over {_TITLES[way]} alone"
        title = f"NCCL's allreduce {where}: right answers, and the bandwidth of each node"
        return cls(way, options, f"nccl_{way}", title)

    @property
    def quantity(self) -> str:
        return f"{self.way}_bandwidth"

    def measuring_s(self, site: base.Site) -> float:
        rounds = min(_MOST_ROUNDS, len(site.slots)) if self.way in _BETWEEN_NODES else 1
        return rounds * (_ROUND_S + len(self.options.sizes) * (_PROOF_S + _BUDGETS * self.options.budget_s))

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers and the way that NCCL took, and make figures of the nodes that took this way alone."""
        judgement = nccl.judged(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return judgement
        is_network = self.way in _BETWEEN_NODES
        others = {} if self.way == "pairs" else _other_ways(judgement.ranks)
        alone = tuple(node for node in _playing(judgement.ranks) if node not in others)
        odd = _without_what_neighbours_have(site, alone, others) if not is_network else ()
        if odd:
            words = f"{_TITLES[self.way]} does not carry NCCL on {nodeset.folded(odd)}, where it took {others[odd[0]]}"
            alike = [node for node in alone if _kind(site, node) == _kind(site, odd[0])]
            return base.fail(judgement, f"{words}; it does on {nodeset.folded(alike)} with the same GPUs", odd)
        left_out = _left_out(self.way, judgement.ranks, others)
        if len(alone) < (2 if is_network else 1):
            reason = f"{_TITLES[self.way]} was not measured: {'; '.join(left_out) or 'no rank had a GPU of its own'}"
            return replace(judgement, verdict=Verdict.SKIP, reason=reason)
        measured = [
            one
            for one in rank_output.read(outcome.lines, site.placement, site.names).measured
            if one.quantity == self.quantity
            and one.host in alone
            and (one.peer in alone if is_network else not one.peer)
        ]
        found = self._with_figures(judgement, site, alone, measured)
        known = {name for figure in found.figures for name in figure.nodes}
        unmeasured = [node for node in alone if node not in known]
        if unmeasured:
            reason = f"time or memory was too short to measure {_TITLES[self.way]} of {nodeset.folded(unmeasured)}"
            return replace(found, verdict=Verdict.ERROR, reason=reason, hosts=tuple(unmeasured))
        return base.passed(found, "; ".join((judgement.reason, _words(found.figures), *left_out)))

    def _with_figures(
        self,
        judgement: base.Judgement,
        site: base.Site,
        nodes: Sequence[str],
        measured: Sequence[rank_output.Measured],
    ) -> base.Judgement:
        """Return the judgement with the figure of each node; between nodes also with the matrix of their pairs."""
        confidence = self.options.confidence
        if self.way not in _BETWEEN_NODES:
            return replace(judgement, figures=rank_output.figures(measured, confidence))
        matrices = tuple(pairs.matrices_of(nodes, measured, site.switches))
        figures = tuple(one for matrix in matrices for one in pairs.figures_of(matrix, confidence, "nccl"))
        return replace(judgement, matrices=matrices, figures=figures)


def _playing(reports: Sequence[RankReport]) -> tuple[str, ...]:
    """Return the nodes whose ranks were in a communicator."""
    return base.unique(report.host for report in reports if "way" in report.facts)


def _other_ways(reports: Sequence[RankReport]) -> dict[str, str]:
    """Return the nodes whose connections took another way as well, with its name in NCCL's log."""
    found: dict[str, str] = {}
    for report in reports:
        other = report.facts.get("took_other") or (
            "" if report.facts.get("took") else "a way that its log does not name"
        )
        if "way" in report.facts and other:
            found.setdefault(report.host, other)
    return found


def _without_what_neighbours_have(site: base.Site, alone: Sequence[str], others: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes on which a way is not there, where most nodes with the same GPUs have it."""
    kinds = [_kind(site, node) for node in alone]
    lacking = [_kind(site, node) for node in others]
    return tuple(
        node
        for node in others
        if (kind := _kind(site, node)) is not None and kinds.count(kind) > max(1, lacking.count(kind))
    )


def _kind(site: base.Site, node: str) -> tuple[str, int] | None:
    """Return the name and the number of a node's GPUs, None where they are not known."""
    stack, name = site.stack.get(node), site.gpus.get(node)
    return (name, stack.gpus) if name and stack is not None else None


def _left_out(way: str, reports: Sequence[RankReport], others: Mapping[str, str]) -> list[str]:
    """Return why nodes have no figure."""
    by_words: dict[str, list[str]] = {}
    for node, other in others.items():
        by_words.setdefault(f"NCCL took {other}", []).append(node)
    playing = _playing(reports)
    for report in reports:
        if report.host not in playing and "no_way" in report.facts:
            words = "there is no second node" if way in _BETWEEN_NODES else "one GPU has no other on its node"
            by_words.setdefault(words, []).append(report.host)
    told = [f"{words} ({nodeset.folded(base.unique(nodes))})" for words, nodes in by_words.items()]
    return [and_more(told, _MOST_NAMED, "; ")] if told else []


def _words(figures: Sequence[Figure]) -> str:
    """Return the slowest node's largest size beside the fastest one's."""
    of_nodes = [figure for figure in figures if len(figure.nodes) == 1]
    size = max(figure.size_bytes or 0 for figure in of_nodes)
    group = sorted((one for one in of_nodes if one.size_bytes == size), key=lambda figure: figure.value)
    slowest, fastest = (f"{value_words(one.value, one.unit)} on {one.nodes[0]}" for one in (group[0], group[-1]))
    return f"allreduce of {size_words(size)}: {slowest}{f' to {fastest}' if len(group) > 1 else ''}"


CHECKS = tuple(
    Registration(
        name=f"nccl_{way}",
        order=order,
        options=WayOptions,
        measures={f"{way}_bandwidth": "B/s"},
        first_suite="full" if way == "pairs" else None,
        make=partial(NcclWay.of, way=way),
    )
    for order, way in ((71, "pairs"), (72, "nvlink"), (73, "pcie"), (74, "nic"))
)
