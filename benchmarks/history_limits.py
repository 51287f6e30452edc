"""How often a healthy night fails by its history, and how often a slower cluster is found, over noise and runs.

    python benchmarks/history_limits.py

Runs differ by lognormal noise, or by the heavier tails of Student's t with three degrees of freedom. A night has 30
figures; it fails when one of them is beyond its limit in two runs. Both runs are held against the same history, so that
a history that is too narrow by chance counts against both.
"""

from __future__ import annotations

import numpy as np
from clusterctl.analysis import references
from clusterctl.model.results import Figure
from clusterctl.suite import HistoryOptions

FIGURES = 30
NIGHTS = 200
ONE = Figure(quantity="bandwidth", value=1.0, unit="B/s", better="higher")


def limits(past: np.ndarray) -> np.ndarray:
    """Return the lower limit of each row of earlier values."""
    found = []
    for values in past:
        reference = references.from_history(values.tolist(), ONE, HistoryOptions(), 0.01 / FIGURES)
        assert reference is not None  # noqa: S101 - a script's own data
        found.append(reference.value * (1 + (reference.lower or 0.0)))
    return np.array(found)


def main() -> None:
    """Print the table."""
    generator = np.random.default_rng(1)
    print("| noise | runs | healthy nights that fail | found at -10 % | -20 % | -30 % | -50 % |")
    print("|---|---|---|---|---|---|---|")
    for tails in ("normal", "heavy"):
        for spread in (0.01, 0.03, 0.10, 0.20):
            for runs in (5, 9, 20):
                shape = (NIGHTS * FIGURES, runs + 2)
                raw = generator.standard_normal(shape) if tails == "normal" else generator.standard_t(3, shape)
                values = np.exp(spread * raw)
                lowest = limits(values[:, :-2])
                now = values[:, -2:].max(axis=1)  # the better of two runs has to be beyond as well
                failed = (now < lowest).reshape(NIGHTS, FIGURES).any(axis=1).mean()
                found = [f"{(now * factor < lowest).mean():.0%}" for factor in (0.9, 0.8, 0.7, 0.5)]
                print(f"| {spread:.0%} {tails} | {runs} | {failed:.1%} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
