"""The bundle for a machine without a network: what the recipes list, what is left out, and its size."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
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
    built = tool.artifacts(tool.SYSTEMS["ubuntu24.04"], {"openmpi_ucx": "always"})
    assert "ucx" in {item["source"]["name"] for one in built for item in one.build["files"] if "source" in item}
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
    with pytest.raises(tool.TooLargeError, match=r"choose an Open MPI with a smaller source"):
        tool.write(folder, tmp_path / "three.tar")
    assert not list(tmp_path.glob("three*"))


@pytest.mark.parametrize(("ucx_bytes", "left_out"), [(100, False), (9000, True)])
def test_ucx_is_left_out_where_the_bundle_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ucx_bytes: int, left_out: bool
) -> None:
    def fill(folder: Path, _system: tool.System, chosen: Mapping[str, str]) -> None:
        (folder / "manifest.json").write_text(json.dumps(chosen))
        (folder / "ucx").write_bytes(b"u" * (ucx_bytes if chosen["openmpi_ucx"] == "always" else 0))

    monkeypatch.setattr(tool, "fill", fill)
    monkeypatch.setattr(tool, "MOST_BYTES", 10240)
    tool.make(tmp_path / "a.tar", tool.SYSTEMS["debian12"], "4.1.4")
    with tarfile.open(tmp_path / "a.tar") as pack:
        assert json.load(pack.extractfile("manifest.json") or io.BytesIO())["openmpi_ucx"] == (
            "never" if left_out else "always"
        )
    assert ("it is made without UCX." in capsys.readouterr().err) is left_out


def test_wheels_of_clusterctl_are_packed_with_their_content_and_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "a-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.py", "a = 1\n" * 1000)
    for name in ("one", "two"):
        tool.pack_controller(tmp_path / "wheels", tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as pack:
        pack.extract("a-1-py3-none-any.whl", tmp_path, filter="data")
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl") as wheel:
        assert wheel.read("a.py") == b"a = 1\n" * 1000
        assert wheel.getinfo("a.py").compress_type == zipfile.ZIP_STORED


def test_another_python_of_the_environment_changes_the_platform_and_its_packages() -> None:
    system = replace(tool.SYSTEMS["debian12"], its_python="3.12")
    assert system.platform == "debian-12-x86_64-glibc2.36-py3.12"
    items = [item for one in tool.artifacts(system, {}) for item in one.build["files"] if "wheels" in item]
    assert {item["wheels"]["platform"] for item in items} == {system.platform}


def test_make_names_both_and_the_systems_are_those_of_the_sandbox() -> None:
    said = subprocess.run(
        ["make", "-n", "bundle", "SYSTEM=debian13", "BUNDLE_PYTHON=3.12", "OPENMPI=5.0.7"],
        cwd=tool.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tools/bundle.py --system debian13 --python 3.12 --openmpi 5.0.7" in said
    said = subprocess.run(
        ["make", "-n", "provision-here", "HERE_OPTIONS=--limit-s 9"],
        cwd=tool.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "python3 tools/provision_here.py --limit-s 9" in said
    assert set(tool.SYSTEMS) <= set(IMAGES)
