"""The picture of the README: what it shows stands in the records, and it plays without a script."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import cast
import pytest
from clusterctl.support import content

PICTURE = content.root() / "docs" / "pictures" / "provision.svg"
SVG = "{http://www.w3.org/2000/svg}"


def lines_of(svg: str) -> list[str]:
    root = ET.fromstring(svg)  # noqa: S314 - the project drew it
    assert not list(root.iter(f"{SVG}script"))
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def written(folder: Path, name: str, record: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(record), encoding="utf-8")
    return folder


@pytest.fixture
def provision(tmp_path: Path) -> Path:
    record = {
        "started": "2026-11-28T12:00:00+00:00",
        "finished": "2026-11-28T12:01:10+00:00",
        "hosts": [{"outcome": "changed"}, {"outcome": "ok"}],
        "told": ["Network: eth0 & eth1."],
    }
    run = written(tmp_path / "provision", "run.json", record)
    began = 1795867200.0
    events = [("preflight", "Look", 2.0), ("preflight", "Judge", 2.4), ("software", "Install", 65.0)]
    lines = [
        json.dumps({"event": "StageStarted", "at": began + at, "stage": stage, "task": task})
        for stage, task, at in events
    ]
    (run / "events.jsonl").write_text("\n".join([*lines, json.dumps({"event": "HostResult", "at": began})]))
    return run


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    slow = "node2: bandwidth < half " + "of the others " * 6
    checks = [
        {"check": "reachable", "verdict": "PASS", "seconds": 0.8, "reason": "2 nodes answer"},
        {"check": "pairs", "verdict": "FAIL", "seconds": 3.5, "reason": slow},
    ]
    record = {
        "started": "2026-11-28T12:00:00+00:00",
        "finished": "2026-11-28T12:00:05+00:00",
        "slots": {"node1": 2, "node2": 2},
        "hosts": ["node1", "node2"],
        "openmpi_version": "5.0.7",
        "verdict": "FAIL",
        "checks": checks,
    }
    return written(tmp_path / "validation", "validation.json", record)


def test_a_provision_shows_its_stages_and_its_end(provision: Path) -> None:
    assert [line.text for line in cast.provisioned(provision)] == [
        "$ clusterctl provision inventory.ini",
        "[ 0:02] preflight: Look",
        "[ 1:05] software: Install",
        "Network: eth0 & eth1.",
        "Done: 2 hosts, 1 changed (1m10s).",
    ]


def test_a_validation_shows_the_whole_reason_of_a_failure(validation: Path) -> None:
    lines = [line.text for line in cast.validated(validation)]
    assert lines[0] == "$ clusterctl validate inventory.ini --checks pairs"
    assert "".join(line.replace(" ", "") for line in lines).count("oftheothers") == 6
    assert lines[-1] == "FAIL: 4 ranks on 2 nodes, Open MPI 5.0.7, 5.0 s."
    assert [line.text for line in cast.validated(validation, alone=False)] == lines[1:]


def test_the_picture_is_xml_and_shows_each_line_once(provision: Path, validation: Path) -> None:
    screens = [cast.provisioned(provision), cast.validated(validation)]
    shown = [line.text for screen in screens for line in screen]
    assert lines_of(cast.drawn(screens)) == shown


def test_more_lines_than_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="A screen has 99 lines"):
        cast.drawn([[cast.Line("a", 0.0)] * 99])


def test_the_picture_of_the_readme_names_a_slow_node_and_loads_nothing() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    words = " ".join(lines_of(text))
    assert re.search(r"provision inventory\.ini.*PASS: .*FAIL +\S+ s +node\d", words)
    assert not re.search(r"href|url\(|@import|<script", text)
