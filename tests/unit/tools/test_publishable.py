"""What a release needs: one version everywhere, one place for a publisher's address, a changelog that is cut."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import publishable
import pytest
import wheel_metadata
import yaml
from clusterctl.support import content

ROOT = content.root()
READ = ("galaxy.yml", "pyproject.toml", "CHANGELOG.md", "python/clusterctl/__init__.py", "execution-environment.yml")
# These look for the placeholder, and tell of it.
ABOUT_IT = {"galaxy.yml", "tools/publishable.py", "tests/unit/tools/test_publishable.py"}
MOST_OF_A_RELEASE = 25_000  # characters of CHANGELOG.md
MOST_OF_A_LINE = 250


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is ready to be published."""
    for name in READ:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version = publishable.versions(ROOT)["galaxy.yml"]
    change(tmp_path / "galaxy.yml", publishable.PLACEHOLDER, "git.example.org")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## Unreleased\n\n## {version} (2026-12-01)\n\n### Added\n\n- A page.\n", encoding="utf-8"
    )
    return tmp_path


def change(place: Path, old: str, new: str) -> None:
    text = place.read_text(encoding="utf-8")
    assert old in text
    place.write_text(text.replace(old, new), encoding="utf-8")


def test_every_file_has_the_same_version() -> None:
    assert set(publishable.versions(ROOT).values()) == {"0.2.0"}


def test_a_placeholder_stands_in_galaxy_yml_alone() -> None:
    argv = ["git", "grep", "--files-with-matches", "--fixed-strings", publishable.PLACEHOLDER]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) - ABOUT_IT == set()


def test_a_checkout_that_is_filled_in_can_be_published(checkout: Path) -> None:
    version = publishable.versions(ROOT)["galaxy.yml"]
    assert publishable.faults(checkout, f"v{version}") == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("galaxy.yml", "git.example.org", publishable.PLACEHOLDER, "galaxy.yml: 'repository' is a placeholder"),
        ("galaxy.yml", "https://git", "http://git", "galaxy.yml: 'repository' is not an https address"),
        ("galaxy.yml", "repository: https", "repository: >-\n  https", "'repository' is not an https address"),
        ("pyproject.toml", 'version = "0.', 'version = "9.', "pyproject.toml: the version is 9."),
        ("execution-environment.yml", "hpc-0.", "hpc-9.", "execution-environment.yml: the version is 9."),
        ("execution-environment.yml", "dist/clusterctl-hpc-0.", "dist/clusterctl-hpc-9.", ".0 and 9."),
        ("execution-environment.yml", "clusterctl-hpc-", "other-", "execution-environment.yml: the version is missing"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- A fault.\n", "lines stand under 'Unreleased'"),
        ("CHANGELOG.md", "2026-12-01", "not yet published", "'not yet published' is not the date"),
        ("CHANGELOG.md", "## 0.", "## 9.", "the newest release is not 0."),
    ],
)
def test_what_keeps_it_from_being_published_is_named(checkout: Path, name: str, old: str, new: str, said: str) -> None:
    change(checkout / name, old, new)
    (sentence,) = publishable.faults(checkout)
    assert said in sentence


def test_a_tag_of_another_version_is_named(checkout: Path) -> None:
    assert publishable.faults(checkout, "v9.9.9")[0].startswith("The tag v9.9.9 is not v0.")


def test_the_wheel_takes_its_addresses_from_galaxy_yml() -> None:
    galaxy = (ROOT / "galaxy.yml").read_text(encoding="utf-8").replace(publishable.PLACEHOLDER, "a.example")
    assert wheel_metadata.addresses(galaxy) == {
        "Repository": "https://a.example/clusterctl",
        "Changelog": "https://a.example/clusterctl/blob/main/CHANGELOG.md",
    }
    assert wheel_metadata.addresses(f"repository: https://{publishable.PLACEHOLDER}/x\n") == {}


@pytest.mark.parametrize("written", ['"{}"', "'{}'", "{}  # ours", " {}", '"{}" '])
def test_the_address_may_be_written_as_yaml_allows(written: str) -> None:
    address = "https://a.example/clusterctl"
    line = f"repository: {written.format(address)}\n"
    assert yaml.safe_load(line) == {"repository": address}
    assert wheel_metadata.addresses(line)["Repository"] == address


def test_the_changelog_is_short_and_has_a_line_for_a_change() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(text) <= MOST_OF_A_RELEASE
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0] == "Unreleased"
    newest = text.partition("\n## 0.1.0")[0]
    changes = re.split(r"^- ", newest, flags=re.MULTILINE)[1:]
    assert [one for one in changes if len(one.partition("\n\n")[0]) > MOST_OF_A_LINE] == []
