"""Prometheus' text, JSON lines, JUnit and the JSON schema, each against somebody else's reader."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from clusterctl.model import results
from clusterctl.model.results import (
    CheckResult,
    Comparison,
    Culprit,
    Figure,
    Launch,
    Reference,
    Search,
    ValidationRecord,
    Verdict,
)
from clusterctl.report import actions, figure_words, jsonl, junit, prometheus, schema, validation_table
from prometheus_client.parser import text_string_to_metric_families
from test_report import BEGAN, CHECKS, NASTY, record

DATA = Path(__file__).resolve().parents[2] / "data" / "records"

SLOW = Figure(
    quantity="bandwidth", backend="mpi", size_bytes=8 << 20, nodes=("node2",), value=2.5e8, unit="B/s", better="higher"
)
NASTY_FIGURE = Figure(
    quantity='own "word"\n', operation="\\", nodes=("node1",), value=3.0, unit="1", samples=(1.0, 3.0)
)
LATENCY = Figure(quantity="latency", size_bytes=1, value=11.5, unit="us", better="lower")
PAIRS = CheckResult(
    check="pairs",
    verdict=Verdict.FAIL,
    reason="node2 stands out",
    repeat="clusterctl validate inventory.ini --checks pairs",
    figures=(SLOW, NASTY_FIGURE, LATENCY),
    comparisons=(
        Comparison(
            figure=SLOW,
            reference=Reference(value=2.5e9, lower=-0.1, unit="B/s", source="history"),
            verdict=Verdict.FAIL,
            words="bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        ),
    ),
    culprits=(
        Culprit(kind="node", nodes=("node2",), quantity="latency", size_bytes=1, ratio=1.4, words="node2 answers late"),
        Culprit(
            kind="node",
            nodes=("node2",),
            quantity="bandwidth",
            size_bytes=8 << 20,
            ratio=0.1,
            words="node2 is slow",
            since=BEGAN - timedelta(days=3),
        ),
        Culprit(kind="pair", nodes=("node1", "node3"), quantity="bandwidth", ratio=0.5, words="node1 to node3 is slow"),
    ),
    evidence=("node2: 250 MB/s", "node1 to node3: 1.2 GB/s"),
)
HUNG = CheckResult(
    check="allreduce",
    verdict=Verdict.FAIL,
    reason="did not come to its end",
    search=Search(
        check="allreduce",
        bound=8,
        launches=(Launch(nodes=("node1",), ok=True, seconds=1.0),),
        culprits=(Culprit(kind="node", nodes=("node4",), words="every job with node4 hangs"),),
        words="node4 makes allreduce hang",
    ),
)
FULL = record((*CHECKS, PAIRS)).model_copy(update={"fabric": {"node1": "eth0"}, "versions": {"nccl": "2.27.5"}})


def records() -> list[Any]:
    real = [
        pytest.param(results.load(path.read_bytes(), path.name), id=path.stem) for path in sorted(DATA.glob("*.json"))
    ]
    return [*real, pytest.param(FULL, id="full"), pytest.param(record(()), id="empty")]


# --- the schema ---------------------------------------------------------------------------------------------------


def test_the_shipped_schema_is_the_models() -> None:
    assert schema.text() == schema.rendered(), (
        "write it anew: python -c 'from clusterctl.report import schema; print(schema.rendered(), end=\"\")' "
        f"> python/clusterctl/report/schema/{schema.FILE}"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.text()))


@pytest.mark.parametrize("one", records())
def test_records_are_as_the_schema_says(one: ValidationRecord) -> None:
    data = json.loads(one.model_copy(update={"checks": tuple(map(readable, one.checks))}).model_dump_json())
    jsonschema.validate(data, json.loads(schema.text()), format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data.pop("verdict"), id="a field is gone"),
        pytest.param(lambda data: data.update(schema_version=3), id="another schema"),
        pytest.param(lambda data: data.update(colour="red"), id="an unknown field"),
        pytest.param(lambda data: data["checks"][0].update(verdict="GOOD"), id="an unknown verdict"),
    ],
)
def test_the_schema_refuses_what_is_no_record(damage: Any) -> None:
    data = json.loads(record(CHECKS[:1]).model_dump_json())
    damage(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(schema.text()))


def readable(check: CheckResult) -> CheckResult:
    """Without a lone surrogate, which no JSON of ours can hold."""
    return check.model_copy(update={"reason": "", "evidence": ()})


# --- Prometheus ---------------------------------------------------------------------------------------------------


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


# --- JSON lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", records())
def test_each_line_is_an_object_that_says_what_it_is(one: ValidationRecord) -> None:
    lines = [json.loads(line) for line in jsonl.lines(one)]
    assert lines[0]["type"] == "run"
    assert [line["check"] for line in lines if line["type"] == "check"] == [check.check for check in one.checks]
    assert {line["run_id"] for line in lines} == {one.run_id}
    assert sum(line["type"] == "figure" for line in lines) == sum(len(check.figures) for check in one.checks)


def test_what_is_no_number_is_null() -> None:
    odd = PAIRS.model_copy(update={"figures": (SLOW.model_copy(update={"value": float("nan")}),)})
    figures = [json.loads(line, parse_constant=pytest.fail) for line in jsonl.lines(record((odd,)))]
    assert [line["value"] for line in figures if line["type"] == "figure"] == [None]


def test_lines_count_ranks_and_name_culprits() -> None:
    lines = [json.loads(line) for line in jsonl.lines(record((*CHECKS, HUNG)))]
    assert next(line for line in lines if line.get("check") == "allreduce")["ranks"] == {"answered": 1, "waiting": 1}
    assert [line["nodes"] for line in lines if line["type"] == "culprit"] == [["node4"]]


# --- JUnit --------------------------------------------------------------------------------------------------------

# What Jenkins' xunit plugin admits in junit-10.xsd: attributes (the required ones first) and children of each element.
ADMITTED: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "group", "file", "log", "url"},
        {"properties", "testcase", "system-out", "system-err", "testsuite"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}


@pytest.mark.parametrize("one", records())
def test_junit_has_only_what_jenkins_admits(one: ValidationRecord) -> None:
    for element in ET.fromstring(junit.document(one).encode()).iter():  # noqa: S314 - our own text
        required, optional, children = ADMITTED[element.tag]
        assert required <= set(element.attrib) <= required | optional
        assert {child.tag for child in element} <= children
    cases = [(case.get("classname"), case.get("name")) for case in ET.fromstring(junit.document(one)).iter("testcase")]  # noqa: S314
    assert len(cases) == len(set(cases))  # GitLab reads the first of two equal names only


def test_junit_has_figures_as_properties_and_culprits_in_the_failure() -> None:
    suite = ET.fromstring(junit.document(FULL).encode())[0]  # noqa: S314 - our own text
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["pairs: bandwidth, 8 MiB (mpi) on node2"] == "2.5e+08 B/s"
    failure = suite.findtext("testcase[@name='pairs']/failure", "")
    assert "node2 is slow" in failure
    assert "90 % below 2.5 GB/s" in failure


# --- what to do ---------------------------------------------------------------------------------------------------


def test_what_to_do_names_each_thing_once_worst_first() -> None:
    todo = actions.of(record((*CHECKS, PAIRS, HUNG.model_copy(update={"check": "broadcast"}))))
    assert [(one.kind, one.nodes) for one in todo] == [
        ("node", "node4"),
        ("node", "node2"),
        ("pair", "node[1,3]"),
        ("check", "node2"),
        ("check", ""),
    ]
    slow = todo[1]
    assert (slow.words, slow.more) == ("node2 is slow", ("node2 answers late",))
    assert slow.since == BEGAN - timedelta(days=3)
    assert slow.evidence == ("bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s", "node2: 250 MB/s")
    assert todo[2].evidence == ("node1 to node3: 1.2 GB/s",)
    assert slow.repeat == PAIRS.repeat


def test_a_real_slow_link_is_the_one_thing_to_do() -> None:
    (one,) = actions.of(results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json"))
    assert (one.kind, one.nodes, one.checks) == ("node", "node5", ("pairs",))
    assert "86 % below its neighbours' 1.04 GB/s" in one.words
    assert actions.of(results.load((DATA / "healthy.json").read_bytes(), "healthy.json")) == ()


def test_nothing_to_do_when_all_is_well() -> None:
    assert actions.of(record(CHECKS[:1])) == ()
    assert validation_table.opening(record(CHECKS[:1])) == ()


def test_the_terminal_names_culprits_first() -> None:
    lines = validation_table.opening(record((PAIRS, HUNG)))
    assert lines[:3] == (
        "What to do:",
        "  1. every job with node4 hangs",
        "     Look at its kernel log and at the processes that are left on it, or leave it out with --limit.",
    )
    assert "  2. node2 is slow (since 2026-02-26 02:30)" in lines
    assert lines[-3:] == (
        "Out of bounds:",
        "  bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        "Search after allreduce: node4 makes allreduce hang (1 launches)",
    )


def test_figures_have_names() -> None:
    assert figure_words.about(SLOW) == "bandwidth, 8 MiB (mpi)"
    assert figure_words.about(Figure(quantity="bus_bandwidth", operation="allreduce", value=1, unit="B/s")) == (
        "allreduce bus bandwidth"
    )


def test_a_nasty_record_stays_in_its_place() -> None:
    text = prometheus.document(record((CHECKS[1].model_copy(update={"check": NASTY}),)))
    assert len(list(text_string_to_metric_families(text))) > 5
