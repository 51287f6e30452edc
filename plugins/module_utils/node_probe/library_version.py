# SPDX-License-Identifier: Apache-2.0
"""Find the release of a library from its artifact, its path, its wheel, or the library itself."""

from __future__ import annotations

import json
import os
import re

from .artifacts import MARKER, MOST_MARKER
from .reading import list_folder, read_regular, reap

# Library stem -> the artifact of clusterctl that installs it.
_HOLDERS = {"libnccl": "nccl", "libmpi": "openmpi"}
_NCCL = "libnccl"
_NCCL_ANSWER_S = 5.0
_CODE = re.compile(rb"[0-9]{1,7}")
_NOBODY = 65534  # the kernel's own number for a user without rights


def library_version(soname: str, real: str, root: str) -> str:
    """Return the release of a library's file, '' if it is unknown."""
    stem = soname.partition(".so")[0]
    folder = real[len(root) + 1 :].partition("/")[0] if real.startswith(f"{root}/") else ""
    if folder:
        try:
            marker = json.loads(read_regular(f"{root}/{folder}/{MARKER}", MOST_MARKER))
            if marker["name"] == _HOLDERS.get(stem):
                return str(marker["version"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass  # not one of our artifacts, or a damaged one, which the section "artifacts" reports
    if stem != _NCCL:  # in other names (libmpi.so.40.30.4) the numbers are those of the interface
        return ""
    named = os.path.basename(real).partition(".so.")[2]
    if named.count(".") >= 2 and named.replace(".", "").isdigit():  # noqa: PLR2004 - 2.29.7
        return named
    return _wheel_version(real) or _nccl_version(real)


def _wheel_version(real: str) -> str:
    """Return the version of the wheel that installed site-packages/nvidia/nccl/lib/libnccl.so.2."""
    site, inner, _unused = real.rpartition("/nvidia/nccl/lib/")
    names = [name for name in list_folder(site) if name.startswith("nvidia_nccl_cu")] if inner else []
    versions = [name[: -len(".dist-info")].rpartition("-")[2] for name in names if name.endswith(".dist-info")]
    return versions[0] if len(versions) == 1 else ""


def _nccl_version(path: str) -> str:
    """Ask the library itself, in a child process: loading an unknown file may hang or crash."""
    import select  # noqa: PLC0415 - seldom needed

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _tell_nccl_version(path, writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], _NCCL_ANSWER_S)[0]
        said = os.read(reader, 32) if ready else b""
    finally:
        os.close(reader)
        reap(child)
    return nccl_release(int(said)) if _CODE.fullmatch(said) else ""


def _tell_nccl_version(path: str, writer: int) -> None:
    """Load a library and write its version code to the pipe; runs in the child only."""
    import ctypes  # noqa: PLC0415 - only the child needs it

    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    if os.geteuid() == 0:  # the session's library path may name files that root must not run
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    code = ctypes.c_int(0)
    if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
        os.write(writer, str(code.value).encode())


def nccl_release(code: int) -> str:
    """Return the release of a version code (NCCL_VERSION in nccl.h): 22907 is 2.29.7, 2804 is 2.8.4."""
    if code <= 0:
        return ""
    unit = 10000 if code >= 10000 else 1000  # noqa: PLR2004 - since 2.9
    return f"{code // unit}.{code % unit // 100}.{code % 100}"
