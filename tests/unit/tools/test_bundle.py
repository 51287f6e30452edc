"""The bundle for a machine without a network: what the recipes list, what is left out, and its size."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import bundle as tool
import pytest
from clusterctl.sandbox import apt
from clusterctl.sandbox.model import IMAGES


def test_it_has_what_every_recipe_lists(tmp_path: Path) -> None:
    built = tool.artifacts(tool.SYSTEMS["ubuntu24.04"], {"openmpi_version": "5.0.8"})
    assert {"openmpi", "mpi4py", "horovod"} <= {one.name for one in built}
    items = [item for one in built for item in one.build["files"]]
    assert [item["source"]["version"] for item in items if "source" in item] == ["5.0.8"]
    assert {item["sdist"]["name"] for item in items if "sdist" in item} == {"mpi4py", "horovod"}
    assert {item["wheels"]["platform"] for item in items if "wheels" in item} == {tool.SYSTEMS["ubuntu24.04"].platform}
    kept = tmp_path / "wheels" / "uv.whl"
    assert tmp_path in kept.parents


def test_a_recipe_that_refuses_ends_it_with_its_sentence() -> None:
    with pytest.raises(tool.BundleError, match=r"No source of Open MPI 9.9.9 is known"):
        tool.artifacts(tool.SYSTEMS["debian12"], {"openmpi_version": "9.9.9"})


def test_the_pins_lack_what_the_environment_has() -> None:
    names = {line.partition("==")[0].lower() for line in tool.controller_pins("3.12").splitlines()}
    assert {"ansible-core", "pydantic-core", "typer"} <= names
    assert not names & tool.LEFT_OUT


def test_a_machine_whose_apt_names_no_mirror_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "machine_mirror", lambda _vendor: None)
    with pytest.raises(tool.BundleError, match=r"/etc/apt names no Ubuntu mirror"):
        tool.Packages(IMAGES["ubuntu24.04"], tmp_path)
    with pytest.raises(tool.BundleError, match=r"made for Debian and Ubuntu, not for Rocky Linux"):
        tool.Packages(IMAGES["rocky9"], tmp_path)


def test_the_same_content_gives_the_same_bytes_and_too_much_of_it_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "content"
    (folder / "debs").mkdir(parents=True)
    (folder / "debs" / "a.deb").write_bytes(b"a" * 5000)
    (folder / "manifest.json").write_text(json.dumps({}))
    tool.write(folder, tmp_path / "one.tar")
    (folder / "debs" / "a.deb").touch()
    tool.write(folder, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as pack:
        assert sorted(pack.getnames()) == ["debs/a.deb", "manifest.json"]
    monkeypatch.setattr(tool, "MOST_BYTES", 4096)
    with pytest.raises(tool.BundleError, match=r"choose an Open MPI with a smaller source"):
        tool.write(folder, tmp_path / "three.tar")
    assert not list(tmp_path.glob("three*"))


def test_make_names_both_and_the_systems_are_those_of_the_sandbox() -> None:
    said = subprocess.run(
        ["make", "-n", "bundle", "SYSTEM=debian13", "OPENMPI=5.0.7"],
        cwd=tool.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tools/bundle.py --system debian13 --openmpi 5.0.7" in said
    said = subprocess.run(
        ["make", "-n", "provision-here", "HERE_OPTIONS=--limit-s 9"],
        cwd=tool.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "python3 tools/provision_here.py --limit-s 9" in said
    assert set(tool.SYSTEMS) <= set(IMAGES)
