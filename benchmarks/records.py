"""Made-up records of any size, with the real types: what benchmarks and the browser's tests look at.

Nothing here is measured. The numbers follow one picture: a 25 Gbit/s fabric, 2 % of noise, slow nodes and slow links
as asked for, and a collective that is as slow as its slowest node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np
from clusterctl.model.results import (
    CheckResult,
    Comparison,
    Culprit,
    Figure,
    Measurement,
    PairMatrix,
    RankReport,
    Reference,
    Trend,
    TrendPoint,
    ValidationRecord,
    Verdict,
    worst,
)

_BEGAN = datetime(2026, 3, 21, 2, 0, tzinfo=timezone.utc)
_LINK = 2.9e9  # B/s between two good nodes, 8 MiB and above
_LATENCY_US = 11.5
_INVENTORY = "/srv/cluster/inventory.ini"
_FACTORS = {"allreduce": 2.0, "allgather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0, "broadcast": 1.0}


@dataclass(frozen=True)
class Shape:
    """What to make.

    ``slow`` and ``links`` are slow nodes and links with what is left of their speed; ``rounds`` of the tournament of
    all pairs are measured, None is all of them; the answers are spread over ``checks`` checks.
    """

    nodes: int
    slots: int = 2
    checks: int = 18
    slow: tuple[tuple[int, float], ...] = ()
    links: tuple[tuple[int, int, float], ...] = ()
    latency_bytes: tuple[int, ...] = (1, 64, 4096)
    bandwidth_bytes: tuple[int, ...] = (65536, 1 << 20, 8 << 20, 64 << 20)
    rounds: int | None = None
    nights: int = 30
    seed: int = 7


def names(count: int) -> tuple[str, ...]:
    """Return the inventory names of so many nodes."""
    digits = len(str(count))
    return tuple(f"node{number:0{digits}d}" for number in range(1, count + 1))


def record(shape: Shape) -> ValidationRecord:
    """Return a record of this shape."""
    random = np.random.default_rng(shape.seed)
    hosts = names(shape.nodes)
    pairs = _pairs(shape, hosts, random)
    named = [
        _node_speed(shape, hosts, random),
        pairs,
        _sweep("collectives", "mpi", shape, random, _LINK),
    ]
    few = [_answer(f"answer-{number + 1}", shape, hosts) for number in range(max(0, shape.checks - len(named) - 2))]
    ground = [
        CheckResult(check="reachable", verdict=Verdict.PASS, reason=f"{shape.nodes} nodes answer", seconds=1.2),
        CheckResult(
            check="provisioned",
            verdict=Verdict.PASS,
            reason=f"{shape.nodes} nodes carry Open MPI, mpi4py and the programs of the checks",
        ),
    ]
    checks = (*ground, *few, *named)
    return ValidationRecord(
        clusterctl_version="0.2.0",
        run_id="20260321T020000Z-validate-4711",
        inventory=_INVENTORY,
        started=_BEGAN,
        finished=_BEGAN + timedelta(seconds=sum(check.seconds for check in checks)),
        launch_node=hosts[0],
        hosts=hosts,
        slots=dict.fromkeys(hosts, shape.slots),
        openmpi_version="5.0.7",
        suite="nightly",
        versions={"openmpi": "5.0.7", "nccl": "2.27.5", "horovod": "0.28.1", "torch": "2.9.1", "driver": "570.86.15"},
        fabric=dict.fromkeys(hosts, "eth1 10.20.0.0/16"),
        trends=_trends(shape, checks, random),
        verdict=worst(checks),
        checks=checks,
    )


def _answer(name: str, shape: Shape, hosts: tuple[str, ...]) -> CheckResult:
    ranks = tuple(
        RankReport(
            rank=rank,
            host=hosts[rank // shape.slots],
            library_version="Open MPI v5.0.7",
            library_path="/usr/local/openmpi/lib/libmpi.so.40",
            seconds=0.2,
            compared=1440,
        )
        for rank in range(shape.nodes * shape.slots)
    )
    return CheckResult(
        check=name,
        verdict=Verdict.PASS,
        reason=f"{len(ranks)} ranks on {len(hosts)} nodes, {1440 * len(ranks):,} values right",
        seconds=1.4,
        deadline_s=60.0,
        command=("mpirun", "-np", str(len(ranks)), "python", "mpi_answers.py", name),
        repeat=f"clusterctl validate {_INVENTORY} --checks {name}",
        ranks=ranks,
        measurements=(Measurement(name="total", value=1.2, unit="s"),),
        log=f"logs/{name}.log",
    )


def _effects(shape: Shape) -> np.ndarray:
    effect = np.ones(shape.nodes)
    for node, left in shape.slow:
        effect[node] = left
    return effect


def _matrix(shape: Shape, hosts: tuple[str, ...], size: int, quantity: str, random: np.random.Generator) -> PairMatrix:
    if shape.rounds is None:
        first, second = np.triu_indices(shape.nodes, 1)
    else:
        begin = np.tile(np.arange(shape.nodes), (shape.rounds + 1) // 2)
        step = np.repeat(np.arange(1, (shape.rounds + 1) // 2 + 1), shape.nodes)
        end = (begin + step) % shape.nodes
        first, second = np.unique(np.stack([np.minimum(begin, end), np.maximum(begin, end)]), axis=1)
    effect = _effects(shape)
    speed = np.minimum(effect[first], effect[second]) * np.exp(random.normal(0, 0.02, len(first)))
    for one, other, left in shape.links:
        speed[(first == min(one, other)) & (second == max(one, other))] *= left
    if quantity == "bandwidth":
        value = _LINK * size / (size + 2e5) * speed
    else:
        value = (_LATENCY_US + size / 2900) / speed**0.3
    value = np.round(value, 3)
    return PairMatrix(
        quantity=quantity,
        size_bytes=size,
        unit="B/s" if quantity == "bandwidth" else "us",
        better="higher" if quantity == "bandwidth" else "lower",
        nodes=hosts,
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
        value=tuple(value.tolist()),
        spread=tuple(np.round(value * 0.01, 3).tolist()),
        complete=shape.rounds is None,
    )


def _pairs(shape: Shape, hosts: tuple[str, ...], random: np.random.Generator) -> CheckResult:
    wanted = [("latency", size) for size in shape.latency_bytes] + [
        ("bandwidth", size) for size in shape.bandwidth_bytes
    ]
    matrices = tuple(_matrix(shape, hosts, size, quantity, random) for quantity, size in wanted)
    figures: list[Figure] = []
    for matrix in matrices:
        value, first, second = np.array(matrix.value), np.array(matrix.first), np.array(matrix.second)
        per_node = _medians(shape.nodes, np.concatenate([first, second]), np.concatenate([value, value]))
        for who, median in [
            ((), float(np.median(value))),
            *(((host,), at) for host, at in zip(hosts, per_node, strict=True)),
        ]:
            figures.append(
                Figure(
                    quantity=matrix.quantity,
                    backend="mpi",
                    size_bytes=matrix.size_bytes,
                    nodes=who,
                    value=median,
                    unit=matrix.unit,
                    low=median * 0.99,
                    high=median * 1.01,
                    confidence=0.95,
                    better=matrix.better,
                )
            )
    culprits = [
        Culprit(
            kind="node",
            nodes=(hosts[node],),
            quantity="bandwidth",
            size_bytes=8 << 20,
            ratio=left,
            score=-80.0,
            words=f"{hosts[node]} is slow: its links carry {_LINK * left / 1e9:.2f} GB/s at 8 MiB, "
            f"{left:.2f} of its neighbours'",
            since=_BEGAN - timedelta(days=4),
        )
        for node, left in shape.slow
    ] + [
        Culprit(
            kind="pair",
            nodes=(hosts[one], hosts[other]),
            quantity="bandwidth",
            size_bytes=8 << 20,
            ratio=left,
            score=-40.0,
            words=f"The link {hosts[one]} to {hosts[other]} is slow: {_LINK * left / 1e9:.2f} GB/s at 8 MiB, "
            f"{left:.2f} of what the two do with others",
        )
        for one, other, left in shape.links
    ]
    who = " and ".join(dict.fromkeys(name for culprit in culprits for name in culprit.nodes))
    links = len(matrices[0].first) if matrices else 0
    return CheckResult(
        check="pairs",
        verdict=Verdict.FAIL if culprits else Verdict.PASS,
        reason=f"{who} stand out among {links:,} links" if culprits else f"{links:,} links are alike",
        hosts=tuple(dict.fromkeys(name for culprit in culprits for name in culprit.nodes)),
        seconds=24.8,
        deadline_s=180.0,
        command=("mpirun", "-np", str(shape.nodes), "--map-by", "ppr:1:node", "python", "pair_checks.py"),
        repeat=f"clusterctl validate {_INVENTORY} --suite nightly --checks pairs",
        matrices=matrices,
        figures=tuple(figures),
        culprits=tuple(culprits),
        evidence=tuple(culprit.words for culprit in culprits),
        log="logs/pairs.log",
    )


def _medians(count: int, node: np.ndarray, value: np.ndarray) -> list[float]:
    """Return the (upper) median of each node's links; every node has some."""
    ordered = value[np.lexsort((value, node))]
    links = np.bincount(node, minlength=count)
    return [float(one) for one in ordered[np.cumsum(links) - links + links // 2]]


def _node_speed(shape: Shape, hosts: tuple[str, ...], random: np.random.Generator) -> CheckResult:
    figures = []
    for quantity, unit, level in (("memory_bandwidth", "B/s", 1.86e11), ("compute", "FLOP/s", 2.1e12)):
        for host, noise in zip(hosts, random.normal(1, 0.008, shape.nodes), strict=True):
            value = float(level * noise)
            figures.append(
                Figure(
                    quantity=quantity,
                    nodes=(host,),
                    value=value,
                    unit=unit,
                    better="higher",
                    low=value * 0.99,
                    high=value * 1.01,
                    confidence=0.95,
                )  # type: ignore[arg-type]
            )
    return CheckResult(
        check="node_speed",
        verdict=Verdict.PASS,
        reason=f"{shape.nodes} nodes are alike",
        seconds=6.1,
        figures=tuple(figures),
        repeat=f"clusterctl validate {_INVENTORY} --suite nightly --checks node_speed",
        log="logs/node_speed.log",
    )


def _sweep(name: str, backend: str, shape: Shape, random: np.random.Generator, peak: float) -> CheckResult:
    """A collective runs at the pace of its slowest node."""
    pace = float(_effects(shape).min())
    ranks = shape.nodes * shape.slots
    figures, compared = [], []
    for operation, factor in _FACTORS.items():
        bus_factor = factor * (ranks - 1) / ranks if operation != "broadcast" else 1.0
        for exponent in range(10, 28, 2):
            size = 1 << exponent
            good = 2e-5 * math.log2(ranks) + size * max(bus_factor, 0.5) / (peak * 0.8)
            took = good / pace * float(np.exp(random.normal(0, 0.02)))
            seconds, expected = took, size / good * bus_factor
            for quantity, unit, value, better in (
                ("time", "s", seconds, "lower"),
                ("algorithm_bandwidth", "B/s", size / seconds, "higher"),
                ("bus_bandwidth", "B/s", size / seconds * bus_factor, "higher"),
            ):
                figures.append(
                    Figure(
                        quantity=quantity,
                        operation=operation,
                        backend=backend,
                        size_bytes=size,
                        value=value,
                        unit=unit,  # type: ignore[arg-type]
                        low=value * 0.97,
                        high=value * 1.03,
                        confidence=0.95,
                        better=better,  # type: ignore[arg-type]
                    )
                )
            figure = figures[-1]
            reference = Reference(
                value=expected,
                lower=-0.1,
                upper=None,
                unit="B/s",
                source="history",
                citation="median of the last 20 good runs",
            )
            bad = figure.value < expected * 0.9
            compared.append(
                Comparison(
                    figure=figure,
                    reference=reference,
                    verdict=Verdict.FAIL if bad else Verdict.PASS,
                    words=f"{operation} of {size} B: {figure.value / 1e9:.3g} GB/s, "
                    f"{1 - figure.value / expected:.0%} below {expected / 1e9:.3g} GB/s "
                    "(median of the last 20 good runs)",
                )
            )
    failed = [one for one in compared if one.verdict is Verdict.FAIL]
    return CheckResult(
        check=name,
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        reason=f"{len(failed)} of {len(compared)} figures are out of bounds"
        if failed
        else f"{len(compared)} figures are within bounds",
        seconds=41.0,
        figures=tuple(figures),
        comparisons=tuple(compared),
        repeat=f"clusterctl validate {_INVENTORY} --suite nightly --checks {name}",
        log=f"logs/{name}.log",
    )


def _trends(shape: Shape, checks: tuple[CheckResult, ...], random: np.random.Generator) -> tuple[Trend, ...]:
    """Slow nodes became slow four nights ago."""
    slow = {names(shape.nodes)[node]: left for node, left in shape.slow}
    found = []
    for check in checks:
        for figure in check.figures:
            ours = figure.quantity in {"bandwidth", "bus_bandwidth", "memory_bandwidth"}
            if not ours or figure.size_bytes not in {None, 8 << 20, 1 << 26}:
                continue
            if figure.nodes and figure.nodes[0] not in slow and figure.nodes[0] not in names(shape.nodes)[:2]:
                continue
            left = slow.get(figure.nodes[0], 1.0) if figure.nodes and check.check == "pairs" else 1.0
            if check.check == "collectives":
                left = float(_effects(shape).min())
            points = []
            for night in range(shape.nights):
                late = night >= shape.nights - 5
                level = figure.value if late else figure.value / left
                at = _BEGAN - timedelta(days=shape.nights - 1 - night)
                points.append(
                    TrendPoint(
                        run_id=f"{at:%Y%m%dT%H%M%SZ}-validate-{1000 + night}",
                        at=at,
                        value=level * float(np.exp(random.normal(0, 0.01))),
                        verdict=Verdict.FAIL if late and left < 1 else Verdict.PASS,
                    )
                )
            changed = points[-5].run_id if left < 1 else ""
            found.append(Trend(check=check.check, figure=figure, points=tuple(points), changed_at=changed))
    return tuple(found)
