"""The collection's own tests: what they start, and the fragments that stand for CHANGELOG.md."""

from __future__ import annotations

from pathlib import Path

import ansible_test
import changelog_fragments
import collection
import pytest
from clusterctl.support import content

CHANGELOG = """\
# Changelog

## Unreleased

### Security

- A key of `ssh` is [read](docs/keys.md) once.
  It stays.

### Added

- A page.

### Changed

- A word.

## 0.1.0

### Fixed

- An old fault.
"""


def test_unreleased_entries_become_fragments() -> None:
    assert changelog_fragments.entries(CHANGELOG) == {
        "security_fixes": ["A key of ``ssh`` is read once. It stays."],
        "minor_changes": ["A page.", "A word."],
    }


def test_a_heading_without_a_section_is_refused() -> None:
    with pytest.raises(changelog_fragments.HeadingError, match="'Fun' is unknown; use one of Security, Added"):
        changelog_fragments.entries("\n## Unreleased\n\n### Fun\n")


def test_every_heading_of_the_changelog_has_a_section() -> None:
    text = (content.root() / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog_fragments.entries(text)["minor_changes"]


def test_the_pip_of_this_ansible_test_is_found() -> None:
    source = (Path(ansible_test.__file__).parent / "_internal" / "python_requirements.py").read_text(encoding="utf-8")
    name, text = collection.bootstrap(collection.pip_version(source))
    assert name.startswith("get_pip_")
    compile(text, name, "exec")


def test_an_ansible_test_of_another_form_is_told() -> None:
    with pytest.raises(collection.PackError, match="unknown way"):
        collection.pip_version("")


def test_all_sanity_tests_run_where_none_is_named() -> None:
    assert "--test" not in collection.sanity_argv([], [], "3.11")
    assert collection.sanity_argv(["pep8"], ["pylint"], "3.12")[-4:] == ["--test", "pep8", "--skip-test", "pylint"]
