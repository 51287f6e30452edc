"""A record as other programs read it: JUnit XML for build servers, JSON lines for log collectors and ``jq``."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from clusterctl.model.results import Verdict
from clusterctl.report import figure_words, what_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.model.results import CheckResult, Figure, RankReport, ValidationRecord

# JUnit has one suite, one case per check, the evidence in the case.
# The elements and attributes are those of ``junit-10.xsd`` of Jenkins' xunit plugin; GitLab reads a part of them. That
# schema has properties for a suite only, so figures are properties of the suite, named by check.
#
# XML 1.0 cannot carry these, even escaped: control characters, lone surrogates and the two non-characters.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_RANKS = 200  # reports of ranks in one case, the bad ones first; GitLab takes no file above 30 MB
_MOST_FIGURES = 2000  # properties of a suite
_ELEMENTS = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.SKIP: "skipped"}


def junit(record: ValidationRecord) -> str:
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
    """Return the text with each forbidden character written as its number; a log may hold any byte."""
    return _FORBIDDEN.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _properties(element: ET.Element, record: ValidationRecord) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in {
        "schema_version": str(record.schema_version),
        "clusterctl_version": record.clusterctl_version,
        "run_id": record.run_id,
        "inventory": record.inventory,
        "verdict": record.verdict.value,
        "suite": record.suite,
        "launch_node": record.launch_node,
        "openmpi_version": record.openmpi_version,
        "slots": " ".join(f"{node}={slots}" for node, slots in record.slots.items()),
        **{f"version {name}": version for name, version in record.versions.items()},
        **_figures(record),
    }.items():
        ET.SubElement(properties, "property", {"name": printable(name), "value": printable(value)})


def _figures(record: ValidationRecord) -> dict[str, str]:
    """Return the figures over all nodes, then those of single nodes up to the limit."""
    found = [(check, figure) for check in record.checks for figure in check.figures]
    found.sort(key=lambda one: bool(one[1].nodes))
    return {_name(check, figure): f"{figure.value:g} {figure.unit}" for check, figure in found[:_MOST_FIGURES]}


def _name(check: CheckResult, figure: Figure) -> str:
    about = figure_words.about(figure)
    return f"{check.check}: {about}" + (f" on {' and '.join(figure.nodes)}" if figure.nodes else "")


def _case(suite: ET.Element, check: CheckResult) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {"classname": "clusterctl.validation.run", "name": printable(check.check), "time": f"{check.seconds:.3f}"},
    )
    kind = _ELEMENTS.get(check.verdict)
    if kind is not None:
        verdict = ET.SubElement(case, kind, {"message": printable(check.reason)})
        if kind != "skipped":
            verdict.set("type", check.verdict.value)
            named = [culprit.words for culprit in what_to_do.culprits(check)]
            missed = [one.words for one in check.comparisons if one.verdict is Verdict.FAIL]
            found = [check.search.words] if check.search else []
            lines = dict.fromkeys([check.reason, *named, *missed, *found])
            who = f"culprits: {check.named_words}"
            verdict.text = printable("\n".join([*lines, who, *_about_ranks(check.ranks)]))
    evidence = _evidence(check)
    if evidence:
        ET.SubElement(case, "system-out").text = printable("\n".join(evidence))


def _about_ranks(reports: tuple[RankReport, ...]) -> list[str]:
    lines = []
    for report in sorted(reports, key=lambda one: one.ok and one.state == "answered")[:_MOST_RANKS]:
        who = f"rank {report.rank} on {report.host}"
        if report.state != "answered":
            lines.append(f"{who}: {report.state}" + (f" in {report.step}" if report.step else ""))
        lines += [f"{who}: {wrong.what}: expected {wrong.expected}, got {wrong.got}" for wrong in report.problems]
        said = {**report.libraries, **report.facts, **{name: f"{value:g}" for name, value in report.figures.items()}}
        lines += [f"{who}: {name}: {value}" for name, value in said.items()]
    if len(reports) > _MOST_RANKS:
        lines.append(f"and {len(reports) - _MOST_RANKS} more ranks")
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


# --- JSON lines: one object a line, for log collectors and ``jq``; each line has its type and the id of its run -------
# The first line of a run is ``run``. Each check has a line ``check``, then its lines ``figure``, ``comparison``,
# ``culprit`` and ``search``. A line ``trend`` follows where a figure changed. Samples, matrices, ranks and logs stay in
# the record.


def json_lines(record: ValidationRecord) -> Iterator[str]:
    """Yield the lines, each with its line feed; a field means the same as in the record."""
    common = {"schema_version": record.schema_version, "run_id": record.run_id}
    for kind, data in _objects(record):
        yield _line({"type": kind, **common, **data})


def _line(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"
    except ValueError:  # JSON lacks NaN and infinities
        return json.dumps(finite(data), separators=(",", ":")) + "\n"


def finite(data: Any) -> Any:
    """Return plain data with null in the place of NaN and infinities."""
    if isinstance(data, dict):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _objects(record: ValidationRecord) -> Iterator[tuple[str, dict[str, Any]]]:
    large = {"checks", "trends", "schema_version", "run_id"}
    yield "run", record.model_dump(mode="json", exclude=large)
    for check in record.checks:
        yield "check", _check(check)
        for figure in check.figures:
            yield "figure", {"check": check.check, **figure.model_dump(mode="json", exclude={"samples"})}
        for one in check.comparisons:
            yield "comparison", {"check": check.check, **one.model_dump(mode="json", exclude={"figure": {"samples"}})}
        for culprit in what_to_do.culprits(check):
            yield "culprit", {"check": check.check, **culprit.model_dump(mode="json")}
        if check.search:
            yield "search", check.search.model_dump(mode="json")
    for trend in record.trends:
        if trend.changed_at:
            yield "trend", trend.model_dump(mode="json", exclude={"figure": {"samples"}, "points": True})


def _check(check: CheckResult) -> dict[str, Any]:
    elsewhere = {"ranks", "figures", "matrices", "comparisons", "culprits", "search", "stacks"}
    states = [report.state for report in check.ranks]
    return {
        **check.model_dump(mode="json", exclude=elsewhere),
        "ranks": {state: states.count(state) for state in sorted(set(states))},
    }
