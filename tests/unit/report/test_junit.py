from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.report import exports
from report_records import FULL, record, records

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
    for element in ET.fromstring(exports.junit(one).encode()).iter():  # noqa: S314 - our own text
        required, optional, children = ADMITTED[element.tag]
        assert required <= set(element.attrib) <= required | optional
        assert {child.tag for child in element} <= children
    cases = [(case.get("classname"), case.get("name")) for case in ET.fromstring(exports.junit(one)).iter("testcase")]  # noqa: S314
    assert len(cases) == len(set(cases))  # GitLab reads the first of two equal names only


def test_junit_has_figures_as_properties_and_culprits_in_the_failure() -> None:
    suite = ET.fromstring(exports.junit(FULL).encode())[0]  # noqa: S314 - our own text
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["pairs: bandwidth, 8 MiB (mpi) on node2"] == "2.5e+08 B/s"
    failure = suite.findtext("testcase[@name='pairs']/failure", "")
    assert "node2 is slow" in failure
    assert "90 % below 2.5 GB/s" in failure


def test_junit_is_xml_whatever_the_logs_hold() -> None:
    text = exports.junit(record())
    root = ET.fromstring(text.encode())  # noqa: S314 - our own text
    assert root.tag == "testsuites"
    assert "\x1b" not in text
    assert "\\x1b[31mred" in root.findtext(".//testcase[@name='allreduce']/system-out", "")


def test_junit_counts_and_names_each_kind() -> None:
    suite = ET.fromstring(exports.junit(record()).encode())[0]  # noqa: S314 - our own text
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
    suite = ET.fromstring(exports.junit(record()).encode())[0]  # noqa: S314 - our own text
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
