"""The look before a build of Horovod: each lack has its sentence, with the cure first."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from node_programs import load

REPOSITORY = Path(__file__).parents[3]


preflight: Any = load("build_preflight", "horovod")
TORCH = {"version": "2.13.0+cpu", "cuda": "", "include": "/nowhere"}
NVCC = "Cuda compilation tools, release 13.0, V13.0.88"


class Host:
    """A host of programs that answer what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted = {
            "framework": "pytorch",
            "framework_version": "2.13.0+cpu",
            "python": str(folder / "python"),
            "openmpi": str(folder / "openmpi"),
            "openmpi_key": "abc",
            "nccl": str(folder / "nccl"),
            "nccl_key": "def",
            "cuda_home": str(folder / "cuda"),
            "cuda": "",
            "gpu_operations": "none",
            "cc_list": "80,90",
        }
        self.program("bin/g++", "echo 12.2.0")
        self.program("bin/cmake", "echo cmake version 3.25.1")
        self.program("openmpi/bin/mpicc", "exit 0")
        self.marker("openmpi", "abc")
        self.torch(TORCH)

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def marker(self, name: str, key: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / ".clusterctl.json").write_text(json.dumps({"key": key}))

    def torch(self, said: dict[str, str]) -> None:
        (self.folder / "include").mkdir(exist_ok=True)
        (self.folder / "include/Python.h").touch()
        script = f"case \"$2\" in *sysconfig*) echo {self.folder}/include;; *) echo '{json.dumps(said)}';; esac"
        self.program("python", script)

    def with_nccl(self, header: str, library: str) -> None:
        """Lay out an NCCL and a toolkit; the library is a real one that answers with its version."""
        self.wanted |= {"gpu_operations": "NCCL", "cuda": "13", "framework_version": "2.13.0"}
        self.torch({**TORCH, "version": "2.13.0", "cuda": "13.0"})
        self.program(
            "cuda/bin/nvcc",
            f'test "$1" = --version && echo "{NVCC}" || printf "compute_75\\ncompute_80\\ncompute_90\\n"',
        )
        self.marker("nccl", "def")
        for name in ("include", "lib"):
            (self.folder / "nccl" / name).mkdir()
        parts = zip(("MAJOR", "MINOR", "PATCH"), header.split("."), strict=True)
        (self.folder / "nccl/include/nccl.h").write_text(
            "".join(f"#define NCCL_{part} {number}\n" for part, number in parts)
        )
        major, minor, patch = map(int, library.split("."))
        source = f"int ncclGetVersion(int *version) {{ *version = {major * 10000 + minor * 100 + patch}; return 0; }}\n"
        (self.folder / "nccl.c").write_text(source)
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-o",
            str(self.folder / "nccl/lib/libnccl.so"),
            str(self.folder / "nccl.c"),
        ]
        subprocess.run(command, check=True)

    def looks(self) -> int:
        code: int = preflight.main([json.dumps(self.wanted)])
        return code


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Host(tmp_path)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert text.count("\n") == 1, "one sentence"
    return text.strip()


