# SPDX-License-Identifier: Apache-2.0
"""Make a source tree of Horovod buildable with today's compilers, frameworks and Python.

Usage: PYTHON edit_source.py TREE FRAMEWORK VERSION [--expect HOROVOD] [--skip EDIT]...

Each edit is an exact text, what stands there instead, the reason, and the versions that it is for. An edit that is due
and does not find its text exactly once is an error that names the file and the edit; nothing is written then. FRAMEWORK
is pytorch or tensorflow, VERSION the one that is installed; Python's is the running one's.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_PLACE_OF_VERSION = "horovod/__init__.py"


class EditError(Exception):
    """The tree is not what the edits were written for; the message names the file and the edit."""


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    return tuple(int(number) for number in re.match(r"\d*(?:\.\d+)*", text).group(0).split(".") if number)  # type: ignore[union-attr] # matches any text


@dataclass(frozen=True)
class Range:
    """Versions from ``first`` up to, but not including, ``end``; empty bounds are open."""

    first: str = ""
    end: str = ""

    def __contains__(self, version: object) -> bool:
        """Tell whether a version's text is in it."""
        numbers = version_tuple(str(version))
        return not (
            (self.first and numbers < version_tuple(self.first)) or (self.end and numbers >= version_tuple(self.end))
        )


ANY = Range()
RELEASED = Range("0.28.1", "0.29")


@dataclass(frozen=True)
class Edit:
    """One replacement in one file."""

    name: str
    file: str
    why: str
    expected: str
    replacement: str
    horovod: Range = RELEASED
    framework: str = ""  # empty: for every framework
    framework_versions: Range = ANY
    python: Range = ANY

    def due(self, horovod: str, framework: str, framework_version: str, python: str) -> bool:
        """Tell whether the edit is for these versions."""
        return (
            horovod in self.horovod
            and self.framework in {"", framework}
            and framework_version in self.framework_versions
            and python in self.python
        )


EDITS = (
    Edit(
        name="pytorch-standard",
        file="horovod/torch/CMakeLists.txt",
        why="PyTorch's headers refuse anything older than C++17 since 2.1.",
        framework="pytorch",
        framework_versions=Range("2.1"),
        expected='if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 14)\nendif()\n',
        replacement="set(CMAKE_CXX_STANDARD 17)\n",
    ),
    Edit(
        name="gloo-standard",
        file="CMakeLists.txt",
        why=(
            "A static constexpr member is an inline variable since C++17: a Gloo of C++14 defines it once more than the"
            " C++17 objects that it is linked with, and the link fails."
        ),
        framework="pytorch",
        framework_versions=Range("2.1"),
        expected="set(CMAKE_CXX_STANDARD 14)\n",
        replacement="set(CMAKE_CXX_STANDARD 17)\n",
    ),
    Edit(
        name="adapter-headers",
        file="horovod/torch/adapter_v2.h",
        why="These headers are all of PyTorch, and tensors are used; parsing them costs 1.7 GB and most of the time.",
        framework="pytorch",
        framework_versions=Range("2.1"),
        expected="#include <torch/extension.h>\n#include <torch/torch.h>\n",
        replacement="#include <torch/types.h>\n",
    ),
    Edit(
        name="operations-headers",
        file="horovod/torch/mpi_ops_v2.cc",
        why="The same, and the casts of tensors between Python and C++.",
        framework="pytorch",
        framework_versions=Range("2.1"),
        expected="#include <torch/extension.h>\n#include <torch/torch.h>\n",
        replacement="#include <torch/csrc/utils/pybind.h>\n#include <torch/types.h>\n",
    ),
    Edit(
        name="python-include",
        file="horovod/torch/CMakeLists.txt",
        why="distutils is gone in Python 3.12, and sysconfig has known the same folder since 3.2.",
        framework="pytorch",
        expected='-c "from distutils.sysconfig import get_python_inc; print(get_python_inc())"',
        replacement="-c \"import sysconfig; print(sysconfig.get_path('include'))\"",
    ),
    Edit(
        name="jsrun-import",
        file="horovod/runner/js_run.py",
        why="distutils is gone in Python 3.12, and this import is on the way of every horovodrun.",
        expected="from distutils.spawn import find_executable\n",
        replacement="from shutil import which as find_executable\n",
    ),
    Edit(
        name="compiler-flags",
        file="CMakeLists.txt",
        why=(
            "The build type brings debug information of 100 MB that is thrown away again and half of the compiler's"
            " memory; the role names the flags."
        ),
        expected='string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")\n',
        replacement='set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "$ENV{CLUSTERCTL_CXXFLAGS} -DNDEBUG")\n',
    ),
    Edit(
        name="gloo-on-demand",
        file="CMakeLists.txt",
        why="TensorFlow 2.10 and later link a copy of Gloo that is built apart; this one need not be built for nobody.",
        expected="    add_subdirectory(third_party/gloo)\n",
        replacement="    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\n",
    ),
    Edit(
        name="cuda-only-when-asked",
        file="cmake/Modules/FindPytorch.cmake",
        why=(
            "A CUDA PyTorch and a toolkit that happens to lie on the builder would add CUDA to a Horovod that was asked"
            " for without GPU operations, and its bytes would depend on the builder."
        ),
        framework="pytorch",
        expected='string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n',
        replacement=(
            'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n'
            "if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})\n"
            "    set(Pytorch_CUDA FALSE)\n"
            "endif()\n"
        ),
    ),
)


