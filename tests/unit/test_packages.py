"""What users install holds the locks of wheels: the wheel, and the collection as ansible-galaxy packs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from clusterctl.support import content

pytestmark = pytest.mark.programs

# The first folder or file of each path that the collection packs.
IN_THE_COLLECTION = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "COPYING",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "SECURITY.md",
    "changelogs",
    "docs",
    "examples",
    "inventories",
    "meta",
    "playbooks",
    "plugins",
    "roles",
}
# Files that tests, a sandbox, linters and builds leave in a checkout.
LEFT_BY_WORK = (
    ".ansible/collections/file.yml",
    ".mypy_cache/file.json",
    ".ruff_cache/file",
    ".venv/bin/python",
    "build/site/index.html",
    "clusterctl.egg-info/PKG-INFO",
    "dist/clusterctl-0.2.0.tar.gz",
    "inventories/sandbox/inventory.ini",
    "plugins/modules/__pycache__/node_facts.cpython-311.opt-1.pyc.140",
    "python/clusterctl/file.py",
    "tests/output/junit/file.xml",
)
LOCKS = Path("plugins") / "plugin_utils" / "wheels" / "locks.json"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that git knows or would take, so that nothing else of this folder is packed."""
    root = content.root()
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if not name.startswith(("tests/", "docs/measured")) and (root / name).is_file():
            (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, tmp_path / "copy" / name)
    return tmp_path / "copy"


def test_the_wheel_holds_the_locks(checkout: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(argv, cwd=checkout, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert f"clusterctl/_collections/ansible_collections/clusterctl/hpc/{LOCKS}" in archive.namelist()


@pytest.fixture
def packed(checkout: Path, tmp_path: Path) -> list[str]:
    """What ansible-galaxy packs of a checkout that was worked in."""
    for name in LEFT_BY_WORK:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    argv = [str(galaxy), "collection", "build", "--output-path", str(tmp_path / "dist"), str(checkout)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as bundle:
        return bundle.getnames()


def test_the_collection_holds_what_ansible_reads_and_nothing_else(packed: list[str]) -> None:
    assert str(LOCKS) in packed
    assert {name.partition("/")[0] for name in packed} == IN_THE_COLLECTION
    assert not set(packed) & set(LEFT_BY_WORK)
    strange = [
        one for one in packed if {"molecule", "sandbox", "__pycache__", "assets", "site_pages"} & {*one.split("/")}
    ]
    assert not strange
    assert {Path(name).suffix for name in packed if name.startswith("docs/")} <= {"", ".md", ".txt", ".png", ".svg"}


def test_every_role_tells_galaxy_what_it_is(packed: list[str]) -> None:
    roles = {name.split("/")[1] for name in packed if name.startswith("roles/") and name.count("/") > 1}
    assert roles
    for role in roles:
        info = yaml.safe_load((content.root() / "roles" / role / "meta" / "main.yml").read_text(encoding="utf-8"))
        assert info["galaxy_info"]["license"] == "Apache-2.0"
        assert info["galaxy_info"]["description"].endswith(".")
        assert info["dependencies"] == []
        # the role that five others share has no variables of the user
        assert (f"roles/{role}/meta/argument_specs.yml" in packed) is (role != "software")
        assert f"roles/{role}/README.md" in packed
