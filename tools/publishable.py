# SPDX-License-Identifier: Apache-2.0
"""Say what keeps this checkout from being published: a placeholder, versions that differ, an open changelog."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import tomllib
import wheel_metadata
import yaml

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "example.invalid"
_PACKAGE = Path("python") / "clusterctl" / "__init__.py"
_ENVIRONMENT = "execution-environment.yml"
_HEADING = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) \((?P<date>[^)]*)\)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file of a checkout tells, or ``missing``."""
    galaxy = yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = re.search(r'^__version__ = "([^"]+)"$', (root / _PACKAGE).read_text(encoding="utf-8"), re.MULTILINE)
    archive = re.compile(rf"\b{re.escape(galaxy['namespace'])}-{re.escape(galaxy['name'])}-(\S+)\.tar\.gz\b")
    archives = archive.findall((root / _ENVIRONMENT).read_text(encoding="utf-8"))
    return {
        "galaxy.yml": str(galaxy["version"]),
        "pyproject.toml": str(project["version"]),
        str(_PACKAGE): package[1] if package else "missing",
        _ENVIRONMENT: " and ".join(sorted(set(archives))) or "missing",
    }


def faults(root: Path, tag: str = "") -> list[str]:
    """Return a sentence for each thing that keeps a checkout from being published.

    Args:
        root: the checkout.
        tag: the tag that is released, such as ``v0.2.0``; empty where there is none yet.
    """
    found = []
    galaxy = (root / "galaxy.yml").read_text(encoding="utf-8")
    if PLACEHOLDER in galaxy:
        found.append("galaxy.yml: 'repository' is a placeholder; set it to the address of the repository.")
    elif not wheel_metadata.addresses(galaxy):
        found.append("galaxy.yml: 'repository' is not an https address; write it in one line, as https://HOST/PATH.")
    told = versions(root)
    version = told["galaxy.yml"]
    found += [
        f"{name}: the version is {other}, and galaxy.yml has {version}; make them equal."
        for name, other in told.items()
        if other != version
    ]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = changelog.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    if re.search(r"^- ", unreleased, re.MULTILINE):
        found.append(f"CHANGELOG.md: lines stand under 'Unreleased'; move them under '## {version}'.")
    newest = _HEADING.search(changelog)
    if newest is None or newest["version"] != version:
        found.append(f"CHANGELOG.md: the newest release is not {version}; add '## {version} (DATE)'.")
    elif not _DATE.fullmatch(newest["date"]):
        found.append(f"CHANGELOG.md: '{newest['date']}' is not the date of {version}; write it as 2026-01-31.")
    if tag and tag != f"v{version}":
        found.append(f"The tag {tag} is not v{version}; tag the commit that has that version.")
    return found


def main() -> int:
    """Print what keeps this checkout from being published; 1 where something does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", default="", help="the tag that is released, such as v0.2.0")
    found = faults(ROOT, parser.parse_args().tag)
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
