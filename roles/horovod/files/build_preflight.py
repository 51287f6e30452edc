# SPDX-License-Identifier: Apache-2.0
"""Look, in seconds, whether Horovod can be built on this host, before minutes go into a build that cannot end well.

Usage: python3 build_preflight.py '{"openmpi": …}'

The argument is a JSON object, see :class:`Wanted`. Prints what was found and exits 0, or prints one sentence that says
what to do and why, and exits 1.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Callable

_MARKER = ".clusterctl.json"
# The newest CMake features that the trees use: cmake_minimum_required of Horovod, and CMAKE_CUDA_STANDARD 17 for nvcc.
_CMAKE = (3, 13)
_CMAKE_FOR_CUDA = (3, 18)
_STANDARDS = {"201402": 14, "201703": 17, "202002": 20, "202302": 23}
_STANDARD_OF_EDITS = 17
_MODULES = {"pytorch": "torch", "tensorflow": "tensorflow"}
_LABELS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_TIMEOUT_S = 120
_ASK_FRAMEWORK = {
    "torch": (
        "import json, torch, os; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda or '',"
        " 'include': os.path.join(os.path.dirname(torch.__file__), 'include')}))"
    ),
    "tensorflow": (
        "import json, tensorflow as tf; print(json.dumps({'version': tf.__version__, 'include':"
        " tf.sysconfig.get_include(), 'cuda': str(tf.sysconfig.get_build_info().get('cuda_version') or '')}))"
    ),
}


class CannotBuildError(Exception):
    """The message is the sentence."""


@dataclass(frozen=True)
class Wanted:
    """What Horovod is to be built against."""

    framework: str  # pytorch or tensorflow
    framework_version: str
    python: str  # the interpreter that has the framework
    openmpi: str  # folders
    openmpi_key: str
    nccl: str
    nccl_key: str
    cuda_home: str
    cuda: str  # the framework's CUDA major; empty for a CPU build
    gpu_operations: str  # NCCL, MPI or none
    cc_list: str  # 70,80,90

    @classmethod
    def of(cls, text: str) -> Wanted:
        """Return the typed form of the argument."""
        given = json.loads(text)
        return cls(**{field.name: str(given[field.name]) for field in fields(cls)})

    @property
    def label(self) -> str:
        """Return the framework's name for messages."""
        return f"{_LABELS[self.framework]} {self.framework_version}"


def run(argv: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Return a command's exit code and whole output; 127 where there is no such program."""
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(environment or {})},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError:
        return 127, f"there is no {argv[0]}"
    except PermissionError:
        return 126, f"{argv[0]} may not be run"
    except subprocess.TimeoutExpired:
        return 124, f"it did not end within {_TIMEOUT_S} s"
    return done.returncode, done.stdout


