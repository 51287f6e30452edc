"""Clusters whose slow nodes and slow links are known, as the all-pairs measurement would show them.

A link's value is level x noise x what is planted. The noise is lognormal, new in every run, and now and then a link has
a bad moment (``late``), which is past in the next run. What the healthy nodes differ by stays from run to run.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from clusterctl.model.results import PairMatrix
from numpy.typing import NDArray

LEVEL = 1.1e9  # B/s
ALL_PAIRS = 512  # nodes up to which every pair is measured, as the product does
SIZE = 1 << 20


@dataclass(frozen=True)
class Plan:
    """A kind of cluster: how many nodes, how noisy, and what is planted."""

    nodes: int
    noise: float  # standard deviation of a link's median from run to run, 0.03 is 3 %
    slow_nodes: int = 0
    slow_links: int = 0
    slow_ways: int = field(default=0, repr=False)  # links that are slow in one direction; the seed is made of the rest
    slowdown: float = 0.1  # 0.1: a tenth of the speed is missing
    own: float = field(
        default=0.5, repr=False
    )  # of the noise, the part that each direction has by itself; the rest is that of the moment
    late: float = 0.002  # share of links that have a bad moment in a run
    late_by: float = 0.3  # mean of the exponential distribution of its logarithm
    between_nodes: float = 0.005  # what healthy nodes differ by
    rounds: int = 0  # sampled rounds of the tournament; 0 is all pairs
    racks: int = field(default=0, repr=False)  # as many of equal size; links between them are slow
    lossy_ways: int = field(default=0, repr=False)  # links that lose packets in one direction
    loss: float = field(default=0.02, repr=False)  # of the segments of a lossy way
    loss_slows: float = field(default=0.4, repr=False)  # mean logarithm by which the loss slows that way in a run


@dataclass(frozen=True)
class Cluster:
    """One cluster of a plan; ``first`` and ``second`` begin with the round (0, 1), (2, 3), ..."""

    plan: Plan
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    steady: NDArray[np.float64]  # what a link is worse by in every run, as a logarithm
    bad_nodes: frozenset[int]
    bad_links: frozenset[tuple[int, int]]
    slow_way: NDArray[np.float64]  # what the first direction is worse by, negative for the second one
    bad_ways: frozenset[tuple[int, int]]  # sender and receiver
    of_nodes: NDArray[np.float64]  # what the links of each node are worse by
    rack_of: NDArray[np.int64]  # of each node, 0 where there are no racks
    lossy: NDArray[np.int64]  # links whose first direction loses packets

    def number_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of links by their ends, the smaller one first; a row for each pair."""
        key = self.first * self.plan.nodes + self.second
        order = np.argsort(key)
        wanted = pairs[:, 0] * self.plan.nodes + pairs[:, 1]
        return order[np.searchsorted(key, wanted, sorter=order)]


def build(plan: Plan, rng: np.random.Generator) -> Cluster:
    """Choose the pairs, and who among nodes and links is slow; a slow link has two healthy ends."""
    first, second = _pairs(plan, rng)
    order = rng.permutation(plan.nodes)
    bad_nodes = order[: plan.slow_nodes]
    bad = np.zeros(plan.nodes, dtype=bool)
    bad[bad_nodes] = True
    healthy = np.flatnonzero(~bad[first] & ~bad[second])
    chosen = rng.choice(healthy, size=plan.slow_links + plan.slow_ways, replace=False)
    bad_links, bad_ways = np.split(chosen, [plan.slow_links])
    per_node = rng.normal(0, plan.between_nodes, plan.nodes)
    slow = -np.log1p(-plan.slowdown)
    per_node[bad_nodes] += slow
    steady = per_node[first] + per_node[second]
    steady[bad_links] += slow
    slow_way = np.zeros(first.size)
    slow_way[bad_ways] = slow * rng.choice([-1, 1], size=bad_ways.size)
    rack_of = np.zeros(plan.nodes, dtype=np.int64)
    if plan.racks:
        rack_of[rng.permutation(plan.nodes)] = np.arange(plan.nodes) * plan.racks // plan.nodes
        steady[rack_of[first] != rack_of[second]] += slow
    lossy = rng.choice(healthy, size=plan.lossy_ways, replace=False) if plan.lossy_ways else np.zeros(0, np.int64)
    ends = [(int(first[link]), int(second[link])) for link in bad_ways]
    return Cluster(
        plan=plan,
        first=first,
        second=second,
        steady=steady,
        bad_nodes=frozenset(int(node) for node in bad_nodes),
        bad_links=frozenset((int(first[link]), int(second[link])) for link in bad_links),
        slow_way=slow_way,
        bad_ways=frozenset(
            pair if slow_way[link] > 0 else pair[::-1] for pair, link in zip(ends, bad_ways, strict=True)
        ),
        of_nodes=per_node,
        rack_of=rack_of,
        lossy=lossy,
    )


