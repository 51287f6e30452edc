# SPDX-License-Identifier: Apache-2.0
"""Make a fragment for antsibull-changelog of the entries under Unreleased in CHANGELOG.md."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

# Headings of CHANGELOG.md (keepachangelog.com), and the sections of antsibull-changelog.
SECTIONS = {
    "Security": "security_fixes",
    "Added": "minor_changes",
    "Changed": "minor_changes",
    "Fixed": "bugfixes",
    "Deprecated": "deprecated_features",
    "Removed": "removed_features",
}
FRAGMENT = Path("changelogs") / "fragments" / "unreleased.yml"
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class HeadingError(ValueError):
    """A heading of the changelog has no section."""


def entries(changelog: str) -> dict[str, list[str]]:
    """Return the unreleased entries by section, as reStructuredText in one line each.

    Raises:
        HeadingError: a heading under Unreleased has no section.
    """
    _before, found, rest = changelog.partition("\n## Unreleased\n")
    found_entries: dict[str, list[str]] = {}
    if not found:
        return found_entries
    section = ""
    for line in rest.partition("\n## ")[0].splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ").strip()
            if heading not in SECTIONS:
                raise HeadingError(f"CHANGELOG.md: '{heading}' is unknown; use one of {', '.join(SECTIONS)}.")
            section = SECTIONS[heading]
        elif line.startswith("- ") and section:
            found_entries.setdefault(section, []).append(line.removeprefix("- ").strip())
        elif line.strip() and section in found_entries:
            found_entries[section][-1] += f" {line.strip()}"
    return {name: [_as_rst(text) for text in texts] for name, texts in found_entries.items()}


def _as_rst(text: str) -> str:
    """Return Markdown as reStructuredText: the text of links, and two backquotes around code."""
    return _CODE.sub(r"``\1``", _LINK.sub(r"\1", text))


def write(root: Path) -> Path:
    """Write the fragment of a checkout, and return its path.

    Raises:
        HeadingError: a heading under Unreleased has no section.
    """
    target = root / FRAGMENT
    target.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(entries((root / "CHANGELOG.md").read_text(encoding="utf-8")), width=120, allow_unicode=True)
    target.write_text(f"---\n{text}", encoding="utf-8")
    return target
