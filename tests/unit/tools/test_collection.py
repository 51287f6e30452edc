"""The collection's own tests: what they start, and the fragments that stand for CHANGELOG.md."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
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


@pytest.mark.programs
@pytest.mark.parametrize("python", sorted({"/usr/bin/python3", str(Path(sys.executable).resolve())}))
def test_pip_comes_without_another_server_with_the_python_of_debian_too(python: str, tmp_path: Path) -> None:
    """The pip that Python carries is asked for, so that this test needs no index."""
    if not Path(python).exists():
        pytest.skip(f"{python} is not installed")
    carried = subprocess.run(
        [python, "-c", "import ensurepip; print(ensurepip.version())"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    name, text = collection.bootstrap(carried)
    (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    new = str(tmp_path / "venv" / "bin" / "python")
    done = subprocess.run([new, name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = subprocess.run([new, "-m", "pip", "--version"], check=True, capture_output=True, text=True).stdout
    assert asked.split()[1] == carried


def test_an_ansible_test_of_another_form_is_told() -> None:
    with pytest.raises(collection.PackError, match="unknown way"):
        collection.pip_version("")


def test_settings_of_pip_reach_the_environments_of_ansible_test() -> None:
    listed = "global.find-links='/one\\n/two'\n:env:.index-url='https://index.invalid/simple'\ninstall.no-deps='yes'\n"
    read = configparser.ConfigParser()
    read.read_string(collection.pip_settings(listed, "http://proxy.invalid:3128"))
    assert read["global"]["find-links"].split() == ["/one", "/two"]
    assert read["global"]["index-url"] == "https://index.invalid/simple"
    assert read["global"]["proxy"] == "http://proxy.invalid:3128"
    assert read["install"]["no-deps"] == "yes"


def test_all_sanity_tests_run_where_none_is_named() -> None:
    assert "--test" not in collection.sanity_argv([], [], "3.11")
    assert collection.sanity_argv(["pep8"], ["pylint"], "3.12")[-4:] == ["--test", "pep8", "--skip-test", "pylint"]