def test_a_host_that_has_everything_passes(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.looks() == 0
    assert said(capsys).startswith("g++ 12.2.0; CMake 3.25.1; headers in ")


@pytest.mark.parametrize(
    ("name", "script", "sentence"),
    [
        ("bin/g++", "echo x.cc:1: error: unknown option; exit 1", "Install a C++ compiler that knows C++17"),
        ("bin/cmake", "echo cmake version 3.10.2", "Install CMake 3.13 or later on the builder: version 3.10.2"),
        ("bin/cmake", "exit 1", "Install CMake 3.13 or later on the builder: it said nothing."),
        ("openmpi/bin/mpicc", "echo 'ld: error: no -lmpi'; exit 1", "(ld: error: no -lmpi)"),
        ("python", "case $2 in *sysc*) echo /nowhere;; esac", "Install Python's development package on the builder"),
    ],
)
def test_a_program_that_does_not_serve_is_named(
    host: Host, capsys: pytest.CaptureFixture[str], name: str, script: str, sentence: str
) -> None:
    host.program(name, script)
    assert host.looks() == 1
    assert sentence in said(capsys)


def test_a_framework_that_cannot_be_imported_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.program(
        "python",
        f'case "$2" in *sysconfig*) echo {host.folder}/include;;'
        " *) echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1;; esac",
    )
    assert host.looks() == 1
    assert "Install PyTorch 2.13.0+cpu first (role python_env): " in said(capsys)


def test_a_framework_of_another_version_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.torch({**TORCH, "version": "2.12.1"})
    assert host.looks() == 1
    assert said(capsys).endswith(f"and {host.folder}/python has 2.12.1.")


def test_the_index_s_own_cuda_build_adds_its_cuda_to_its_version(host: Host) -> None:
    host.with_nccl("2.28.9", "2.28.9")
    host.torch({**TORCH, "version": "2.13.0+cu130", "cuda": "13.0"})
    assert host.looks() == 0
    host.wanted["framework_version"] = "2.13.0+cu126"
    assert host.looks() == 1


def test_headers_that_need_more_of_the_compiler_are_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    header = host.folder / "torch/csrc/api/include/torch/all.h"
    header.parent.mkdir(parents=True)
    header.write_text("#if !defined(_MSC_VER) && __cplusplus < 202002L\n#error C++20 or later\n#endif\n")
    host.torch({**TORCH, "include": str(host.folder)})
    assert host.looks() == 1
    assert "the headers of PyTorch 2.13.0+cpu need C++20, and Horovod's sources are compiled as C++17." in said(capsys)
    header.write_text("#if __cplusplus < 201703L\n")
    assert host.looks() == 0


def test_another_open_mpi_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.marker("openmpi", "fff")
    assert host.looks() == 1
    assert f"the build abc of Open MPI and {host.folder}/openmpi is fff." in said(capsys)
    shutil.rmtree(host.folder / "openmpi")
    assert host.looks() == 1
    assert f"{host.folder}/openmpi is no installed build." in said(capsys)


def test_gpu_operations_need_a_cuda_framework(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.wanted["gpu_operations"] = "NCCL"
    assert host.looks() == 1
    assert said(capsys).startswith("Set horovod_gpu_operations to none, or python_env_framework_build to cuda:")


def test_an_nccl_and_a_toolkit_that_fit_pass(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.with_nccl("2.28.9", "2.28.9")
    assert host.looks() == 0
    assert said(capsys).endswith("PyTorch 2.13.0; NCCL 2.28.9; CUDA 13.0")


def test_a_header_of_another_nccl_than_the_library_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.with_nccl("2.28.9", "2.27.5")
    assert host.looks() == 1
    assert said(capsys).endswith("its header is of NCCL 2.28.9 and its library of 2.27.5.")


def test_a_builder_without_nccl_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.with_nccl("2.28.9", "2.28.9")
    (host.folder / "nccl/lib/libnccl.so").unlink()
    assert host.looks() == 1
    assert f"{host.folder}/nccl/lib/libnccl.so is not there." in said(capsys)


def test_a_library_that_is_none_is_named(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.with_nccl("2.28.9", "2.28.9")
    (host.folder / "nccl/lib/libnccl.so").write_text("no library")
    assert host.looks() == 1
    assert f"Repair {host.folder}/nccl (role nccl): " in said(capsys)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cuda_home": "/nowhere"}, "/nowhere/bin/nvcc does not run (there is no /nowhere/bin/nvcc)."),
        ({"cuda": "12"}, "2.13.0 is of CUDA 12 and {folder}/cuda is of 13.0."),
        ({"cc_list": "70,80"}, "Take 70 out of horovod_cuda_cc_list: {folder}/cuda/bin/nvcc compiles for 75, 80, 90"),
        ({"nccl_key": "other"}, "the build other of NCCL and {folder}/nccl is def."),
    ],
)
def test_what_does_not_fit_is_named(
    host: Host, capsys: pytest.CaptureFixture[str], changes: dict[str, str], sentence: str
) -> None:
    host.with_nccl("2.28.9", "2.28.9")
    host.wanted |= changes
    assert host.looks() == 1
    assert sentence.format(folder=host.folder) in said(capsys)