def cause(output: str) -> str:
    """Return the line of a program's output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines or ["it said nothing"])[0 if errors else -1]


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _compiles(source: str, argv: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.cc"
        program.write_text(source, encoding="utf-8")
        return run([*argv, str(program), "-o", str(Path(folder) / "program")], environment)


def key_of(folder: str) -> str:
    """Return the key of an installed artifact, empty where there is none."""
    try:
        return str(json.loads((Path(folder) / _MARKER).read_bytes())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check_framework(wanted: Wanted) -> str:
    """Refuse a framework that is not the one that was asked for, or that needs more of the compiler than it gets."""
    code, output = run([wanted.python, "-c", _ASK_FRAMEWORK[_MODULES[wanted.framework]]])
    if code:
        raise CannotBuildError(
            f"Install {wanted.label} first (role python_env): {wanted.python} cannot import it here ({cause(output)})."
        )
    found = json.loads(output.splitlines()[-1])
    # PyTorch 2.13.0 of the index calls itself 2.13.0+cu130
    if wanted.framework_version not in {found["version"], found["version"].partition("+")[0]}:
        raise CannotBuildError(
            f"Run the role python_env first: {wanted.label} is to be built against, and {wanted.python} has"
            f" {found['version']}."
        )
    if wanted.gpu_operations != "none" and not found["cuda"]:
        raise CannotBuildError(
            "Set horovod_gpu_operations to none, or python_env_framework_build to cuda: GPU operations need a CUDA"
            f" build of {_LABELS[wanted.framework]}, and {found['version']} is a CPU build."
        )
    needed = needed_standard(Path(found["include"]))
    if needed > _STANDARD_OF_EDITS:
        raise CannotBuildError(
            f"Choose an earlier version (python_env_framework_version): the headers of {wanted.label} need C++{needed},"
            f" and Horovod's sources are compiled as C++{_STANDARD_OF_EDITS}."
        )
    return f"{_LABELS[wanted.framework]} {found['version']}"


def needed_standard(include: Path) -> int:
    """Return the C++ standard that PyTorch's headers insist on; 14 where they do not say."""
    header = include / "torch/csrc/api/include/torch/all.h"
    try:
        found = re.search(r"__cplusplus < (\d{6})L", header.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return 14
    return _STANDARDS.get(found.group(1), 0) or 99 if found else 14


def check_compiler(_wanted: Wanted) -> str:
    """Refuse a compiler that is missing or too old."""
    code, output = _compiles(
        "#include <optional>\nint main() { if constexpr (true) return std::optional<int>(0).value(); }\n",
        ["g++", f"-std=c++{_STANDARD_OF_EDITS}"],
    )
    if code:
        raise CannotBuildError(
            f"Install a C++ compiler that knows C++{_STANDARD_OF_EDITS} (gcc 9 or later) on the builder: g++ compiles"
            f" no such program here ({cause(output)})."
        )
    return run(["g++", "-dumpfullversion"])[1].strip().join(["g++ ", ""])


def check_python_headers(wanted: Wanted) -> str:
    """Refuse a builder without Python's headers."""
    code, output = run([wanted.python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"])
    header = Path(output.strip()) / "Python.h"
    if code or not header.is_file():
        raise CannotBuildError(f"Install Python's development package on the builder: {header} is not there.")
    return f"headers in {header.parent}"


def check_cmake(wanted: Wanted) -> str:
    """Refuse a CMake that is missing or too old."""
    needed = _CMAKE if wanted.gpu_operations == "none" else _CMAKE_FOR_CUDA
    text = ".".join(map(str, needed))
    code, output = run(["cmake", "--version"])
    found = numbers(output) if not code else ()
    if not found or found < needed:
        what = f"version {'.'.join(map(str, found))} is here" if found else cause(output)
        raise CannotBuildError(f"Install CMake {text} or later on the builder: {what}.")
    return f"CMake {'.'.join(map(str, found))}"


def check_mpi(wanted: Wanted) -> str:
    """Refuse an Open MPI that is another one or whose compiler wrapper does not link a program."""
    here = key_of(wanted.openmpi)
    if here != wanted.openmpi_key:
        raise CannotBuildError(
            f"Run the role openmpi first: Horovod is to be built against the build {wanted.openmpi_key} of Open MPI and"
            f" {wanted.openmpi} is {here or 'no installed build'}."
        )
    code, output = _compiles(
        "#include <mpi.h>\nint main(int n, char **v) { MPI_Init(&n, &v); return MPI_Finalize(); }\n",
        [f"{wanted.openmpi}/bin/mpicc"],
        {"OMPI_CC": "g++"},
    )
    if code:
        raise CannotBuildError(
            f"Repair {wanted.openmpi} (role openmpi): its mpicc with g++ behind it cannot link a program of MPI"
            f" ({cause(output)})."
        )
    return f"Open MPI {here}"


def _nccl_of_header(header: Path) -> str:
    text = header.read_text(encoding="utf-8", errors="replace")
    found = [re.search(rf"#define\s+NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(match.group(1) for match in found if match)


def _nccl_of_library(library: Path) -> str:
    code = ctypes.c_int()
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(code))
    # nccl.h: NCCL_VERSION(X,Y,Z), with fewer digits up to 2.8
    thousands = 10000 if code.value >= 10000 else 1000  # noqa: PLR2004
    return f"{code.value // thousands}.{code.value % thousands // 100}.{code.value % 100}"


def check_nccl(wanted: Wanted) -> str:
    """Refuse an NCCL that is missing, or whose header and library disagree."""
    if wanted.gpu_operations != "NCCL":
        return ""
    home = Path(wanted.nccl)
    header, library = home / "include/nccl.h", home / "lib/libnccl.so"
    for path in (header, library):
        if not path.exists():
            raise CannotBuildError(
                f"Run the role nccl on the builder first, or name a host that has NCCL in horovod_builder: {path} is"
                " not there."
            )
    here = key_of(wanted.nccl)
    if wanted.nccl_key and here != wanted.nccl_key:
        raise CannotBuildError(
            f"Run the role nccl first: Horovod is to be built against the build {wanted.nccl_key} of NCCL and"
            f" {wanted.nccl} is {here or 'no installed build'}."
        )
    try:
        of_header, of_library = _nccl_of_header(header), _nccl_of_library(library)
    except (OSError, AttributeError) as error:
        raise CannotBuildError(f"Repair {wanted.nccl} (role nccl): {library} cannot be loaded ({error}).") from error
    if of_header != of_library:
        raise CannotBuildError(
            f"Repair {wanted.nccl} (role nccl): its header is of NCCL {of_header} and its library of {of_library}."
        )
    return f"NCCL {of_library}"


def check_cuda(wanted: Wanted) -> str:
    """Refuse a toolkit that is missing, of another major, or that cannot compile for the GPUs."""
    if wanted.gpu_operations == "none":
        return ""
    nvcc = f"{wanted.cuda_home}/bin/nvcc"
    code, output = run([nvcc, "--version"])
    found = re.search(r"release (\d+)\.(\d+)", output)
    if code or not found:
        raise CannotBuildError(
            f"Install the CUDA toolkit {wanted.cuda} on the builder and name its folder in horovod_cuda_home, choose"
            f" another host (horovod_builder), or set horovod_gpu_operations to none: {nvcc} does not run"
            f" ({cause(output)})."
        )
    if wanted.cuda and found.group(1) != wanted.cuda:
        raise CannotBuildError(
            f"Name a toolkit of CUDA {wanted.cuda} in horovod_cuda_home: {wanted.label} is of CUDA {wanted.cuda} and"
            f" {wanted.cuda_home} is of {found.group(1)}.{found.group(2)}."
        )
    code, output = run([nvcc, "--list-gpu-arch"])
    able = set(re.findall(r"compute_(\d+)", output))
    unable = [cc for cc in wanted.cc_list.split(",") if able and cc not in able]
    if unable:
        raise CannotBuildError(
            f"Take {', '.join(unable)} out of horovod_cuda_cc_list: {nvcc} compiles for"
            f" {', '.join(sorted(able, key=int))} only."
        )
    return f"CUDA {found.group(1)}.{found.group(2)}"


CHECKS: tuple[Callable[[Wanted], str], ...] = (
    check_compiler,
    check_cmake,
    check_python_headers,
    check_mpi,
    check_framework,
    check_nccl,
    check_cuda,
)


def main(arguments: list[str]) -> int:
    """Run every check up to the first that fails."""
    wanted = Wanted.of(arguments[0])
    try:
        found = [check(wanted) for check in CHECKS]
    except CannotBuildError as error:
        print(error)
        return 1
    print("; ".join(filter(None, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
