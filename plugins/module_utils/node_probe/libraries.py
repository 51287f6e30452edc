# SPDX-License-Identifier: Apache-2.0
"""Find the library files that the dynamic loader takes in a session."""

from __future__ import annotations

import os

from . import library_cache
from .library_version import library_version
from .prefix import DEFAULT
from .reading import Json, matching_paths

_ELF_HEAD = 20  # bytes up to and with e_machine


def libraries(asked: list[Json], library_path: str, root: str = DEFAULT) -> Json:
    """Find libraries as the loader does.

    Args:
        asked: each with ``soname``, and ``also``: patterns of further files to report.
        library_path: LD_LIBRARY_PATH of the session.
        root: the folder of the artifacts; relative patterns are below it.
    """
    cache = library_cache.content() if asked else b""
    return {
        "libraries": [
            _library(str(entry["soname"]), entry.get("also") or [], cache, library_path, root) for entry in asked
        ]
    }


def _library(soname: str, also: list[str], cache: bytes, library_path: str, root: str) -> Json:
    """Return the file that the loader takes for a name, and the others that it could reach (ld.so(8)).

    The RPATH of a program and the folders for special processors (glibc-hwcaps) are left out.
    """
    # The first file is taken. An empty or relative entry depends on the working directory of the job, so it is skipped.
    entries = library_path.replace(";", ":").split(":")
    ways = [(f"{entry.rstrip('/')}/{soname}", "LD_LIBRARY_PATH") for entry in entries if entry.startswith("/")]
    ways += [(path, library_cache.LIBRARY_CACHE) for path in library_cache.read_library_cache(cache, soname)]
    ways += [(f"{folder}/{soname}", "default folders") for folder in _default_folders()]
    found: dict[str, Json] = {}
    for path, via in ways:
        real = os.path.realpath(path)
        if real not in found and _can_be_loaded(real):
            found[real] = {"path": path, "real": real, "version": library_version(soname, real, root), "via": via}
    files = list(found.values()) or [{"path": "", "real": "", "version": "", "via": ""}]
    for path in (path for pattern in also for path in matching_paths(os.path.join(root, pattern))):
        real = os.path.realpath(path)
        if _can_be_loaded(real):
            known = found.get(real) or {"version": library_version(soname, real, root)}
            files.append({**known, "path": path, "real": real, "via": "asked for"})
    return {"soname": soname, **files[0], "others": files[1:]}


def _default_folders() -> tuple[str, ...]:
    multiarch = f"{os.uname().machine}-linux-gnu"
    return f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"


def _can_be_loaded(path: str) -> bool:
    """Tell whether a library has the word size, byte order and processor of the running Python."""
    kind = _elf_kind(path)
    return bool(kind) and kind == _elf_kind("/proc/self/exe")


def _elf_kind(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            head = stream.read(_ELF_HEAD)
    except OSError:
        return b""
    return head[4:6] + head[18:20] if head.startswith(b"\x7fELF") else b""