def horovod_version(tree: Path, wanted: str = "") -> str:
    """Return the version that a tree says it is.

    Raises:
        EditError: it says none, or another one than ``wanted``.
    """
    place = tree / _PLACE_OF_VERSION
    try:
        found = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", place.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise EditError(
            f"The source is no tree of Horovod: it has no {_PLACE_OF_VERSION}; name an archive of one."
        ) from error
    if not found:
        raise EditError(f"The source is no tree of Horovod: its {_PLACE_OF_VERSION} names no version.")
    if wanted and found.group(1) != wanted:
        raise EditError(
            f"The source is of Horovod {found.group(1)}, not of {wanted}; set horovod_version to {found.group(1)} or"
            " name another archive."
        )
    return found.group(1)


def due_edits(horovod: str, framework: str, framework_version: str, python: str, skip: set[str]) -> list[Edit]:
    """Return the edits for these versions, without the skipped ones.

    Raises:
        EditError: a skipped name is no edit's.
    """
    unknown = skip - {edit.name for edit in EDITS}
    if unknown:
        raise EditError(
            f"horovod_skip_edits names {', '.join(sorted(unknown))}, which is no edit; there are"
            f" {', '.join(edit.name for edit in EDITS)}."
        )
    return [edit for edit in EDITS if edit.name not in skip and edit.due(horovod, framework, framework_version, python)]


def apply(tree: Path, edits: list[Edit]) -> list[str]:
    """Make all edits or none.

    Returns:
        A line for each edit that was made.

    Raises:
        EditError: a file or a text is not there, or not exactly once.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        if edit.file not in texts:
            try:
                texts[edit.file] = (tree / edit.file).read_text(encoding="utf-8")
            except FileNotFoundError as error:
                hint = " (a git archive must hold its submodules)" if edit.file.startswith("third_party/") else ""
                raise EditError(
                    f"The source has no {edit.file}, in which the edit '{edit.name}' has to be made{hint};"
                    f" name a whole archive, or skip the edit (horovod_skip_edits)."
                ) from error
        times = texts[edit.file].count(edit.expected)
        if times != 1:
            raise EditError(
                f"{edit.file} holds the text that the edit '{edit.name}' expects {times} times instead of once, so this"
                f" is not the source that the edit was written for. Why it is made: {edit.why} If this source needs it"
                f" no more, add {edit.name} to horovod_skip_edits; the text begins {edit.expected.splitlines()[0]!r}."
            )
        texts[edit.file] = texts[edit.file].replace(edit.expected, edit.replacement)
    for name, text in texts.items():
        (tree / name).write_text(text, encoding="utf-8")
    return [f"{edit.file}: {edit.name} ({edit.why})" for edit in edits]


def main(arguments: list[str]) -> int:
    """Edit the tree and say what was done, or why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("framework", choices=["pytorch", "tensorflow"])
    parser.add_argument("version")
    parser.add_argument("--expect", default="", help="the version of Horovod that the tree must be of")
    parser.add_argument("--skip", action="append", default=[], help="name of an edit that this tree needs no more")
    given = parser.parse_args(arguments)
    python = ".".join(map(str, sys.version_info[:2]))
    try:
        horovod = horovod_version(given.tree, given.expect)
        edits = due_edits(horovod, given.framework, given.version, python, set(given.skip))
        done = apply(given.tree, edits)
    except EditError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done or [f"No edit is known for Horovod {horovod}; it is built as it is."]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
