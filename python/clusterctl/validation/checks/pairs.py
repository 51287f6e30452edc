"""``pairs``: latency and bandwidth between all pairs of nodes, from a tournament inside one job."""

from __future__ import annotations

import base64
import re
import statistics
import zlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.analysis import packet_loss, robust_stats
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Figure, Measurement, PairMatrix, Verdict
from clusterctl.model.units import size_words, value_words
from clusterctl.suite import MeasuringOptions
from clusterctl.suite.model import MIB, Count, PairSizes, Seconds, Share
from clusterctl.validation.checks import base, judging, rank_output
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import CheckResult

# The step of a hung pair is its name, made of the host names that nodes give themselves.
_STUCK = re.compile(r"pair \S+, (?P<size>\d+ (?:B|KiB|MiB))")
# Quantities of what TCP has counted, at the sender and at the receiver.
_COUNTED, _COUNTED_IN_ALL, _COUNTED_EARLY = "segments", "segments_to_all", "segments_early"
_BUDGETS = 3.0  # what a pair may take, in budgets, since a slow link needs more than one


class PairsOptions(MeasuringOptions):
    """All pairs of nodes; ``budget_s`` is for one pair and one size.

    ``max_rounds`` None plays the whole tournament; a number plays only so many of its rounds. ``measure_on`` is the
    share of the check's deadline for measuring undecided pairs on.
    """

    budget_s: Seconds = 0.1
    latency_bytes: PairSizes = (1, 64, 4096)
    bandwidth_bytes: PairSizes = (65536, MIB, 8 * MIB)
    max_rounds: Count | None = None
    measure_on: Share = 0.0


@dataclass(frozen=True)
class Further:
    """What is measured on: one quantity and size, in these rounds of pairs of nodes by number, so many times."""

    quantity: str
    size_bytes: int
    rounds: tuple[tuple[tuple[int, int], ...], ...]
    repeats: int

    @property
    def words(self) -> str:
        """The rounds as the program of the nodes reads them."""
        plain = ";".join(",".join(f"{first}-{second}" for first, second in pairs) for pairs in self.rounds)
        return base64.b64encode(zlib.compress(plain.encode("ascii"))).decode("ascii")


