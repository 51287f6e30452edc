"""What the sequential test finds after the tournament, whom it blames wrongly, and how long it takes, as a table.

    python tests/sim/measured_on.py [--seed N] [--share S] [--nodes N ...] [--processes N] [--out FILE]

Each cluster is measured in a tournament. Then the decision asks for pairs and gets samples of them with the same
noise, until it asks for no more. Its rounds are counted: the budget is a fifth of the check, of whose six sizes two are
measured on, and at least 60 rounds (12 seconds for two sizes of 0.1 s). The same seed gives the same table.
"""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import simulated
from clusterctl.analysis import sequential
from clusterctl.analysis.links import LinkValues
from clusterctl.analysis.repeated_links import Repeats

BUDGET_SHARE, SIZES, SIZES_MEASURED_ON = 0.2, 6, 2
LEAST_ROUNDS = 60
# Nodes, sampled rounds (0: all pairs), healthy clusters and clusters of each kind of planted fault.
CLUSTERS = (
    (4, 0, 600, 400),
    (5, 0, 600, 400),
    (8, 0, 600, 300),
    (16, 0, 600, 300),
    (64, 0, 600, 200),
    (256, 0, 60, 40),
    (600, 0, 6, 6),
    (600, 128, 40, 40),
)


@dataclass(frozen=True)
class Case:
    """A kind of cluster and how many of it."""

    plan: simulated.Plan
    clusters: int


@dataclass
class Count:
    """What became of a case."""

    planted: int = 0
    found: int = 0
    wrong: int = 0
    rounds: int = 0
    tournament: int = 0
    over: int = 0  # clusters that took more than their budget


def budget_of(plan: simulated.Plan) -> int:
    """Return the rounds of one size that a fifth of the check has time for."""
    return max(LEAST_ROUNDS, int(BUDGET_SHARE * rounds_of(plan) * SIZES / SIZES_MEASURED_ON))


def rounds_of(plan: simulated.Plan) -> int:
    """Return the rounds of the tournament."""
    return plan.rounds or plan.nodes - 1 + plan.nodes % 2


def named(cluster: simulated.Cluster, rng: np.random.Generator) -> tuple[set[int], set[tuple[int, int]], int]:
    """Measure a tournament, then what the decision asks for; the nodes and links that it names, and the rounds."""
    known = LinkValues.of(simulated.measure(cluster, rng))
    assert known is not None
    plays: list[Repeats] = []
    left, played = budget_of(cluster.plan), 0
    decision = sequential.decide(known, plays, left, sequential.Bounds())
    while decision.ask is not None:
        links = cluster.number_of(np.array([pair for pairs in decision.ask.rounds for pair in pairs]))
        plays.append(Repeats(links, simulated.measure_on(cluster, links, decision.ask.repeats, rng)))
        left -= decision.ask.played
        played += decision.ask.played
        decision = sequential.decide(known, plays, left, sequential.Bounds())
    ends = zip(cluster.first, cluster.second, strict=True)
    pairs = [(int(first), int(second)) for first, second in ends]
    return {one.at for one in decision.nodes}, {pairs[one.at] for one in decision.links}, played


def examine(case: Case, seed: int) -> Count:
    """Build the clusters of a case and count."""
    rng = np.random.default_rng([seed, crc32(repr(case.plan).encode())])
    count = Count(tournament=rounds_of(case.plan) * case.clusters)
    for _ in range(case.clusters):
        cluster = simulated.build(case.plan, rng)
        nodes, links, rounds = named(cluster, rng)
        count.planted += len(cluster.bad_nodes) + len(cluster.bad_links)
        count.found += len(nodes & cluster.bad_nodes) + len(links & cluster.bad_links)
        count.wrong += bool(nodes - cluster.bad_nodes or links - cluster.bad_links)
        count.rounds += rounds
        count.over += rounds > budget_of(case.plan)
    return count


def cases(share: float, only: tuple[int, ...] = ()) -> list[Case]:
    """Return the cases: 10 % slow at 3 % noise, and 3 % slow at 1 %; of some numbers of nodes alone."""
    found = []
    for noise, slowdown in ((0.03, 0.1), (0.01, 0.03)):
        for nodes, rounds, healthy, faulty in CLUSTERS:
            if only and nodes not in only:
                continue
            plan = simulated.Plan(nodes=nodes, noise=noise, rounds=rounds, slowdown=slowdown)
            for planted, clusters in (({}, healthy), ({"slow_nodes": 1}, faulty), ({"slow_links": 1}, faulty)):
                found.append(Case(replace(plan, **planted), max(2, math.ceil(share * clusters))))
    return found


def table(rows: list[tuple[Case, Count]]) -> list[str]:
    """Return the lines of the table."""
    lines = ["noise  slow  nodes  rounds  planted  clusters     found   wrong   rounds measured on"]
    for case, count in rows:
        plan = case.plan
        planted = "1 node" if plan.slow_nodes else "1 link" if plan.slow_links else "nothing"
        found = f"{count.found / count.planted:8.1%}" if count.planted else "       -"
        share = count.rounds / count.tournament / SIZES * SIZES_MEASURED_ON
        lines.append(
            f"{plan.noise:5.0%} {plan.slowdown:5.0%} {plan.nodes:6} {rounds_of(plan):7}  {planted:7} {case.clusters:9}"
            f"  {found} {count.wrong:7}   {count.rounds / case.clusters:6.0f}, {share:5.0%} of the check"
            + (f"; {count.over} over budget" if count.over else "")
        )
    return lines


def main() -> None:
    parser = simulated.arguments(__doc__, seed=5, processes=1)
    parser.add_argument("--share", type=float, default=1.0, help="do that share of the clusters")
    parser.add_argument("--nodes", type=int, nargs="*", default=(), help="only clusters of so many nodes")
    options = parser.parse_args()
    began = time.monotonic()
    asked = cases(options.share, tuple(options.nodes))
    with ProcessPoolExecutor(options.processes) as pool:
        counts = []
        for case, count in zip(asked, pool.map(examine, asked, [options.seed] * len(asked)), strict=True):
            counts.append(count)
            sys.stderr.write(f"{table([(case, count)])[1]}\n")
    bounds = sequential.Bounds()
    lines = [
        "One slow node or link of known truth, measured on after the tournament until the sequential test ends.",
        f"Bounds: {bounds.wrong:g} wrong in a healthy matrix, {bounds.missed:g} of faults of the floor cleared.",
        f"Noise, bad moments and what healthy nodes differ by are as in detection.py. Seed {options.seed}.",
        "found: share of the planted that is named; wrong: clusters in which anybody healthy is named.",
        "",
        *table(list(zip(asked, counts, strict=True))),
    ]
    simulated.show("\n".join(lines) + "\n", began, options.out)


if __name__ == "__main__":
    main()
