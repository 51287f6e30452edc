"""How often the verdict is right, beside two usual rules, as a table.

    python tests/sim/detection.py [--measured PERCENT] [--seed N] [--quick] [--share S] [--processes N] [--out FILE]

``--measured`` adds the noise level that was measured on real nodes. The table is for docs/measured; the same seed gives
the same table.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
import rules
import simulated

MANY = 64  # nodes beyond which a cluster takes a second rather than milliseconds
NOISE = (0.01, 0.03, 0.1)
# Nodes, sampled rounds (0: all pairs), healthy clusters and clusters of each kind of planted fault.
SIZES = (
    (4, 0, 400, 150),
    (8, 0, 400, 150),
    (16, 0, 400, 150),
    (64, 0, 200, 60),
    (512, 0, 50, 10),
    (1000, 64, 50, 10),
    (10_000, 32, 30, 5),
)
QUICK = ((4, 0, 60, 30), (16, 0, 60, 30), (64, 0, 30, 15), (600, 16, 8, 4))


@dataclass
class Count:
    """What became of a rule over many clusters."""

    clusters: int = 0
    planted: int = 0
    found: int = 0
    wrong: int = 0  # clusters in which anybody was named who is healthy

    def share_found(self) -> str:
        return f"{self.found / self.planted:7.1%}" if self.planted else "      -"

    def share_wrong(self) -> str:
        return f"{self.wrong / self.clusters:7.1%}"


@dataclass(frozen=True)
class Row:
    plan: simulated.Plan
    clusters: int
    counts: dict[str, Count] = field(default_factory=dict)


def examine(row: Row, seed: int) -> Row:
    """Build the clusters of a row, measure each twice, and ask every rule about the same two matrices."""
    rng = np.random.default_rng([seed, crc32(repr(row.plan).encode())])
    counts = {name: Count() for name in rules.RULES}
    for _ in range(row.clusters):
        cluster = simulated.build(row.plan, rng)
        runs = simulated.measure(cluster, rng), simulated.measure(cluster, rng)
        for name, rule in rules.RULES.items():
            named, count = rule(*runs), counts[name]
            count.clusters += 1
            ends = {(min(way), max(way)) for way in cluster.bad_ways}  # a rule without directions names the link
            count.planted += len(cluster.bad_nodes) + len(cluster.bad_links) + len(cluster.bad_ways)
            count.found += len(named.nodes & cluster.bad_nodes) + len(named.links & (cluster.bad_links | ends))
            count.found += len(named.ways & cluster.bad_ways)
            wrong_links = named.links - cluster.bad_links - ends
            count.wrong += bool(named.nodes - cluster.bad_nodes or wrong_links or named.ways - cluster.bad_ways)
    return replace(row, counts=counts)


def rows(sizes: tuple[tuple[int, int, int, int], ...], noises: tuple[float, ...]) -> list[Row]:
    found = []
    for noise in noises:
        for nodes, rounds, healthy, faulty in sizes:
            plan = simulated.Plan(nodes=nodes, noise=noise, rounds=rounds)
            found.append(Row(plan, healthy))
            found.append(Row(replace(plan, slow_nodes=1), faulty))
            found.append(Row(replace(plan, slow_links=1), faulty))
            found.append(Row(replace(plan, slow_ways=1), faulty))
            if nodes >= 16:
                found.append(Row(replace(plan, slow_nodes=3, slow_links=3), faulty))
    return found


def least_slowdowns(sizes: tuple[tuple[int, int, int, int], ...], noises: tuple[float, ...]) -> list[Row]:
    """Return rows that show which slowdown of a node, and of a link, is found at which noise."""
    return [
        Row(replace(simulated.Plan(nodes=nodes, noise=noise, rounds=rounds), slowdown=slowdown, **planted), faulty // 4)
        for noise in noises
        for nodes, rounds, _, faulty in sizes
        for planted in ({"slow_nodes": 1}, {"slow_links": 1})
        for slowdown in (0.05, 0.1, 0.2, 0.3, 0.5, 0.9)
    ]


def table(found: list[Row]) -> list[str]:
    names = list(rules.RULES)
    lines = [
        f"{'':36}" + "".join(f"{name:>14}" for name in names),
        f"{'noise':>5} {'nodes':>5} {'planted':>15} {'clusters':>8}"
        + "".join(f"{'found':>7}{'wrong':>7}" for _ in names),
    ]
    for row in found:
        cells = "".join(f"{row.counts[name].share_found():>7}{row.counts[name].share_wrong():>7}" for name in names)
        lines.append(
            f"{row.plan.noise:>5.1%} {row.plan.nodes:>5,} {_planted(row.plan):>15} {row.clusters:>8,}{cells}".rstrip()
        )
    return lines


def slowdown_table(found: list[Row]) -> list[str]:
    slowdowns = sorted({row.plan.slowdown for row in found})
    lines = [f"{'noise':>5} {'nodes':>7} {'planted':>17}  " + "".join(f"{slowdown:>9.0%}" for slowdown in slowdowns)]
    keyed: dict[tuple[float, int, str], list[str]] = {}
    for row in found:
        key = (row.plan.noise, row.plan.nodes, _planted(row.plan))
        keyed.setdefault(key, []).append(f"{row.counts['clusterctl'].share_found():>9}")
    lines += [
        f"{noise:>5.1%} {nodes:>7,} {what:>17}  {''.join(cells)}" for (noise, nodes, what), cells in keyed.items()
    ]
    return lines


def _planted(plan: simulated.Plan) -> str:
    words = [
        f"{number} {what}"
        for number, what in ((plan.slow_nodes, "node"), (plan.slow_links, "link"), (plan.slow_ways, "way"))
        if number
    ]
    return " + ".join(words) or "nothing"


def main() -> None:
    parser = simulated.arguments(__doc__, seed=5, processes=2)
    parser.add_argument("--measured", type=float, help="noise of a link's median from run to run, in per cent")
    parser.add_argument("--quick", action="store_true", help="few and small clusters")
    parser.add_argument("--share", type=float, default=1.0, help="of more than 64 nodes, do that share of the clusters")
    options = parser.parse_args()
    sizes = QUICK if options.quick else SIZES
    sizes = tuple(
        (nodes, rounds, *(max(2, round(clusters * options.share)) for clusters in both))
        for nodes, rounds, *both in sizes
    )
    noises = tuple(sorted({*NOISE, *([options.measured / 100] if options.measured else [])}))
    began = time.monotonic()
    asked = rows(sizes, noises)
    asked_slowdowns = least_slowdowns(sizes[:4], noises)
    with ProcessPoolExecutor(options.processes) as pool:  # largest first, so that none is waited for at the end
        order = sorted(asked + asked_slowdowns, key=lambda row: -row.plan.nodes * row.clusters)
        done = {id(row): pool.submit(examine, row, options.seed) for row in order}
        found = [done[id(row)].result() for row in asked]
        found_slowdowns = [done[id(row)].result() for row in asked_slowdowns]
    plan = asked[0].plan
    lines = [
        "Slow nodes, slow links and links slow one way of known truth, 10 % slower than the rest, each measured twice.",
        "found: share of the planted that were named; wrong: share of clusters in which anybody healthy was named",
        "(where nothing is planted: false alarms). All rules saw the same figures.",
        f"Noise is new in each run; {plan.late:.1%} of links have a bad moment in a run (slower by e^x, x exponential",
        f"with mean {plan.late_by:g}; each direction strays by {plan.own:.0%} of the noise by itself);",
        f"healthy nodes differ by {plan.between_nodes:.1%} (standard deviation) in both.",
        f"More than {simulated.ALL_PAIRS} nodes: {', '.join(f'{s[1]} rounds of {s[0]:,}' for s in sizes if s[1])}.",
        f"Measured level: {options.measured:g} %." if options.measured else "No measured level was given.",
        f"Seed {options.seed}.",
        "",
        *table(found),
        "",
        "Which slowdown clusterctl finds, as a share of the planted:",
        "",
        *slowdown_table(found_slowdowns),
    ]
    simulated.show("\n".join(lines) + "\n", began, options.out)


if __name__ == "__main__":
    main()
