"""A file for node_exporter's textfile collector, in Prometheus' text exposition format 0.0.4.

Units are base units (seconds, bytes, hertz), names end in them, and states are one series per state with 0 or 1, as
https://prometheus.io/docs/practices/naming/ and https://prometheus.io/docs/instrumenting/exposition_formats/ have it.
No label carries a run's id: it would begin new series every night.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.model.results import Verdict
from clusterctl.report import actions

if TYPE_CHECKING:
    from clusterctl.model.results import Figure, Unit, ValidationRecord

_MOST_FIGURES = 20_000  # series a night; what is beyond it is counted in a metric of its own
_UNITS: dict[Unit, tuple[str, float]] = {
    "s": ("seconds", 1.0),
    "us": ("seconds", 1e-6),
    "B/s": ("bytes_per_second", 1.0),
    "FLOP/s": ("flops", 1.0),
    "Hz": ("hertz", 1.0),
    "ranks": ("ranks", 1.0),
    "nodes": ("nodes", 1.0),
    "GPUs": ("gpus", 1.0),
    "tokens/s": ("tokens_per_second", 1.0),
    "1": ("ratio", 1.0),
}
_HELP = {
    "clusterctl_validation_info": "The last validation: its suite and the versions of clusterctl and Open MPI.",
    "clusterctl_validation_verdict": "1 for the verdict of the last validation, 0 for the others.",
    "clusterctl_validation_start_timestamp_seconds": "When the last validation began, in seconds since 1970.",
    "clusterctl_validation_end_timestamp_seconds": "When the last validation ended, in seconds since 1970.",
    "clusterctl_validation_nodes": "Nodes that the last validation was about.",
    "clusterctl_validation_actions": "Things that somebody has to look at.",
    "clusterctl_check_verdict": "1 for the verdict of a check, 0 for the others.",
    "clusterctl_check_duration_seconds": "How long a check took.",
    "clusterctl_culprit": "1 for each node, pair or set of nodes that a check names.",
    "clusterctl_culprit_ratio": "Measured over expected, for each culprit that was measured.",
    "clusterctl_culprit_since_timestamp_seconds": "The first of the consecutive runs that named it.",
    "clusterctl_comparison_failed": "1 where a figure misses its reference.",
    "clusterctl_figures_left_out": "Figures of single nodes and links for which this file has no room.",
}


class _Sample(NamedTuple):
    labels: dict[str, str]
    value: float


def document(record: ValidationRecord) -> str:
    """Return the whole file; it ends in a line feed, as the collector demands."""
    samples: dict[str, list[_Sample]] = defaultdict(list)
    ground = {"inventory": record.inventory}
    _run(samples, record, ground)
    for check in record.checks:
        about = {**ground, "check": check.check}
        for verdict in Verdict:
            one = {**about, "verdict": verdict.value}
            samples["clusterctl_check_verdict"].append(_Sample(one, float(check.verdict is verdict)))
        samples["clusterctl_check_duration_seconds"].append(_Sample(about, check.seconds))
        for culprit in actions.culprits(check):
            one = {
                **about,
                "kind": culprit.kind,
                "nodes": ",".join(culprit.nodes),
                "quantity": culprit.quantity,
                "size_bytes": "" if culprit.size_bytes is None else str(culprit.size_bytes),
            }
            samples["clusterctl_culprit"].append(_Sample(one, 1.0))
            if culprit.ratio is not None:
                samples["clusterctl_culprit_ratio"].append(_Sample(one, culprit.ratio))
            if culprit.since is not None:
                since = culprit.since.timestamp()
                samples["clusterctl_culprit_since_timestamp_seconds"].append(_Sample(one, since))
        for compared in check.comparisons:
            one = {**about, **_labels(compared.figure), "source": compared.reference.source}
            failed = float(compared.verdict is Verdict.FAIL)
            samples["clusterctl_comparison_failed"].append(_Sample(one, failed))
            _add(samples, "clusterctl_reference", one, compared.reference.value, compared.reference.unit)
    _figures(samples, record, ground)
    return "".join(_metric(name, found) for name, found in samples.items())


def _run(samples: dict[str, list[_Sample]], record: ValidationRecord, ground: dict[str, str]) -> None:
    info = {"suite": record.suite, "version": record.clusterctl_version, "openmpi": record.openmpi_version}
    samples["clusterctl_validation_info"].append(_Sample({**ground, **info}, 1.0))
    for verdict in Verdict:
        one = {**ground, "verdict": verdict.value}
        samples["clusterctl_validation_verdict"].append(_Sample(one, float(record.verdict is verdict)))
    for name, value in {
        "start_timestamp_seconds": record.started.timestamp(),
        "end_timestamp_seconds": record.finished.timestamp(),
        "nodes": float(len(record.hosts)),
        "actions": float(len(actions.of(record))),
    }.items():
        samples[f"clusterctl_validation_{name}"].append(_Sample(ground, value))


def _figures(samples: dict[str, list[_Sample]], record: ValidationRecord, ground: dict[str, str]) -> None:
    found = [(check.check, figure) for check in record.checks for figure in check.figures]
    found.sort(key=lambda one: len(one[1].nodes))  # over all first, single nodes next, links last
    for check, figure in found[:_MOST_FIGURES]:
        labels = {**ground, "check": check, **_labels(figure)}
        _add(samples, "clusterctl_figure", labels, figure.value, figure.unit)
    left = float(max(0, len(found) - _MOST_FIGURES))
    samples["clusterctl_figures_left_out"].append(_Sample(ground, left))


def _labels(figure: Figure) -> dict[str, str]:
    return {
        "quantity": figure.quantity,
        "operation": figure.operation,
        "backend": figure.backend,
        "algorithm": figure.algorithm,
        "size_bytes": "" if figure.size_bytes is None else str(figure.size_bytes),
        "nodes": ",".join(figure.nodes),
    }


def _add(samples: dict[str, list[_Sample]], stem: str, labels: dict[str, str], value: float, unit: Unit) -> None:
    word, factor = _UNITS[unit]
    samples[f"{stem}_{word}"].append(_Sample(labels, value * factor))


def _metric(name: str, found: list[_Sample]) -> str:
    words = _HELP.get(name) or (
        "The median of what was measured." if name.startswith("clusterctl_figure") else "What a figure was to be."
    )
    unique = {tuple(one.labels.items()): one for one in found}  # two equal series would make the whole file void
    lines = [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
    for one in unique.values():
        labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in one.labels.items())
        lines.append(f"{name}{{{labels}}} {_number(one.value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
