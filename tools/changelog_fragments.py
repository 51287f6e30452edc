# SPDX-License-Identifier: Apache-2.0
"""Make a fragment for antsibull-changelog of the newest entries in CHANGELOG.md."""

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
# The marks of Markdown that entries use; what stands between them is text.
_LINK = re.compile(r"\[((?:[^][`]|`[^`]*`)+)\]\([^()\s]+\)")
_CODE = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)")
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*\*?)(?=[^\s*])([^*]*[^\s*\\])\1(?![\w*])")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# Characters that are marks of reStructuredText within a paragraph, and those that begin another block at its start.
_MARK = re.compile(r"[\\*`|]|_(?![^\W_])|:(?=:$)")
_BLOCK = re.compile(r"^(?=[-+:.>=~#^\"'!$%&(),/;<?@\[{\u2022])|^\w+(?=[.)]\s)")
# Where a literal may begin and end; elsewhere an empty escape stands between it and the text beside it.
_BEFORE = re.compile(r"(^|[\s'\"(\[{</:-])$")
_AFTER = re.compile(r"^($|[\s'\")\]}>/:.,;!?-])")


class HeadingError(ValueError):
    """A heading of the changelog has no section."""


def entries(changelog: str) -> dict[str, list[str]]:
    """Return the newest entries by section, as reStructuredText in one line each.

    They stand under Unreleased. Where nothing does, they are those of the newest release.

    Raises:
        HeadingError: a heading above them has no section.
    """
    for part in changelog.split("\n## ")[1:]:
        if found := _of_release(part):
            return found
    return {}


def _of_release(part: str) -> dict[str, list[str]]:
    found_entries: dict[str, list[str]] = {}
    section = ""
    for line in part.splitlines():
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
    """Return Markdown as reStructuredText: code stays code, and all else is text without marks."""
    text = _LINK.sub(r"\1", text)
    result = ""
    at = 0
    for found in _CODE.finditer(text):
        before, code = _plain(text[at : found.start()]), found["code"].strip()
        after = text[found.end() :]
        if not code or "``" in code or code.startswith("`") or code.endswith("`"):  # an inline literal cannot hold it
            result += before + _MARK.sub(r"\\\g<0>", code or found[0])
        else:
            opening = "" if _BEFORE.search(result + before) else "\\ "
            closing = "" if _AFTER.search(after) else "\\ "
            result += f"{before}{opening}``{code}``{closing}"
        at = found.end()
    return _BLOCK.sub(r"\g<0>\\", result + _plain(text[at:]), count=1)


def _plain(text: str) -> str:
    """Return text whose characters are no marks of reStructuredText, and without those of Markdown."""
    return _MARK.sub(r"\\\g<0>", _ESCAPED.sub(r"\1", _EMPHASIS.sub(r"\2", text)))


def write(root: Path) -> Path:
    """Write the fragment of a checkout, and return its path.

    Raises:
        HeadingError: a heading of its newest entries has no section.
    """
    target = root / FRAGMENT
    target.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(entries((root / "CHANGELOG.md").read_text(encoding="utf-8")), width=120, allow_unicode=True)
    target.write_text(f"---\n{text}", encoding="utf-8")
    return target
