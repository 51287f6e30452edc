"""Who finds which fault: clusterctl and three usual rules on identical clusters, as docs/measured/verdicts.md.

    python tests/sim/verdicts.py [--repeats R] [--seed N] [--nodes N ...] [--processes N] [--out FILE]

``--repeats 4`` builds four times as many clusters. The same seed and repeats give the same page.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import peer_rules
import simulated
from nightly_pairs import LAUNCH_S, ROUND_S, SUITE

NOISE = (0.01, 0.03)
# Nodes, sampled rounds (0: all pairs), and clusters of each fault; healthy ones are twice as many.
SIZES = ((4, 0, 100), (16, 0, 100), (64, 0, 40), (256, 128, 8), (600, 128, 4))
FAULTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "slow node, 10 %": {"slow_nodes": 1},
    "slow node, 3 %": {"slow_nodes": 1, "slowdown": 0.03},
    "slow link, 10 %": {"slow_links": 1},
    "lossy link, 2 %": {"lossy_ways": 1},
    "two slow nodes, 10 %": {"slow_nodes": 2},
    "rack boundary, 10 %": {"racks": 2},
}
_HEALTHY = "nothing"
PLANTED = "## Planted on real nodes"  # the heading of the section that planted_verdicts.py writes
_PAGE = """# Measured: verdicts

This page compares clusterctl with three usual rules. All rules judge the same simulated clusters of known faults.
`make rehearsal-performance{again}` writes this page. The seed is {seed}; the repeats are {repeats}.

Each cell has four figures: *found / named rightly / wrongly blamed / time*.

- *found*: the share of clusters in which the rule says that anything is wrong.
- *named rightly*: the share in which it names all that is planted, each with its kind: node, link or boundary.
- *wrongly blamed*: the share in which it names a healthy node or link. Both ends of a slow link are healthy.
- *time*: the median by a simulated clock. A launch takes {launch_s} s. A round of disjoint pairs takes {round_s} s.

## The rules

| rule | description |
|---|---|
{sources}

The last two compare with a figure that a user types in. Here the limit is 5 % below the true figure.
Each of these rules is written anew from its description. The programs themselves did not run here.

