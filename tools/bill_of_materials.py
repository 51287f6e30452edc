# SPDX-License-Identifier: Apache-2.0
"""Write the software bill of materials (CycloneDX, JSON) of a wheel of clusterctl beside it.

It names what an installation of the wheel brings: each Python package with its version and sha256-checked origin, and
the packages that the collection pins for nodes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import dev_locks
import locked
from wheel_locks import shipped

ROOT = Path(__file__).resolve().parents[1]


def of_environment(python: Path) -> dict[str, Any]:
    """Return the bill of the packages in a Python environment.

    Args:
        python: the interpreter of the environment.
    """
    generator = Path(sys.executable).with_name("cyclonedx-py")
    with tempfile.TemporaryDirectory() as name:
        bill = Path(name, "bill.json")
        argv = [str(generator), "environment", str(python), "--pyproject", str(ROOT / "pyproject.toml")]
        argv += ["--output-format", "JSON", "--output-reproducible", "--output-file", str(bill)]
        subprocess.run(argv, check=True)
        found: dict[str, Any] = json.loads(bill.read_bytes())
        return found


def for_nodes(file: Path = shipped.FILE) -> list[dict[str, Any]]:
    """Return a component for each wheel that the collection pins for nodes."""
    found: dict[str, dict[str, Any]] = {}
    for wheel in (wheel for lock in shipped.shipped_locks(file) for wheel in lock["wheels"]):
        version = wheel["version"].replace("+", "%2B")
        purl = f"pkg:pypi/{wheel['name']}@{version}?file_name={wheel['filename'].replace('+', '%2B')}"
        found[purl] = {
            "type": "library",
            "bom-ref": f"node:{wheel['filename']}",
            "name": wheel["name"],
            "version": wheel["version"],
            "purl": purl,
            "scope": "optional",
            "hashes": [{"alg": "SHA-256", "content": wheel["sha256"]}],
            "properties": [{"name": "clusterctl:for", "value": "nodes"}],
        }
    return [found[purl] for purl in sorted(found)]


def install(python: Path, wheel: Path, pins: Path) -> None:
    """Install a wheel of clusterctl, and what it requires with the sha256 of the lock.

    Args:
        python: the interpreter of a virtual environment.
        wheel: the wheel.
        pins: a file to write the pins to.
    """
    needs = dev_locks.project()["project"]["dependencies"]
    pins.write_text(locked.requirements(needs), encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", str(pins)], check=True)
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    subprocess.run([str(python), "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)


def bill_of(wheel: Path) -> dict[str, Any]:
    """Return the bill of a wheel, from a fresh environment with the wheel and what the lock pins for it."""
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = Path(name, "bin", "python")
        install(python, wheel, Path(name, "locked.txt"))
        bill = of_environment(python)
    own = [component for component in bill["components"] if component["name"] == "clusterctl"]
    bill["components"] = [component for component in bill["components"] if component not in own] + for_nodes()
    return bill


def main() -> None:
    """Write ``WHEEL.cdx.json`` for each wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    for wheel in parser.parse_args().wheels:
        path = wheel.with_suffix(".cdx.json")
        path.write_text(json.dumps(bill_of(wheel), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
