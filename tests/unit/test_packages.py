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
from clusterctl.support import content

pytestmark = pytest.mark.programs

FOLDER = Path("plugins") / "plugin_utils" / "wheels" / "locks"


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


def wanted() -> set[str]:
    found = {path.name for path in (content.root() / FOLDER).glob("*.json")}
    assert found
    return found


def test_the_wheel_holds_the_locks(checkout: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(argv, cwd=checkout, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    place = f"clusterctl/_collections/ansible_collections/clusterctl/hpc/{FOLDER}/"
    with zipfile.ZipFile(wheel) as archive:
        assert {name.removeprefix(place) for name in archive.namelist() if name.startswith(place)} == wanted()


def test_the_collection_holds_the_locks(checkout: Path, tmp_path: Path) -> None:
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    argv = [str(galaxy), "collection", "build", "--output-path", str(tmp_path / "dist"), str(checkout)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as bundle:
        names = bundle.getnames()
    assert {Path(name).name for name in names if Path(name).parent == FOLDER and name.endswith(".json")} == wanted()
    assert not [name for name in names if name.startswith("tools")]
