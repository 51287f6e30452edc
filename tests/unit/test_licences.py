"""The header of each file agrees with what it imports, and the packages carry the text of each license."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from clusterctl.support import content

ROOT = content.root()
# ansible-core is under the GPL, except for ansible.module_utils, whose files are under the BSD license.
GPL_IMPORT = re.compile(r"^\s*(?:from|import) ansible(?!\.module_utils\b|_)(?:\.| import|$)", re.MULTILINE)
OF_THE_FILE = re.compile(r"^# SPDX-License-Identifier: (.+)$", re.MULTILINE)


def licence(path: Path) -> str:
    found = OF_THE_FILE.match(path.read_text(encoding="utf-8"))
    return found.group(1) if found else "Apache-2.0"


def files(*places: str) -> list[Path]:
    found = [path for place in places for path in (ROOT / place).rglob("*.py")]
    assert found
    return found


def test_what_imports_gpl_parts_is_under_the_gpl() -> None:
    ours = files("plugins", "python", "roles", "tools")
    importing = {path for path in ours if GPL_IMPORT.search(path.read_text(encoding="utf-8"))}
    assert importing
    based = re.compile(r"from ansible_collections\.\S+\.plugin_utils\.artifact_action import")
    importing |= {path for path in ours if based.search(path.read_text(encoding="utf-8"))}
    assert [path for path in importing if licence(path) != "GPL-3.0-or-later"] == []


def test_modules_are_under_either_licence_and_say_so_as_ansible_asks() -> None:
    for path in files("plugins/modules"):
        head = path.read_text(encoding="utf-8")[:400]
        assert licence(path) == "Apache-2.0 OR GPL-3.0-or-later", path
        assert "GNU General Public License v3.0 or later" in head, path


def test_the_packages_name_and_carry_both_licences() -> None:
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["license"] == [
        "Apache-2.0",
        "GPL-3.0-or-later",
    ]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '\nlicense = "Apache-2.0 AND GPL-3.0-or-later"' in project
    assert '\nlicense-files = ["LICENSE", "COPYING"]\n' in project
    for name, title in (("LICENSE", "Apache License"), ("COPYING", "GNU GENERAL PUBLIC LICENSE")):
        assert title in (ROOT / name).read_text(encoding="utf-8")[:120]
