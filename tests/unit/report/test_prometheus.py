from __future__ import annotations

from datetime import timedelta

import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.report import prometheus
from prometheus_client.parser import text_string_to_metric_families
from report_records import BEGAN, CHECKS, FULL, NASTY, record, records


def samples(one: ValidationRecord) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = text_string_to_metric_families(prometheus.document(one))
    return {family.name: [(sample.labels, sample.value) for sample in family.samples] for family in families}


@pytest.mark.parametrize("one", records())
def test_prometheus_reads_it_and_no_series_stands_twice(one: ValidationRecord) -> None:
    text = prometheus.document(one)
    assert text.endswith("\n")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert sum(len(found) for found in samples(one).values()) == len(series)


def test_prometheus_has_verdicts_base_units_and_culprits() -> None:
    found = samples(FULL)
    assert {labels["verdict"]: value for labels, value in found["clusterctl_validation_verdict"]} == {
        "PASS": 0.0,
        "FAIL": 1.0,
        "SKIP": 0.0,
        "ERROR": 0.0,
    }
    assert found["clusterctl_figure_seconds"][0][1] == pytest.approx(11.5e-6)
    assert found["clusterctl_figure_ratio"][0][0]["quantity"] == 'own "word"\n'
    assert found["clusterctl_figure_ratio"][0][0]["operation"] == "\\"
    assert found["clusterctl_reference_bytes_per_second"][0][1] == 2.5e9
    assert ("node1,node3", 0.5) in {(labels["nodes"], value) for labels, value in found["clusterctl_culprit_ratio"]}
    assert found["clusterctl_culprit_since_timestamp_seconds"][0][1] == (BEGAN - timedelta(days=3)).timestamp()
    assert found["clusterctl_validation_end_timestamp_seconds"][0][1] == FULL.finished.timestamp()


def test_prometheus_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_MOST_FIGURES", 1)
    found = samples(FULL)
    assert found["clusterctl_figures_left_out"] == [({"inventory": "/etc/cluster.ini"}, 2.0)]
    assert "clusterctl_figure_seconds" in found  # the figure over all nodes stays
    assert "clusterctl_figure_bytes_per_second" not in found


def test_a_nasty_record_stays_in_its_place() -> None:
    text = prometheus.document(record((CHECKS[1].model_copy(update={"check": NASTY}),)))
    assert len(list(text_string_to_metric_families(text))) > 5