For clusterctl, its own code judges as in the suite {suite}. It asks for further jobs and for further runs, and the
simulation answers. So the time of a healthy cluster has the jobs that measure undecided pairs on. A launch counts as
time of their budget, so one such job is usual here. The suite measures six sizes, and this page has one.
[Healthy clusters](detection.md#healthy-clusters-with-all-sizes) has all of them.

## The clusters

Healthy nodes differ by {between}. In each run {late} of the links have a bad moment. The noise of a link is new in each
run. A lossy link loses {loss} of the segments one way, and is slower by another amount in each run. A rack boundary
cuts the nodes into two halves. Larger clusters measure a part of the pairs: {sampled}.

## The table

{table}"""


@dataclass(frozen=True)
class Case:
    """Clusters of one kind."""

    fault: str
    nodes: int
    noise: float
    rounds: int
    clusters: int

    @property
    def plan(self) -> simulated.Plan:
        """The plan of the clusters."""
        return replace(simulated.Plan(nodes=self.nodes, noise=self.noise, rounds=self.rounds), **FAULTS[self.fault])


@dataclass
class Count:
    """What a rule made of the clusters of a case."""

    alarms: int = 0
    rightly: int = 0
    wrongly: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, seconds: float, *, alarm: bool, rightly: bool, wrongly: bool) -> None:
        """Count what the rule made of one more cluster."""
        self.alarms += alarm
        self.rightly += rightly
        self.wrongly += wrongly
        self.seconds.append(seconds)

    def cells(self, case: Case) -> list[str]:
        """The cells of the table: found, named rightly, wrongly blamed, time."""

        def share(number: int) -> str:
            return f"{number / case.clusters:.0%}"

        faulty = case.fault != _HEALTHY
        rightly = ("-", "-") if not faulty else (share(self.alarms), share(self.rightly))
        return [*rightly, share(self.wrongly), f"{statistics.median(self.seconds):.0f} s"]


def judged(told: peer_rules.Told, cluster: simulated.Cluster) -> tuple[bool, bool, bool]:
    """Return whether a rule found anything, named all that is planted, and blamed anybody healthy."""
    lossy = {(int(cluster.first[at]), int(cluster.second[at])) for at in cluster.lossy}
    links = cluster.bad_links | lossy
    racks = [frozenset(np.flatnonzero(cluster.rack_of == rack).tolist()) for rack in range(cluster.plan.racks)]
    boundary = any(side in told.boundaries for side in racks)
    across = {
        (a, b) for a, b in told.links if cluster.rack_of[a] != cluster.rack_of[b]
    }  # a slow link of the boundary is not healthy, and is not the boundary either
    wrongly = bool(told.nodes - cluster.bad_nodes or told.links - links - across or told.boundaries - frozenset(racks))
    rightly = (
        told.nodes >= cluster.bad_nodes
        and told.links >= links
        and (boundary or not racks)
        and (bool(cluster.bad_nodes or links or racks))
    )
    return told.alarm, rightly, wrongly


def examine(case: Case, seed: int) -> dict[str, Count]:
    """Build the clusters of a case and ask every rule about each."""
    key = f"{case.fault} {case.nodes} {case.noise} {case.rounds}".encode()
    rng = np.random.default_rng([seed, crc32(key)])
    counts = {name: Count() for name in peer_rules.RULES}
    for _ in range(case.clusters):
        cluster = simulated.build(case.plan, rng)
        data = peer_rules.measured(cluster, rng)
        choices = data.rng.bit_generator.state
        for name, (rule, _) in peer_rules.RULES.items():
            data.rng.bit_generator.state = choices
            told = rule(data)
            alarm, rightly, wrongly = judged(told, cluster)
            seconds = told.launches * LAUNCH_S + told.rounds * ROUND_S
            counts[name].add(seconds, alarm=alarm, rightly=rightly, wrongly=wrongly)
    return counts


def cases(repeats: float, only: tuple[int, ...]) -> list[Case]:
    """Return the rows of the table."""
    return [
        Case(fault, nodes, noise, rounds, max(2, round(repeats * clusters * (2 if fault == _HEALTHY else 1))))
        for noise in NOISE
        for fault in FAULTS
        for nodes, rounds, clusters in SIZES
        if not only or nodes in only
    ]


def table(asked: list[Case], found: list[dict[str, Count]]) -> list[str]:
    """Return the lines of both tables."""
    names = list(peer_rules.RULES)
    lines = []
    for noise in NOISE:
        lines += [f"### {noise:.0%} noise", ""]
        lines.append("| fault | nodes | clusters |" + "".join(f" {name} |" for name in names))
        lines.append("|---|--:|--:|" + "--:|" * len(names))
        for case, counts in zip(asked, found, strict=True):
            if case.noise == noise:
                cells = "".join(f" {' / '.join(counts[name].cells(case))} |" for name in names)
                lines.append(f"| {case.fault} | {case.nodes} | {case.clusters} |{cells}")
        lines.append("")
    return lines


def page(asked: list[Case], found: list[dict[str, Count]], seed: int, repeats: float) -> str:
    """Return docs/measured/verdicts.md."""
    plan = simulated.Plan(nodes=4, noise=NOISE[0])
    return _PAGE.format(
        again="" if repeats == 1 else f" CLUSTERS={repeats:g}",
        seed=seed,
        repeats=f"{repeats:g}",
        launch_s=f"{LAUNCH_S:g}",
        round_s=f"{ROUND_S:g}",
        suite=SUITE,
        sources="\n".join(f"| {name} | {source} |" for name, (_, source) in peer_rules.RULES.items()),
        between=f"{plan.between_nodes:.1%}",
        late=f"{plan.late:.1%}",
        loss=f"{plan.loss:.0%}",
        sampled=", ".join(f"{rounds} rounds of {nodes} nodes" for nodes, rounds, _ in SIZES if rounds),
        table="\n".join(table(asked, found)),
    )


def main() -> None:
    parser = simulated.arguments(__doc__, seed=15, processes=2)
    parser.add_argument("--repeats", type=float, default=1.0, help="so many times as many clusters")
    parser.add_argument("--nodes", type=int, nargs="*", default=(), help="only clusters of so many nodes")
    options = parser.parse_args()
    began = time.monotonic()
    asked = cases(options.repeats, tuple(options.nodes))
    with ProcessPoolExecutor(options.processes) as pool:  # largest first, so that none is waited for at the end
        order = sorted(asked, key=lambda case: -case.nodes * case.clusters)
        done = {case: pool.submit(examine, case, options.seed) for case in order}
        found = [done[case].result() for case in asked]
    text = page(asked, found, options.seed, options.repeats)
    before = options.out.read_text(encoding="utf-8") if options.out and options.out.is_file() else ""
    _, heading, rest = before.partition(PLANTED)
    simulated.show(
        f"{text.rstrip()}\n", began, options.out, f"\n{heading}{rest}".rstrip("\n") + "\n" if heading else ""
    )


if __name__ == "__main__":
    main()
