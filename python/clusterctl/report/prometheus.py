"""Prometheus metrics of a validation, as a file for node_exporter's textfile collector.

Units are base units (seconds, bytes, hertz), and names end in them. A state is one series per value, each 0 or 1.
Both follow https://prometheus.io/docs/practices/naming/. Labels leave out the id of the run: it would begin new series
every night. ``prometheus_client`` writes the text; its import is slow, so callers import this module where they use it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from clusterctl.model.results import Verdict
from clusterctl.report import what_to_do

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterctl.model.results import Figure, Unit, ValidationRecord

_MOST_FIGURES = 20_000  # series a night; another metric counts the others
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
    "clusterctl_validation_nodes": "Nodes of the last validation.",
    "clusterctl_validation_actions": "Findings that need attention.",
    "clusterctl_check_verdict": "1 for the verdict of a check, 0 for the others.",
    "clusterctl_check_duration_seconds": "How long a check took.",
    "clusterctl_culprit": "1 for each node, pair or set of nodes that a check names.",
    "clusterctl_culprit_ratio": "Measured over expected, for each culprit that was measured.",
    "clusterctl_culprit_since_timestamp_seconds": "The first of the consecutive runs that named it.",
    "clusterctl_comparison_failed": "1 where a figure misses its reference.",
    "clusterctl_figures_left_out": "Figures of single nodes and links for which this file has no room.",
}


class Sample(NamedTuple):
    """One series of a gauge."""

    labels: Mapping[str, str]
    value: float


class Gauge(NamedTuple):
    """A metric with all its series."""

    name: str
    words: str
    samples: Iterable[Sample]


def document(record: ValidationRecord, more: Iterable[Gauge] = ()) -> str:
    """Return the whole file; it ends in a line feed, as the collector demands."""
    return text([*gauges(record), *more])


def text(found: Iterable[Gauge]) -> str:
    """Return metrics in Prometheus' text exposition format."""
    registry = CollectorRegistry()
    registry.register(_Collector(found))
    return generate_latest(registry).decode("utf-8")


def gauges(record: ValidationRecord) -> list[Gauge]:
    """Return the metrics of a validation."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    whole = {"inventory": record.inventory}
    _run(samples, record, whole)
    for check in record.checks:
        about = {**whole, "check": check.check}
        for verdict in Verdict:
            one = {**about, "verdict": verdict.value}
            samples["clusterctl_check_verdict"].append(Sample(one, float(check.verdict is verdict)))
        samples["clusterctl_check_duration_seconds"].append(Sample(about, check.seconds))
        for culprit in what_to_do.culprits(check):
            one = {
                **about,
                "kind": culprit.kind,
                "nodes": ",".join(culprit.nodes),
                "quantity": culprit.quantity,
                "size_bytes": "" if culprit.size_bytes is None else str(culprit.size_bytes),
            }
            samples["clusterctl_culprit"].append(Sample(one, 1.0))
            if culprit.ratio is not None:
                samples["clusterctl_culprit_ratio"].append(Sample(one, culprit.ratio))
            if culprit.since is not None:
                since = culprit.since.timestamp()
                samples["clusterctl_culprit_since_timestamp_seconds"].append(Sample(one, since))
        told = {node for culprit in what_to_do.culprits(check) for node in culprit.nodes}
        for node in check.named:
            if node not in told:
                one = {**about, "kind": "node", "nodes": node, "quantity": "", "size_bytes": ""}
                samples["clusterctl_culprit"].append(Sample(one, 1.0))
        for compared in check.comparisons:
            one = {**about, **_labels(compared.figure), "source": compared.reference.source}
            failed = float(compared.verdict is Verdict.FAIL)
            samples["clusterctl_comparison_failed"].append(Sample(one, failed))
            _add(samples, "clusterctl_reference", one, compared.reference.value, compared.reference.unit)
    _figures(samples, record, whole)
    return [Gauge(name, _words(name), found) for name, found in samples.items()]


def _run(samples: dict[str, list[Sample]], record: ValidationRecord, about: dict[str, str]) -> None:
    info = {"suite": record.suite, "version": record.clusterctl_version, "openmpi": record.openmpi_version}
    samples["clusterctl_validation_info"].append(Sample({**about, **info}, 1.0))
    for verdict in Verdict:
        one = {**about, "verdict": verdict.value}
        samples["clusterctl_validation_verdict"].append(Sample(one, float(record.verdict is verdict)))
    for name, value in {
        "start_timestamp_seconds": record.started.timestamp(),
        "end_timestamp_seconds": record.finished.timestamp(),
        "nodes": float(len(record.hosts)),
        "actions": float(len(what_to_do.of(record))),
    }.items():
        samples[f"clusterctl_validation_{name}"].append(Sample(about, value))


def _figures(samples: dict[str, list[Sample]], record: ValidationRecord, about: dict[str, str]) -> None:
    found = [(check.check, figure) for check in record.checks for figure in check.figures]
    found.sort(key=lambda one: len(one[1].nodes))  # over all first, single nodes next, links last
    for check, figure in found[:_MOST_FIGURES]:
        labels = {**about, "check": check, **_labels(figure)}
        _add(samples, "clusterctl_figure", labels, figure.value, figure.unit)
    left = float(max(0, len(found) - _MOST_FIGURES))
    samples["clusterctl_figures_left_out"].append(Sample(about, left))


def _labels(figure: Figure) -> dict[str, str]:
    return {
        "quantity": figure.quantity,
        "operation": figure.operation,
        "backend": figure.backend,
        "algorithm": figure.algorithm,
        "size_bytes": "" if figure.size_bytes is None else str(figure.size_bytes),
        "nodes": ",".join(figure.nodes),
    }


def _add(samples: dict[str, list[Sample]], stem: str, labels: dict[str, str], value: float, unit: Unit) -> None:
    word, factor = _UNITS[unit]
    samples[f"{stem}_{word}"].append(Sample(labels, value * factor))


def _words(name: str) -> str:
    figures = (
        "The median of the measured values." if name.startswith("clusterctl_figure") else "The reference of a figure."
    )
    return _HELP.get(name, figures)


class _Collector:
    """Hands gauges to the registry of ``prometheus_client``."""

    def __init__(self, found: Iterable[Gauge]) -> None:
        self._found = tuple(found)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, words, samples in self._found:
            family = GaugeMetricFamily(name, words)
            unique: dict[tuple[tuple[str, str], ...], float] = {}  # the collector drops a file with equal series
            for labels, value in samples:
                unique[tuple((label, _readable(word)) for label, word in labels.items())] = value
            for pairs, value in unique.items():
                family.add_sample(name, dict(pairs), value)
            yield family


def _readable(word: str) -> str:
    """Return the word without lone surrogates, which UTF-8 lacks, and without carriage returns, which end a line."""
    return word.encode("utf-8", "replace").decode().replace("\r", " ")
