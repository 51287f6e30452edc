"""How often clusterctl blames anybody in healthy clusters, by the suites smoke and nightly with all their sizes.

    python tests/sim/healthy.py [--nodes N] [--clusters N] [--noise PERCENT] [--suite NAME] [--one-size]

Each size has its own noise and its own bad moments, so links of several sizes can be taken for slow in one run. The
product measures on and runs again as it would on a cluster (``nightly_pairs.py``). The aim is one blame in 600.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

import nightly_pairs
import numpy as np
import simulated
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation.checks import registry
from clusterctl.validation.checks.pairs import Pairs

LATENCY_US = 20.0


@dataclass
class Blames:
    """What became of healthy clusters: the reasons of those that were blamed, and clusters by their number of jobs."""

    sizes: int
    reasons: dict[int, str] = field(default_factory=dict)
    jobs: Counter[int] = field(default_factory=Counter)


def examine(
    nodes: int,
    clusters: int,
    *,
    noise: float = 0.03,
    suite: str = nightly_pairs.SUITE,
    one_size: bool = False,
    seed: int = 15,
) -> Blames:
    """Build healthy clusters and validate each; ``one_size`` is bandwidth of 1 MiB alone, not all of the suite."""
    (check,) = registry.select(["pairs"], registry.builtin(suite))
    assert isinstance(check, Pairs)
    sizes = [("bandwidth", simulated.SIZE)]
    if not one_size:
        sizes = [("latency", size) for size in check.options.latency_bytes]
        sizes += [("bandwidth", size) for size in check.options.bandwidth_bytes]
    most = check.options.max_rounds or 0
    plan = simulated.Plan(nodes=nodes, noise=noise, rounds=most if most < nodes - 1 else 0)
    rng = np.random.default_rng([seed, crc32(f"{suite} {len(sizes)} {plan}".encode())])
    found = Blames(len(sizes))
    for number in range(1, clusters + 1):
        cluster = simulated.build(plan, rng)
        night = nightly_pairs.Night(cluster, partial(result, cluster, rng, sizes), rng, suite)
        judged = night.validated()
        found.jobs[night.launches] += 1
        if judged.verdict is not Verdict.PASS:
            found.reasons[number] = judged.reason
    return found


def result(
    cluster: simulated.Cluster, rng: np.random.Generator, sizes: list[tuple[str, int]], _run: int
) -> CheckResult:
    """Return one run of the tournament with a matrix for each quantity and size."""
    matrices = []
    for quantity, size_bytes in sizes:
        one = simulated.measure(cluster, rng)
        plain = {
            name: tuple(getattr(one, name).tolist()) for name in ("first", "second", "value", "forward", "backward")
        }
        about = {"quantity": quantity, "size_bytes": size_bytes}
        if quantity == "latency":
            value = (LATENCY_US * simulated.LEVEL / one.value).tolist()
            plain |= {"value": tuple(value), "forward": (), "backward": ()}
            about |= {"unit": "us", "better": "lower"}
        matrices.append(one.model_copy(update={**plain, **about}))
    return CheckResult.model_construct(
        check="pairs", verdict=Verdict.PASS, reason="", matrices=tuple(matrices), figures=(), culprits=(), ranks=()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--clusters", type=int, default=600)
    parser.add_argument("--noise", type=float, default=3.0, help="of a link, in per cent")
    parser.add_argument("--suite", choices=("smoke", "nightly"), default=nightly_pairs.SUITE)
    parser.add_argument("--one-size", action="store_true", help="bandwidth of 1 MiB alone")
    parser.add_argument("--seed", type=int, default=15)
    options = parser.parse_args()
    began = time.process_time()
    found = examine(
        options.nodes,
        options.clusters,
        noise=options.noise / 100,
        suite=options.suite,
        one_size=options.one_size,
        seed=options.seed,
    )
    for number, reason in found.reasons.items():
        sys.stderr.write(f"cluster {number}: {reason}\n")
    jobs = ", ".join(f"{count} took {number}" for number, count in sorted(found.jobs.items()))
    sys.stdout.write(
        f"{options.suite}, {found.sizes} sizes, {options.nodes} nodes, {options.noise:g} % noise, seed {options.seed}: "
        f"{len(found.reasons)} of {options.clusters} healthy clusters blamed; jobs: {jobs}; "
        f"{time.process_time() - began:.0f} s of processor time\n"
    )


if __name__ == "__main__":
    main()
