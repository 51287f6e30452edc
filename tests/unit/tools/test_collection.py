"""The collection's own tests: what they start, and the fragments that stand for CHANGELOG.md."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ansible_test
import changelog_fragments
import collection
import docutils.core
import docutils.nodes
import hypothesis
import hypothesis.strategies
import pytest
from clusterctl.support import content

WARNING = 2  # the least level of docutils that antsibull-changelog refuses
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


def test_where_nothing_is_unreleased_the_newest_release_counts() -> None:
    _before, _heading, rest = CHANGELOG.partition("## 0.1.0")
    cut = f"# Changelog\n\n## Unreleased\n\n## 0.2.0\n\n### Added\n\n- A word.\n\n## 0.1.0{rest}"
    assert changelog_fragments.entries(cut) == {"minor_changes": ["A word."]}


def rendered(markdown: str) -> tuple[str, list[str]]:
    """Return what a reader of the entry in reStructuredText sees, and what docutils says against its marks."""
    (entry,) = changelog_fragments.entries(f"\n## Unreleased\n\n### Fixed\n\n- {markdown}\n")["bugfixes"]
    tree = docutils.core.publish_doctree(f"- {entry}\n", settings_overrides={"report_level": 5, "halt_level": 6})
    (listed,) = tree.children  # one list
    blocks = [item.astext() for entries in listed.children for item in entries.children]
    said = [node.astext() for node in tree.findall(docutils.nodes.system_message) if node["level"] >= WARNING]
    return "|".join(blocks) if len(blocks) > 1 else blocks[0], said


@pytest.mark.parametrize(
    ("markdown", "seen"),
    [
        ("A star * alone, *.ini, 2*3, and `*.ini`.", "A star * alone, *.ini, 2*3, and *.ini."),
        ("The table a|b|c, |sub and `|x|`.", "The table a|b|c, |sub and |x|."),
        ("Names nccl_, foo__ x_ and `openmpi_`.", "Names nccl_, foo__ x_ and openmpi_."),
        ("All `code`s of ``a`b``, not`c`.", "All codes of a`b, notc."),
        ("Code of one `` ` ``, and a ` alone.", "Code of one `, and a ` alone."),
        ("*Lost* and **first**, \\*not\\*.", "Lost and first, *not*."),
        ("[link_](a_b.md), [`x`](y.md#z): see [1]_.", "link_, x: see [1]_."),
        ("A path C:\\dir and `C:\\dir`.", "A path C:\\dir and C:\\dir."),
        ("1. first", "1. first"),
        (".. note:: so", ".. note:: so"),
        ("-v  is an option", "-v  is an option"),
        ("It says::", "It says::"),
    ],
)
def test_an_entry_is_read_as_it_stands_in_markdown(markdown: str, seen: str) -> None:
    assert rendered(markdown) == (seen, [])


@hypothesis.given(hypothesis.strategies.text("ab1 *|_`\\[]()<>:.-+'\"=", min_size=1, max_size=20))
@hypothesis.settings(deadline=None, max_examples=50)
def test_no_text_of_an_entry_breaks_the_changelog(markdown: str) -> None:
    hypothesis.assume(markdown.strip())
    assert rendered(f"a {markdown}")[1] == []
    assert rendered(markdown)[1] == []


def test_a_heading_without_a_section_is_refused() -> None:
    with pytest.raises(changelog_fragments.HeadingError, match="'Fun' is unknown; use one of Security, Added"):
        changelog_fragments.entries("\n## Unreleased\n\n### Fun\n")


def test_every_heading_of_the_changelog_has_a_section() -> None:
    text = (content.root() / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog_fragments.entries(text)["minor_changes"]


def test_every_entry_of_the_changelog_stands_below_a_heading() -> None:
    text = (content.root() / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [
        part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:] if "\n- " in part.partition("\n### ")[0]
    ] == []


@pytest.mark.programs
def test_antsibull_changelog_refuses_a_mark_that_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "changelogs").mkdir()
    for name in ("galaxy.yml", "changelogs/config.yaml"):
        shutil.copy(content.root() / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.replace("A word.", "A *word, a|b and nccl_ of `x`."), "utf-8")
    fragment = changelog_fragments.write(tmp_path)
    assert collection.changelog_faults(tmp_path) == ""
    fragment.write_text("---\nminor_changes:\n- A *word of nccl_.\n", encoding="utf-8")
    assert 'Unknown target name: "nccl"' in collection.changelog_faults(tmp_path)


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
