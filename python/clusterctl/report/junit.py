"""JUnit's XML, as build servers read it: one suite, one case per check, the evidence in the case."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from clusterctl.result import Verdict

if TYPE_CHECKING:
    from clusterctl.result import CheckResult, RankReport, ValidationRecord

# What XML 1.0 cannot carry, not even escaped: control characters, lone surrogates and the two non-characters.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.SKIP: "skipped"}


def document(record: ValidationRecord) -> str:
    """Return the whole XML document."""
    counts = {verdict: sum(check.verdict is verdict for check in record.checks) for verdict in Verdict}
    suite = {
        "name": "clusterctl validate",
        "tests": str(len(record.checks)),
        "failures": str(counts[Verdict.FAIL]),
        "errors": str(counts[Verdict.ERROR]),
        "skipped": str(counts[Verdict.SKIP]),
        "time": f"{(record.finished - record.started).total_seconds():.3f}",
        "timestamp": record.started.replace(tzinfo=None).isoformat(timespec="seconds"),
    }
    root = ET.Element("testsuites", {key: suite[key] for key in ("name", "tests", "failures", "errors", "time")})
    element = ET.SubElement(root, "testsuite", {**suite, "hostname": printable(record.launch_node)})
    _properties(element, record)
    for check in record.checks:
        _case(element, check)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def printable(text: str) -> str:
    """Return the text with what XML cannot carry written as its number; a log may hold any byte."""
    return _FORBIDDEN.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _properties(element: ET.Element, record: ValidationRecord) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in {
        "schema_version": str(record.schema_version),
        "clusterctl_version": record.clusterctl_version,
        "run_id": record.run_id,
        "inventory": record.inventory,
        "verdict": record.verdict.value,
        "launch_node": record.launch_node,
        "openmpi_version": record.openmpi_version,
        "slots": " ".join(f"{node}={slots}" for node, slots in record.slots.items()),
    }.items():
        ET.SubElement(properties, "property", {"name": name, "value": printable(value)})


def _case(suite: ET.Element, check: CheckResult) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {"classname": "clusterctl.validation", "name": printable(check.check), "time": f"{check.seconds:.3f}"},
    )
    kind = _ELEMENTS.get(check.verdict)
    if kind is not None:
        verdict = ET.SubElement(case, kind, {"message": printable(check.reason)})
        if kind != "skipped":
            verdict.set("type", check.verdict.value)
            verdict.text = printable("\n".join([check.reason, *_about_ranks(check.ranks)]))
    evidence = _evidence(check)
    if evidence:
        ET.SubElement(case, "system-out").text = printable("\n".join(evidence))


def _about_ranks(reports: tuple[RankReport, ...]) -> list[str]:
    lines = []
    for report in reports:
        who = f"rank {report.rank} on {report.host}"
        if report.state != "answered":
            lines.append(f"{who}: {report.state}" + (f" in {report.step}" if report.step else ""))
        lines += [f"{who}: {wrong.what}: expected {wrong.expected}, got {wrong.got}" for wrong in report.problems]
        said = {**report.libraries, **report.facts, **{name: f"{value:g}" for name, value in report.figures.items()}}
        lines += [f"{who}: {name}: {value}" for name, value in said.items()]
    return lines


def _evidence(check: CheckResult) -> list[str]:
    lines = []
    if check.command:
        lines.append(f"command: {shlex.join(check.command)}")
    if check.repeat:
        lines.append(f"repeat: {check.repeat}")
    if check.hosts:
        lines.append(f"hosts: {' '.join(check.hosts)}")
    lines += [f"not on {node}: {why}" for node, why in check.left_out.items()]
    if check.log:
        lines.append(f"log: {check.log}")
    lines += [f"{figure.name}: {figure.value:g} {figure.unit}" for figure in check.measurements]
    lines += [f"left behind: {words}" for words in check.left_behind]
    return lines + list(check.evidence)
