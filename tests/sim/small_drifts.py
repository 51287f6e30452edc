"""After how many nights a node that is 0.5 % slow every night is named, and how often anybody healthy is, as a table.

    python tests/sim/small_drifts.py [--clusters N] [--seed N] [--noise PERCENT ...] [--nodes N ...]

Each night has the medians of each node's links at three sizes, as ``pairs`` keeps them. Healthy nodes differ by 0.5 %
for good, and in each night 0.2 % of the links have a bad moment.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from clusterctl.report import slow_nodes
from numpy.typing import NDArray

SIZES, HEALTHY, NIGHTS = 3, 20, 100
BETWEEN, LATE, LATE_BY = 0.005, 0.002, 0.3


def night(rng: np.random.Generator, lasting: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Return the medians of all nodes' links by size and node, as logarithms of which large ones are bad."""
    count = lasting.size
    found = np.empty((SIZES, count))
    for size in range(SIZES):
        links = np.triu(rng.normal(0, noise, (count, count)), 1)
        links += np.triu((rng.random((count, count)) < LATE) * rng.exponential(LATE_BY, (count, count)), 1)
        links += links.T + lasting[:, None] + lasting[None, :]
        others = links[~np.eye(count, dtype=bool)].reshape(count, count - 1)
        found[size] = np.median(others, axis=1)
    return found


def healthy(clusters: int, nodes: int, noise: float, seed: int) -> tuple[int, int]:
    """Return in how many clusters anybody is named on any of a hundred nights, and the number of such nights."""
    rng = np.random.default_rng([seed, nodes, round(1e4 * noise)])
    wrong = named = 0
    for _ in range(clusters):
        lasting = rng.normal(0, BETWEEN, nodes)
        figures = np.stack([night(rng, lasting, noise) for _ in range(NIGHTS)], axis=1)
        told = [slow_nodes.judge(figures[:, : last + 1]) for last in range(NIGHTS)]
        blamed = sum(one is not None and bool(one.drifts) for one in told)
        wrong += blamed > 0
        named += blamed
    return wrong, named


def slow(clusters: int, nodes: int, noise: float, seed: int) -> tuple[float, list[int | None], int | None]:
    """Return the share of nodes named on the seventh slow night or before, each one's night, and what was foretold."""
    rng = np.random.default_rng([seed, nodes, round(1e4 * noise), 1])
    nights: list[int | None] = []
    told = None
    for _ in range(clusters):
        lasting = rng.normal(0, BETWEEN, nodes)
        figures = [night(rng, lasting, noise) for _ in range(HEALTHY)]
        judged = slow_nodes.judge(np.stack(figures, axis=1))
        told = judged.needed if judged is not None else None
        lasting[0] += slow_nodes.SLOWDOWN
        nights.append(None)
        for number in range(1, 41):
            figures.append(night(rng, lasting, noise))
            judged = slow_nodes.judge(np.stack(figures, axis=1))
            if judged is not None and any(one.node == 0 for one in judged.drifts):
                nights[-1] = number
                break
    return sum(one is not None and one <= 7 for one in nights) / clusters, nights, told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--noise", type=float, nargs="*", default=(1.0, 2.0), help="of a link, in per cent")
    parser.add_argument("--nodes", type=int, nargs="*", default=(4, 16, 64))
    options = parser.parse_args()
    say = sys.stdout.write
    say("| noise of a link | nodes | named by the 7th night | median night | foretold | healthy clusters blamed |\n")
    say("|---|--:|--:|--:|--:|--:|\n")
    for noise in options.noise:
        for nodes in options.nodes:
            share, nights, told = slow(options.clusters, nodes, noise / 100, options.seed)
            wrong, _ = healthy(options.clusters, nodes, noise / 100, options.seed)
            middle = sorted(one if one is not None else 99 for one in nights)[len(nights) // 2]
            say(
                f"| {noise:g} % | {nodes} | {share:.0%} | {middle if middle < 99 else 'above 40'} | "
                f"{told or 'above 30'} | {wrong} of {options.clusters} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
