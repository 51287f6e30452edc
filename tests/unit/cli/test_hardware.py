"""``clusterctl hardware`` shows the parts of a node as text and as JSON, from the ledger that doctor keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from clusterctl.model.hardware import Hardware, Part, PartLedger
from clusterctl.state import hardware_looks, paths

pytestmark = pytest.mark.programs

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
DISK = Part("disk", "nvme0n1", "SAMSUNG MZQL2960", "S64FNE0T000001", "GDC5902Q")
OLD = Part("gpu", "0000:19:00.0", "NVIDIA H100 80GB HBM3", "1650000000101", "96.00.74")
NEW = OLD._replace(serial="1650000000999", firmware="96.00.89", uuid="GPU-1f2e")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [PROGRAM, "hardware", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an inventory whose node1 was looked at twice, and got another GPU between the two."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "inventory.ini"
    place.write_text("[nodes]\nnode1\nnode2\n", encoding="utf-8")
    for day, gpu in ((1, OLD), (5, NEW)):
        at = datetime(2026, 3, day, tzinfo=timezone.utc)
        look = Hardware(schema_version=1, time=at.timestamp(), boot_id="b", parts=(DISK, gpu))
        hardware_looks.keep(paths.cluster_id(place), {"node1": look}, at)
    return place


def test_the_parts_of_a_node_are_a_table(inventory: Path) -> None:
    done = run(inventory, "node1")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert lines == [
        "KIND PLACE MODEL SERIAL NUMBER UUID FIRMWARE SINCE UNTIL",
        "disk nvme0n1 SAMSUNG MZQL2960 S64FNE0T000001 GDC5902Q 2026-03-01",
        "gpu 0000:19:00.0 NVIDIA H100 80GB HBM3 1650000000101 96.00.74 2026-03-01 2026-03-01",
        "gpu 0000:19:00.0 NVIDIA H100 80GB HBM3 1650000000999 GPU-1f2e 96.00.89 2026-03-05",
    ]


def test_the_parts_of_a_node_are_json(inventory: Path) -> None:
    done = run(inventory, "node1", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = PartLedger.model_validate(json.loads(done.stdout))
    assert {(stay.kind, stay.serial, stay.host) for stay in found.stays} == {
        (part.kind, part.serial, "node1") for part in (DISK, OLD, NEW)
    }


def test_a_node_without_known_parts_is_refused_with_what_to_do(inventory: Path) -> None:
    done = run(inventory, "node2")
    assert done.returncode == 1
    assert "No part of node2 is known" in done.stderr
    assert "run 'clusterctl doctor" in done.stderr
