from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from clusterctl.cli.report import schema_text
from clusterctl.model.findings import Finding
from clusterctl.model.hosts import Host
from clusterctl.model.results import Figure
from clusterctl.report import doctor_table, figure_words, jsonl, junit, prometheus
from doctor_view import NODES, diagnosis
from prometheus_client.parser import text_string_to_metric_families
from report_records import BEGAN, CHECKS, FULL, HUNG, NASTY, PAIRS, SLOW, record, records

if TYPE_CHECKING:
    from clusterctl.model.results import CheckResult, ValidationRecord

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


def test_junit_is_xml_whatever_the_logs_hold() -> None:
    text = junit.document(record())
    root = ET.fromstring(text.encode())  # noqa: S314 - our own text
    assert root.tag == "testsuites"
    assert "\x1b" not in text
    assert "\\x1b[31mred" in root.findtext(".//testcase[@name='allreduce']/system-out", "")


def test_junit_counts_and_names_each_kind() -> None:
    suite = ET.fromstring(junit.document(record()).encode())[0]  # noqa: S314 - our own text
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time", "timestamp")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "9.500",
        "timestamp": "2026-03-01T02:30:00",
    }
    kinds = {
        case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite.iter("testcase")
    }
    assert kinds == {"reachable": [], "allreduce": ["failure"], "gather": ["error"], "reduce": ["skipped"]}


def test_junit_carries_the_evidence() -> None:
    suite = ET.fromstring(junit.document(record()).encode())[0]  # noqa: S314 - our own text
    case = next(case for case in suite.iter("testcase") if case.get("name") == "allreduce")
    failure = case.findtext("failure", "")
    assert "rank 3 on node2: allreduce sum f8[3]: expected 36.0, got 35.0" in failure
    assert "rank 2 on node2: waiting in allreduce sum f8[3]" in failure
    assert "rank 3 on node2: backend: MPI" in failure
    said = case.findtext("system-out", "")
    assert "command: mpirun -np 8 'a b'" in said
    assert "repeat: clusterctl validate inventory.ini --checks allreduce" in said
    assert "total: 3.25 s" in said
    assert "not on node5: no GPU" in said


# --- doctor table ---


def test_the_ending_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert doctor_table.rows(diagnosis(warning))[0].nodes == "node[1-3]"
    assert doctor_table.closing(diagnosis()) == ("4 hosts: nothing wrong was found (0.0 s).",)
    assert doctor_table.closing(diagnosis(error, warning, warning, unreachable=("node4",), notes=("a.",))) == (
        "Note: a.",
        "4 hosts, 3 of them within reach: 1 error and 2 warnings (0.0 s).",
    )


def test_the_source_of_a_limit_stands_under_the_cause_and_in_the_record() -> None:
    found = diagnosis(Finding("links", "warning", ("node1",), "errors grew", "look", source="IEEE 802.3"))
    assert doctor_table.rows(found)[0].cause == "errors grew\nsource: IEEE 802.3"
    assert found.model_dump(mode="json")["findings"][0]["source"] == "IEEE 802.3"


# --- figure words ---


def test_figures_have_names() -> None:
    assert figure_words.about(SLOW) == "bandwidth, 8 MiB (mpi)"
    assert figure_words.about(Figure(quantity="bus_bandwidth", operation="allreduce", value=1, unit="B/s")) == (
        "allreduce bus bandwidth"
    )


def test_directions_differ_from_a_quarter_on() -> None:
    assert figure_words.differ(1.0, 1.3)
    assert figure_words.differ(1.3, 1.0)
    assert not figure_words.differ(1.0, 1.2)
    assert not figure_words.differ(0.0, 1.0)  # nothing was measured that way


# --- the script of cures: one command a line, quoted for both shells, and a comment that cannot end ---


HOSTS = {
    "node1": Host("node1", "192.0.2.1", user="admin", port=2222),
    "node2": Host("node2", "192.0.2.2", user="root"),
}


def lines(*findings: Finding) -> list[str]:
    return doctor_table.script(diagnosis(*findings), HOSTS).splitlines()[3:]


def test_each_host_gets_the_command_with_sudo_where_its_login_is_not_root() -> None:
    found = Finding("leftovers", "error", ("node1", "node2"), "ranks are left over", "end them", (("kill", "7", "8"),))
    assert lines(found) == [
        "# node1, node2: ranks are left over",
        "ssh -p 2222 -l admin 192.0.2.1 -- 'sudo kill 7 8'",
        "ssh -p 22 -l root 192.0.2.2 -- 'kill 7 8'",
    ]


def test_a_host_behind_a_bastion_is_reached_as_doctor_reached_it() -> None:
    bastion = ("-o", "ProxyCommand=ssh -W %h:%p gate")
    host = Host("node1", "192.0.2.1", user="root", private_key="/keys/a b", ssh_args=bastion)
    found = Finding("leftovers", "error", ("node1",), "a rank is left over", "end it", (("kill", "7"),))
    *_, command = doctor_table.script(diagnosis(found), {"node1": host}).splitlines()
    words = shlex.split(command)
    key = ["-i", "/keys/a b", "-o", "IdentitiesOnly=yes"]
    assert words == ["ssh", "-p", "22", *key, "-l", "root", *bastion, "192.0.2.1", "--", "kill 7"]


def test_what_no_command_cures_is_a_comment() -> None:
    found = Finding("disks", "error", ("node1",), "nvme0n1 fails", "replace the disk")
    assert lines(found) == ["# node1: nvme0n1 fails", "# by hand: replace the disk"]


def test_words_of_a_node_stay_words() -> None:
    evil = "x'; reboot\nreboot"
    found = Finding("gpus", "error", ("node2",), f"the GPU {evil}", "look", (("nvidia-smi", "-i", evil),))
    comment, *command = doctor_table.script(diagnosis(found), HOSTS).split("\n", 4)[3:]
    assert comment == "# node2: the GPU x'; reboot?reboot"
    words = shlex.split("\n".join(command))
    assert words[:-1] == ["ssh", "-p", "22", "-l", "root", "192.0.2.2", "--"]
    assert shlex.split(words[-1]) == ["nvidia-smi", "-i", evil]


# --- jsonl ---


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


# --- prometheus ---


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


# --- record schema ---


def test_the_schema_is_one_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize("one", records())
def test_records_are_as_the_schema_says(one: ValidationRecord) -> None:
    data = json.loads(one.model_copy(update={"checks": tuple(map(readable, one.checks))}).model_dump_json())
    jsonschema.validate(data, json.loads(schema_text()), format_checker=jsonschema.FormatChecker())


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
        jsonschema.validate(data, json.loads(schema_text()))


def readable(check: CheckResult) -> CheckResult:
    """Without a lone surrogate, which no JSON of ours can hold."""
    return check.model_copy(update={"reason": "", "evidence": ()})
