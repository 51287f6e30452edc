# SPDX-License-Identifier: Apache-2.0
"""Lay out an NCCL, wherever it came from, as programs look for it: lib, include and a pkg-config file.

Runs on the builder (Python 3.9, standard library alone). Exits 1 with one sentence where what came is not what was
asked for.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Optional, Tuple

_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x"}
_BUILT_FOR = re.compile(rb"NCCL version (?P<version>\d[\d.]*)(?:\+cuda| compiled with CUDA )(?P<cuda>\d+)\.\d+")
_PKG_CONFIG = """\
prefix={link}
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: nccl
Description: Collective communication between NVIDIA GPUs
Version: {version}
Libs: -L${{libdir}} -lnccl
Cflags: -I${{includedir}}
"""


class WrongError(Exception):
    """What came is not what was asked for; the message is one sentence."""


def header_in(folder: Path) -> Path:
    """Return the nccl.h below a folder."""
    for name in ("include/nccl.h", "*/include/nccl.h", "*/*/include/nccl.h"):
        for found in sorted(folder.glob(name)):
            return found
    raise WrongError("What came for NCCL has no include/nccl.h; name another source (nccl_source, nccl_archive).")


def library_in(folder: Path) -> Path:
    """Return the library that lies in a folder; a name without a release, if there is one, is what stays valid."""
    for name in ("libnccl.so.2", "libnccl.so.2.*", "libnccl.so"):
        for found in sorted(folder.glob(name)):
            if found.exists():
                return found
    raise WrongError(f"What came for NCCL has no libnccl.so.2 in {folder.name}; name another source (nccl_source).")


def header_version(header: Path) -> str:
    """Return the version that a header names, empty where it names none."""
    text = header.read_text(encoding="utf-8", errors="replace")
    parts = [
        re.search(rf"^\s*#define\s+NCCL_{part}\s+(\d+)\s*$", text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(part.group(1) for part in parts if part) if all(parts) else ""


def library_facts(library: Path) -> Tuple[str, str, str]:
    """Return the machine that a library is for, its version and its CUDA major; empty where it does not tell."""
    with library.open("rb") as stream:
        head = stream.read(20)
        if head[:4] != b"\x7fELF":
            return "", "", ""
        machine = _MACHINES.get(int.from_bytes(head[18:20], "little"), "another machine")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _BUILT_FOR.search(content)
            return (machine, match["version"].decode(), match["cuda"].decode()) if match else (machine, "", "")


def check(header: Path, library: Path, version: str, cuda: str) -> None:
    """Compare what came with what was asked for.

    Raises:
        WrongError: they differ.
    """
    machine, its, built_for = library_facts(library)
    here, named = platform.machine(), header_version(header)
    if not machine:
        raise WrongError(f"{library.name} is no shared library; name another source (nccl_source, nccl_archive).")
    if machine != here:
        raise WrongError(f"{library.name} is for {machine}, and this host is {here}; take the one for {here}.")
    if named != version:
        raise WrongError(
            f"nccl.h is of NCCL {named or 'no version'}, and {version} was asked for; correct nccl_version."
        )
    if its and its.rstrip(".") != version:
        raise WrongError(f"{library.name} is NCCL {its}, and the nccl.h beside it is of {named}; take another archive.")
    if built_for and built_for != cuda:
        raise WrongError(
            f"{library.name} was built with CUDA {built_for}, and CUDA {cuda} was asked for; take NCCL for CUDA {cuda},"
            f" or set nccl_cuda to '{built_for}'."
        )


def lay_out(header: Path, library: Path, tree: Path, *, by_link: bool) -> None:
    """Bring libraries and headers to their places, as files of the artifact or as links to where they are."""
    lib, include = tree / "lib", tree / "include"
    for folder in (lib, include):
        folder.mkdir(parents=True)
    names = [library] if by_link else sorted(library.parent.glob("libnccl*"))
    for found in names:
        if found.suffix != ".a":  # a static copy of hundreds of megabytes that nothing here links
            _bring(found, lib / found.name, by_link=by_link)
    for name, target in (("libnccl.so.2", library.name), ("libnccl.so", "libnccl.so.2")):
        if not os.path.lexists(lib / name):
            (lib / name).symlink_to(target)
    for found in sorted(header.parent.glob("nccl*")):
        _bring(found, include / found.name, by_link=by_link)


def _bring(found: Path, place: Path, *, by_link: bool) -> None:
    if by_link:
        place.symlink_to(found)
    elif found.is_symlink():
        place.symlink_to(found.readlink())
    else:
        shutil.move(str(found), str(place))
        for path in (place, *place.rglob("*")):
            program = path.is_dir() or path.name.startswith("libnccl.so")
            path.chmod(0o755 if program else 0o644)


def main() -> Optional[str]:
    """Arrange one NCCL; return a sentence where it cannot be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", required=True, help="that was asked for")
    parser.add_argument("--cuda", required=True, help="major that was asked for")
    parser.add_argument("--link", required=True, help="where programs will find it")
    parser.add_argument("--tree", type=Path, required=True, help="where it is laid out")
    parser.add_argument("--by-link", action="store_true", help="leave the files where they are")
    parser.add_argument("--library-folder", type=Path, action="append", default=[], help="looked into first")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        header = header_in(given.folder)
        folders = [*given.library_folder, header.parent.parent / "lib", header.parent.parent / "lib64"]
        folder = next((one for one in folders if any(one.glob("libnccl.so*"))), folders[0])
        library = library_in(folder)
        check(header, library, given.version, given.cuda)
        lay_out(header, library, given.tree, by_link=given.by_link)
        place = given.tree / "lib" / "pkgconfig"
        place.mkdir()
        text = _PKG_CONFIG.format(link=given.link, version=given.version)
        (place / "nccl.pc").write_text(text, encoding="utf-8")
    except WrongError as error:
        return str(error)
    print(f"NCCL {given.version} of {library}")
    return None


if __name__ == "__main__":
    sys.exit(main())