def measure(cluster: Cluster, rng: np.random.Generator) -> PairMatrix:
    """Return one run's matrix of bandwidths."""
    plan = cluster.plan
    logs = cluster.steady + rng.normal(0, plan.noise, cluster.steady.size)
    late = rng.random(logs.size) < cluster.plan.late
    logs[late] += rng.exponential(cluster.plan.late_by, int(late.sum()))
    # Both directions have the noise of the moment; what each has by itself is beside it, and opposite in both, so
    # that the average of both is as noisy as it was.
    apart = rng.spawn(1)[0].normal(0, plan.own * plan.noise, logs.size)
    forward = logs + apart + np.maximum(cluster.slow_way, 0)
    backward = logs - apart + np.maximum(-cluster.slow_way, 0)
    if cluster.lossy.size:
        forward[cluster.lossy] += rng.exponential(plan.loss_slows, cluster.lossy.size)
    # A record's tuples are checked one by one; half a million of them are no part of what is examined here.
    return PairMatrix.model_construct(
        quantity="bandwidth",
        size_bytes=SIZE,
        unit="B/s",
        better="higher",
        nodes=tuple(f"node{number}" for number in range(cluster.plan.nodes)),
        first=cluster.first,
        second=cluster.second,
        value=LEVEL * 2 / (np.exp(forward) + np.exp(backward)),
        forward=LEVEL * np.exp(-forward),
        backward=LEVEL * np.exp(-backward),
        spread=(),
        complete=not cluster.plan.rounds,
    )


def measure_on(
    cluster: Cluster, links: NDArray[np.int64], repeats: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return further samples of some links, as logarithms of which large ones are bad: a column for each repeat."""
    plan = cluster.plan
    shape = (links.size, repeats)
    logs = cluster.steady[links][:, None] + rng.normal(0, plan.noise, shape)
    late = rng.random(shape) < plan.late
    logs[late] += rng.exponential(plan.late_by, int(late.sum()))
    return logs


def unplayed(cluster: Cluster, pair: tuple[int, int], rng: np.random.Generator) -> float:
    """Return the bandwidth of a pair that a sampled tournament left out; a slow link is always among the played."""
    worse = cluster.of_nodes[list(pair)].sum() + rng.normal(0, cluster.plan.noise)
    if cluster.rack_of[pair[0]] != cluster.rack_of[pair[1]]:
        worse -= np.log1p(-cluster.plan.slowdown)
    if rng.random() < cluster.plan.late:
        worse += rng.exponential(cluster.plan.late_by)
    return float(LEVEL * np.exp(-worse))


def _pairs(plan: Plan, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not plan.rounds:
        first, second = np.triu_indices(plan.nodes, 1)
        in_first_round = (first % 2 == 0) & (second == first + 1)
        order = np.argsort(~in_first_round, kind="stable")
        return first[order].astype(np.int64), second[order].astype(np.int64)
    # The circle method: node 0 stays, the others move on by one a round; the rounds are drawn without repetition.
    count = plan.nodes + plan.nodes % 2
    others = np.arange(1, count)
    found = []
    for turn in np.concatenate(([0], 1 + rng.choice(count - 2, size=plan.rounds - 1, replace=False))):
        seats = np.concatenate(([0], np.roll(others, turn)))
        found.append(np.stack((seats[: count // 2], seats[count // 2 :][::-1]), axis=1))
    both = np.sort(np.concatenate(found), axis=1)
    both = both[both[:, 1] < plan.nodes]
    return both[:, 0].astype(np.int64), both[:, 1].astype(np.int64)


def arguments(words: str | None, seed: int, processes: int) -> argparse.ArgumentParser:
    """Return the options that all tables have; ``words`` are the docstring of the program."""
    parser = argparse.ArgumentParser(description=(words or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--processes", type=int, default=processes)
    parser.add_argument("--out", type=Path, help="write the table there as well")
    return parser


def show(text: str, began: float, out: Path | None, after: str = "") -> None:
    """Print a table and how long it took, and write it to a file where one is given, with what follows there."""
    sys.stdout.write(text)
    sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")
    if out:
        out.write_text(text + after, encoding="utf-8")
