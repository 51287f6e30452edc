"""The speed of a training: time of a step, scaling efficiency and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.results import Figure
from clusterctl.validation.checks import base, rank_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import Unit

# The quantities of a training that a reference can name.
MEASURES: Mapping[str, Unit] = {"efficiency": "1", "time": "s", "throughput": "tokens/s"}
_TOGETHER, _ALONE = "training_step", "single_process_step"  # the words of language_model.py


def figures(
    site: base.Site, outcome: JobOutcome, processes: int, tokens: float, confidence: float = 0.95
) -> tuple[Figure, ...]:
    """Return the times of a step, the scaling efficiency and the throughput; empty without printed times.

    Efficiency is strong scaling. One process and ``n`` processes train the same batches; without losses, ``n``
    processes take an ``n``-th of the time. Its interval is made of the ends of the intervals of both times, so its
    probability is the chance that both hold. Throughput follows from the time of a step and is not judged.

    Args:
        site: where it ran.
        outcome: all its output.
        processes: how many trained together.
        tokens: tokens in a batch.
        confidence: probability of the intervals of the times.
    """
    measured = rank_output.read(outcome.lines, site.placement, site.names).measured
    times = rank_output.figures([one for one in measured if one.quantity == "time"], confidence, together=True)
    by_operation = {figure.operation: figure for figure in times}
    together, alone = by_operation.get(_TOGETHER), by_operation.get(_ALONE)
    if together is None or alone is None or min(together.value, together.low or together.value) <= 0:
        return times
    low, high = (
        None if end is None or over is None else over / (processes * end)
        for end, over in ((together.high, alone.low), (together.low, alone.high))
    )
    efficiency = Figure(
        quantity="efficiency",
        operation=_TOGETHER,
        backend=together.backend,
        value=alone.value / (processes * together.value),
        unit="1",
        low=low,
        high=high,
        confidence=max(0.0, 2 * confidence - 1) if low is not None and high is not None else 0.0,
        better="higher",
    )
    throughput = Figure(
        quantity="throughput",
        operation=_TOGETHER,
        backend=together.backend,
        value=tokens / together.value,
        unit="tokens/s",
        low=None if together.high is None else tokens / together.high,
        high=None if together.low is None else tokens / together.low,
        confidence=together.confidence,
    )
    return (*times, efficiency, throughput)


def words(found: tuple[Figure, ...]) -> str:
    """Return ``, scaling efficiency 61 %``, empty where it is not among the figures."""
    efficiency = next((one for one in found if one.quantity == "efficiency"), None)
    return "" if efficiency is None else f", scaling efficiency {100 * efficiency.value:.0f} %"
