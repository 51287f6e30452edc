"""The bill of materials names what an installation brings, and what the collection pins for nodes."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import bill_of_materials as bills
import pytest


@pytest.mark.programs
def test_each_package_of_an_environment_is_named_with_its_version() -> None:
    bill = bills.of_environment(Path(sys.executable))
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "clusterctl"
    found = {component["name"].lower(): component for component in bill["components"]}
    for name in ("ansible-core", "pydantic", "rich"):
        assert found[name]["version"] == version(name)
        assert found[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    needed = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    root = bill["metadata"]["component"]["bom-ref"]
    assert any("ansible-core" in reference for reference in needed[root])


def test_each_wheel_for_nodes_is_named_with_its_hash() -> None:
    components = bills.for_nodes()
    text = bills.shipped.FILE.read_text(encoding="utf-8")
    assert len({component["bom-ref"] for component in components}) == len(components) > 100
    assert all(component["hashes"][0]["content"] in text for component in components)
    (torch,) = [one for one in components if one["version"] == "2.13.0+cpu"]
    assert torch["purl"].startswith("pkg:pypi/torch@2.13.0%2Bcpu?")