@dataclass(frozen=True)
class Pairs(base.Check):
    """Every node measures with every other node; the outlier rules find slow nodes and links."""

    options: PairsOptions = field(default_factory=PairsOptions)
    name: str = "pairs"
    title: str = "latency and bandwidth between all pairs of nodes"
    deadline_s: float = 60.0
    per_node: bool = True
    file = "pair_checks.py"
    further: Further | None = None  # None plays the tournament

    def round_s(self, result: CheckResult) -> float | None:
        """Return the seconds that a round of one size took, None where the result does not tell."""
        told = result.ranks[0].figures if result.ranks else {}
        sizes = len(self.options.latency_bytes) + len(self.options.bandwidth_bytes)
        if told.get("measuring_s", 0.0) <= 0 or told.get("rounds", 0.0) < 1 or not sizes:
            return None
        return told["measuring_s"] / told["rounds"] / sizes

    def measuring_on(self, about: tuple[str, int], rounds: Sequence[Sequence[tuple[int, int]]], repeats: int) -> Pairs:
        return replace(self, further=Further(*about, tuple(tuple(pairs) for pairs in rounds), repeats))

    def measuring_s(self, site: base.Site) -> float:
        """Return the seconds of all rounds; the program fits its plan into the time that it gets."""
        if self.further is not None:
            return _BUDGETS * len(self.further.rounds) * self.further.repeats * self.options.budget_s
        count = len(site.slots)
        rounds = min(count, self.options.max_rounds or count)
        sizes = len(self.options.latency_bytes) + len(self.options.bandwidth_bytes)
        return _BUDGETS * rounds * sizes * self.options.budget_s

    def arguments(self, site: base.Site) -> tuple[str, ...]:  # noqa: ARG002 - all nodes are told the same
        """Return the sizes of messages, and which pairs measure them how long."""
        options, further = self.options, self.further
        sizes = {"latency": options.latency_bytes, "bandwidth": options.bandwidth_bytes}
        more: tuple[str, ...] = ("--max-rounds", str(options.max_rounds or 0))
        if further is not None:
            sizes = {"latency": (), "bandwidth": (), further.quantity: (further.size_bytes,)}
            more = ("--rounds", further.words, "--repeats", str(further.repeats))
        named = (word for name, some in sizes.items() if some for word in (f"--{name}", ",".join(map(str, some))))
        return (*named, *options.words_of(MeasuringOptions), *more)

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge the answers, and make matrices and figures of the measurements."""
        site = base.one_a_node(site)
        judgement = _name_the_stuck(judging.judge(site, outcome))
        measured = rank_output.read(outcome.lines, site.placement, site.names).measured
        if self.further is not None:
            return _of_repeats(judgement, tuple(site.slots), measured)
        matrices = tuple(matrices_of(tuple(site.slots), measured, site.switches))
        confidence = self.options.confidence
        figures = tuple(figure for matrix in matrices for figure in figures_of(matrix, confidence))
        judgement = replace(judgement, matrices=matrices, figures=(*figures, *_losses(measured)))
        if judgement.verdict is not Verdict.PASS:
            return judgement
        if len(site.slots) == 1:
            return replace(judgement, verdict=Verdict.SKIP, reason="one node alone has no pair to measure")
        unmeasured = set(site.slots) - {name for matrix in matrices for name in _measured_nodes(matrix)}
        if not matrices or unmeasured:
            whom = f"the links of {folded(sorted(unmeasured))}" if matrices else "any pair"
            return replace(judgement, verdict=Verdict.ERROR, reason=f"the time was too short to measure {whom}")
        told = judgement.ranks[0].figures
        more = [Measurement(name="measuring", value=told["measuring_s"], unit="s")] if "measuring_s" in told else []
        return base.passed(judgement, f"{judgement.reason}; {_words(matrices)}", *more)


def _of_repeats(
    judgement: base.Judgement, nodes: Sequence[str], measured: Iterable[rank_output.Measured]
) -> base.Judgement:
    """Return the judgement with a matrix of each repeat, in order; of a pair each sample is of one repeat."""
    links = [one for one in measured if one.size_bytes is not None]
    repeats = max((len(one.samples) for one in links), default=0)
    found = [
        matrix
        for at in range(repeats)
        for matrix in matrices_of(
            nodes, [one.model_copy(update={"samples": (one.samples[at],)}) for one in links if at < len(one.samples)]
        )
    ]
    if judgement.verdict is Verdict.PASS and not found:
        return replace(judgement, verdict=Verdict.ERROR, reason="the time was too short to measure any pair on")
    return replace(judgement, matrices=tuple(found))


def _name_the_stuck(judgement: base.Judgement) -> base.Judgement:
    """Blame the pair that hangs; all others only wait for the end of the round.

    A node without a sign of life is blamed already, and is the cause for the nodes that wait for it.
    """
    stuck = [report for report in judgement.ranks if report.state == "waiting" and _STUCK.fullmatch(report.step)]
    if judgement.verdict is not Verdict.FAIL or not stuck or judgement.reason.startswith("no sign of life"):
        return judgement
    if any(not report.ok for report in judgement.ranks if report.state == "answered"):
        return judgement
    by_step: dict[str, list[str]] = {}
    for report in stuck:
        by_step.setdefault(report.step, []).append(report.host)
    words = []
    for step, hosts in by_step.items():
        found = _STUCK.fullmatch(step)
        size = found["size"] if found else ""
        words.append(f"pair {'-'.join(hosts)}, {size}")
    waiting = len([report for report in judgement.ranks if report.state == "waiting"]) - len(stuck)
    others = f"; {waiting} others wait for the end of the round" if waiting else ""
    return base.fail(judgement, f"stuck: {'; '.join(words)}{others}", [report.host for report in stuck])


def matrices_of(
    nodes: Sequence[str],
    measured: Iterable[rank_output.Measured],
    switches: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Iterable[PairMatrix]:
    """Return a matrix for each quantity and size, in the order in which they were measured.

    ``switches`` are those that each node hangs on, where they are known.
    """
    place = {name: number for number, name in enumerate(nodes)}
    groups: dict[tuple[str, int], dict[tuple[int, int], rank_output.Measured]] = {}
    for one in measured:
        if one.size_bytes is None or one.host not in place or one.peer not in place or one.host == one.peer:
            continue
        ends = sorted((place[one.host], place[one.peer]))
        groups.setdefault((one.quantity, one.size_bytes), {})[ends[0], ends[1]] = one
    for (quantity, size), links in groups.items():
        some = next(iter(links.values()))
        ordered = sorted(links.items())
        directions = _directions(nodes, ordered)
        yield PairMatrix(
            quantity=quantity,
            size_bytes=size,
            unit=some.unit,
            better=some.better,
            nodes=tuple(nodes),
            first=tuple(ends[0] for ends, _ in ordered),
            second=tuple(ends[1] for ends, _ in ordered),
            value=tuple(_rounded(statistics.median(one.samples)) for _, one in ordered),
            spread=tuple(_rounded(robust_stats.mad(one.samples)) for _, one in ordered),
            forward=tuple(ways[0] for ways in directions),
            backward=tuple(ways[1] for ways in directions),
            complete=len(links) == len(nodes) * (len(nodes) - 1) // 2,
            switches={name: switches[name] for name in nodes if name in switches},
        )


def _directions(
    nodes: Sequence[str], links: Sequence[tuple[tuple[int, int], rank_output.Measured]]
) -> list[tuple[float, float]]:
    """Return the medians from first to second and back, nothing unless all links have them."""
    found = []
    for (first, _), one in links:
        if one.ways is None:
            return []
        found.append(one.ways if one.host == nodes[first] else (one.ways[1], one.ways[0]))
    return found


def figures_of(matrix: PairMatrix, confidence: float, backend: str = "mpi") -> Iterable[Figure]:
    """Return the median of all links, and of each node's links: what the history keeps.

    Their samples are the medians of the links in the matrix.
    """
    of_node: dict[str, list[float]] = {name: [] for name in matrix.nodes}
    for link, value in zip(matrix.links, matrix.value, strict=True):
        for name in link:
            of_node[name].append(value)
    groups: Mapping[tuple[str, ...], Sequence[float]] = {
        (): matrix.value,
        **{(name,): values for name, values in of_node.items() if values},
    }
    for nodes, values in groups.items():
        yield Figure(
            quantity=matrix.quantity,
            backend=backend,
            size_bytes=matrix.size_bytes,
            nodes=nodes,
            unit=matrix.unit,
            better=matrix.better,
            **robust_stats.summary(values, confidence),
        )


def _losses(measured: Iterable[rank_output.Measured]) -> Iterable[Figure]:
    """Return the share of TCP segments that were lost, for each sender and receiver between which too many were."""
    ways: dict[tuple[str, str], packet_loss.Counts] = {}
    early: dict[tuple[str, str], float] = {}
    everything, number = packet_loss.Counts(), 0
    for one in measured:
        if one.quantity == _COUNTED and one.peer and len(one.samples) == 2:  # noqa: PLR2004 - sent and lost
            ways[one.host, one.peer] = packet_loss.Counts(*one.samples)
        elif one.quantity == _COUNTED_IN_ALL and len(one.samples) == 3:  # noqa: PLR2004 - the number of peers as well
            everything += packet_loss.Counts(*one.samples[:2])
            number += int(one.samples[2])
        elif one.quantity == _COUNTED_EARLY and one.peer and len(one.samples) == 1:
            early[one.peer, one.host] = one.samples[0]
    for nodes, share in packet_loss.lossy(ways, everything, number, early).items():
        yield Figure(quantity=packet_loss.SENT_AGAIN, backend="tcp", nodes=nodes, value=_rounded(share), unit="1")


def _measured_nodes(matrix: PairMatrix) -> set[str]:
    return {name for link in matrix.links for name in link}


def _words(matrices: Sequence[PairMatrix]) -> str:
    """Return the latency of the smallest and the bandwidth of the largest message, and the worst link of the latter."""
    by_size = sorted(matrices, key=lambda matrix: matrix.size_bytes)
    told = [
        next((matrix for matrix in by_size if matrix.quantity == "latency"), None),
        next((matrix for matrix in reversed(by_size) if matrix.quantity == "bandwidth"), None),
    ]
    shown = [matrix for matrix in told if matrix is not None]
    words = [
        f"median {one.quantity} {value_words(statistics.median(one.value), one.unit)} of {size_words(one.size_bytes)}"
        for one in shown
    ]
    last = shown[-1]
    worst = (max if last.better == "lower" else min)(range(len(last.value)), key=last.value.__getitem__)
    link = f"{last.nodes[last.first[worst]]}-{last.nodes[last.second[worst]]}"
    links = len(last.value)
    every = "all" if last.complete else f"{links} of {len(last.nodes) * (len(last.nodes) - 1) // 2}"
    return f"{every} pairs: {', '.join(words)}; {value_words(last.value[worst], last.unit)} on the worst link, {link}"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


CHECKS = (
    Registration(
        name="pairs",
        order=45,
        options=PairsOptions,
        measures={"latency": "us", "bandwidth": "B/s"},
        first_suite="smoke",
        tuned={
            "smoke": PairsOptions(
                budget_s=0.1, precision=0.05, latency_bytes=(8,), bandwidth_bytes=(MIB,), max_rounds=16
            ),
            "nightly": PairsOptions(budget_s=0.2, max_rounds=128, measure_on=0.2),
            "full": PairsOptions(
                budget_s=1.0,
                precision=0.01,
                latency_bytes=(1, 8, 64, 512, 4096),
                bandwidth_bytes=(65536, MIB, 8 * MIB, 64 * MIB),
                measure_on=0.2,
            ),
        },
        make=Pairs,
    ),
)
