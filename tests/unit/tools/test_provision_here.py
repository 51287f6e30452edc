"""A machine without a network as a cluster of one: what is refused before anything changes, and how a step ends."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import provision_here as tool
import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import record
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl

PROGRAM = Path(tool.__file__)
PYTHON = ".".join(map(str, sys.version_info[:3]))
OTHER = "ubuntu-24.04-x86_64-glibc2.39-py3.12"


def bundle(path: Path, contents: Mapping[str, bytes], **more: Any) -> Path:
    """Write a bundle for this machine; ``more`` replaces fields of its manifest."""
    said: dict[str, Any] = {
        "schema": tool.SCHEMA,
        "platform": tool.platform_here(PYTHON),
        "packages": [],
        "controller": [],
        "variables": {},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    with tarfile.open(path, "w") as pack:
        for name, content in {**contents, "manifest.json": json.dumps({**said, **more}).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            pack.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """An environment whose packages are this Python's, and a PyTorch that cannot be loaded."""
    folder = tmp_path / "torch"
    (folder / "bin").mkdir(parents=True)
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise SystemExit('loaded')")
    (folder / "torch" / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run as root, whose files lie below a folder of the test."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tool, "WORK", tmp_path / "work")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return why nothing was done, one sentence."""
    assert tool.main(words) == 3
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    return said.err.strip()


def test_the_platform_is_the_one_that_a_node_tells() -> None:
    found = record.collect({"artifacts": []})
    assert found["platform"].startswith(tool.platform_here(PYTHON))


def test_each_wrong_input_is_one_sentence_and_changes_nothing(
    root: Path, torch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, here = ("--out", str(root / "out")), ("--environment", str(torch))
    monkeypatch.setattr(tool, "ROOT", root)
    assert refused(capsys, *out, *here) == (
        "There is no bundle in dist/bundle; make it with 'make bundle' on a machine with a network, or name it with"
        " --bundle."
    )
    gone = root / "gone.tar"
    assert refused(capsys, *out, *here, "--bundle", str(gone)) == (
        f"The bundle {gone} does not exist; make it with 'make bundle'."
    )
    other = bundle(root / "other.tar", {}, platform=OTHER)
    assert refused(capsys, *out, *here, "--bundle", str(other)) == (
        f"The bundle {other} is for {OTHER}, and this machine is {tool.platform_here(PYTHON)}; make one for it with"
        " 'make bundle SYSTEM=…'."
    )
    bundle(root / "odd.tar", {}, schema=99)
    (root / "text.tar").write_text("no archive")
    half = bundle(root / "half.tar", {"a": b"1" * 5000})
    half.write_bytes(half.read_bytes()[:3000])
    for odd in (root / "odd.tar", root / "text.tar", half):
        assert refused(capsys, *out, *here, "--bundle", str(odd)) == (
            f"{odd} is not a bundle of this release; make it anew with 'make bundle'."
        )
    names = ["no-compiler", "dpkg", "cmake", "brought"]
    (torch / "bin" / "cmake").touch()
    bare = bundle(root / "bare.tar", {"debs/brought_1_all.deb": b"1"}, packages=[*names, "no-headers"])
    assert refused(capsys, *out, *here, "--bundle", str(bare)) == (
        "This machine lacks no-compiler, no-headers, and the bundle does not bring such packages; install them from the"
        " distribution of this machine."
    )
    fine = str(bundle(root / "fine.tar", {"a": b"1"}))
    python = torch / "bin" / "python"
    (torch / "torch" / "__init__.py").unlink()
    (torch / "torch").rename(torch / "elsewhere")
    assert refused(capsys, *out, *here, "--bundle", fine) == (
        f"{python} has no PyTorch; name the folder of the environment that has it with --environment."
    )
    assert refused(capsys, *out, "--environment", "/nowhere", "--bundle", fine) == (
        "/nowhere/bin/python does not run; name the folder of the environment with PyTorch with --environment."
    )
    assert not (root / "work").exists()
    assert not (root / "out").exists()


def test_a_damaged_file_or_one_that_leads_elsewhere_leaves_nothing(
    root: Path, torch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--out", str(root / "out"), "--environment", str(torch), "--bundle")
    damaged = bundle(root / "damaged.tar", {"debs/a.deb": b"1"}, files={"debs/a.deb": "0" * 64})
    assert refused(capsys, *words, str(damaged)) == f"debs/a.deb in {damaged} is damaged; copy the bundle again."
    leading = bundle(root / "leading.tar", {"../out.txt": b"1"})
    assert refused(capsys, *words, str(leading)) == f"../out.txt in {leading} is damaged; copy the bundle again."
    assert not (root / "out.txt").exists()
    assert not (root / "work" / "bundle").exists()
    assert (root / "work").stat().st_mode & 0o777 == 0o700


def test_only_root_may_and_the_program_says_so_before_it_looks(tmp_path: Path) -> None:
    argv = [sys.executable, str(PROGRAM), "--out", str(tmp_path / "out")]
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        argv = ["setpriv", "--reuid=65534", "--clear-groups", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "provision-here changes this machine, so it needs root; run it with sudo.\n"


def test_pytorch_is_looked_at_and_not_loaded(torch: Path) -> None:
    found = tool.look_at(str(torch))
    assert (found.torch, found.cuda) == ("2.11.0+cu130", "13.0")


def test_nccl_of_the_environment_is_an_archive_that_the_role_reads(tmp_path: Path) -> None:
    place = tmp_path / "nvidia" / "nccl"
    (place / "include").mkdir(parents=True)
    (place / "lib").mkdir()
    (place / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
    (place / "lib" / "libnccl.so.2").write_bytes(b"\x7fELF")
    (place / "lib" / "__init__.py").touch()
    found = tool.Environment(
        "3.12.3", "/opt/t", "/opt/t/lib", nccl="2.28.9.post1", nccl_cuda="13", nccl_folder=str(place)
    )
    said = tool.nccl_variables(found, tmp_path)
    archive = Path(said["nccl_archive"])
    assert nccl.named_in(str(archive)) == ("2.28.9", "13")
    assert nccl.look_into(archive, "it", "archive") == nccl.Contents("built", "2.28.9")
    assert said["nccl_sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as pack:
        assert "nccl/lib/__init__.py" not in pack.getnames()
    assert tool.nccl_variables(tool.Environment("3.12.3", "/opt/t", "/opt/t/lib"), tmp_path) == {
        "nccl_install": "never"
    }


def run_in(folder: Path, limit_s: float = 60.0) -> tool.Run:
    made = tool.Bundle(bundle(folder / "a.tar", {}), (), (), {}, {})
    (folder / "work").mkdir()
    return tool.Run(folder, tool.Environment("3.12.3", "/opt/t", "/opt/t/lib"), made, (), limit_s)


def test_a_step_past_the_limit_is_ended_with_its_children_and_is_reported(root: Path) -> None:
    run = run_in(root, limit_s=2.0)
    child = "sleep 300 & echo $! >child; echo words; wait"
    began = time.monotonic()
    assert not run.do("slow", lambda run: run.must(["sh", "-c", child], "sh"))
    assert time.monotonic() - began < 30
    assert "words\n" in (root / "output.txt").read_text()
    pid = int((root / "work" / "child").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the child is still there"
        time.sleep(0.1)
    assert not run.do("next", lambda _run: None)
    said = json.loads((root / "summary.json").read_text())["steps"]
    assert [(one["name"], one["verdict"], one["reason"]) for one in said] == [
        ("slow", "FAIL", "it was ended at the limit of 2 s"),
        ("next", "FAIL", "the limit of 2 s has passed"),
    ]


def test_a_failed_step_names_its_program_and_its_words_are_kept(root: Path) -> None:
    run = run_in(root)
    assert not run.do("bad", lambda run: run.must(["sh", "-c", "echo why >&2; exit 7"], "the program"))
    assert run.steps[0].reason == "the program ended with 7; output.txt has its words"
    assert (root / "output.txt").read_text().endswith("why\n")


@pytest.mark.parametrize(
    ("failing", "done"),
    [
        ("", ["provision", "validate", "gpu"]),
        ("provision", ["provision"]),
        ("validate", ["provision", "validate", "gpu"]),
    ],
)
def test_a_failed_step_ends_the_run_and_a_failed_validation_leaves_the_gpu(
    root: Path, failing: str, done: list[str]
) -> None:
    def fails(_run: tool.Run) -> None:
        raise tool.StepFailed("it failed")

    run = run_in(root)
    names = ("provision", "validate", "gpu")
    assert run.all({name: fails if name == failing else lambda _run: None for name in names}) is (not failing)
    assert [one.name for one in run.steps] == done


def test_packs_are_collected_with_their_records_and_large_ones_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = root / "work" / "cache" / "clusterctl" / "artifacts"
    place.mkdir(parents=True)
    for name, size in (("openmpi-1", 10), ("nccl-1", 5000)):
        (place / f"{name}.tar.zst").write_bytes(b"x" * size)
        (place / f"{name}.json").write_text("{}")
    (place / ".openmpi-1.lock").touch()
    monkeypatch.setattr(tool, "_MOST_PACKS", 4096)
    tool.collect(root)
    with tarfile.open(root / "packs.tar") as pack:
        assert pack.getnames() == ["openmpi-1.tar.zst", "openmpi-1.json"]


def test_packs_of_an_earlier_run_land_in_the_cache_and_nowhere_else(root: Path) -> None:
    packs = bundle(root / "packs.tar", {"openmpi-1.json": b"{}", "../above.json": b"{}"})
    tool.take_packs(packs)
    place = root / "work" / "cache" / "clusterctl" / "artifacts"
    assert sorted(path.name for path in place.iterdir()) == ["manifest.json", "openmpi-1.json"]
    assert not (place.parent / "above.json").exists()
    (root / "text").write_text("no archive")
    with pytest.raises(tool.Refusal, match=r"is not the packs\.tar of an earlier run"):
        tool.take_packs(root / "text")
