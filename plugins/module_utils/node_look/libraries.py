# SPDX-License-Identifier: Apache-2.0
"""Library files that the dynamic loader takes in a session: its cache, its search, and their releases."""

from __future__ import annotations

import json
import os
import re
import struct

from .artifacts import DEFAULT_PREFIX, MARKER, MOST_MARKER
from .reading import Json, list_folder, matching_paths, read_regular, reap

# --- library cache ---------------------------------------------------------------------------------------------------

LIBRARY_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48  # bytes of struct cache_file_new (glibc, sysdeps/generic/dl-cache.h)
_CACHE_ENTRY = "=iIIIQ"  # struct file_entry_new: flags, key, value, osversion, hwcap


def content() -> bytes:
    """Return the bytes of the cache, b'' if ldconfig never ran here."""
    try:
        with open(LIBRARY_CACHE, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return b""


def in_library_cache(name: bytes) -> bool:
    """Tell whether the loader's cache lists a library."""
    try:
        return name + b"\0" in content()
    except OSError:
        return False


def read_library_cache(data: bytes, soname: str) -> list[str]:
    """Return the paths of a library in the bytes of an ld.so.cache, in the loader's order.

    The format is "glibc-ld.so.cache1.1", also behind a block of the older format. Entries for special processors are
    left out. Entries of another architecture stay in; the caller looks at their files.
    """
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return []
    body = memoryview(data)[start:]
    wanted = soname.encode() + b"\0"
    found = []
    try:
        (count,) = struct.unpack_from("=I", body, len(_CACHE_MAGIC))
        end = _CACHE_HEADER + count * struct.calcsize(_CACHE_ENTRY)
        for _unused, key, value, _unused, hwcap in struct.iter_unpack(_CACHE_ENTRY, body[_CACHE_HEADER:end]):
            if not hwcap and data.startswith(wanted, start + key):
                found.append(os.fsdecode(data[start + value : data.index(b"\0", start + value)]))
    except (struct.error, ValueError):  # cut off: the loader takes no such cache
        return []
    return found


# --- library version -------------------------------------------------------------------------------------------------

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


# --- libraries -------------------------------------------------------------------------------------------------------

_ELF_HEAD = 20  # bytes up to and with e_machine


def libraries(asked: list[Json], library_path: str, root: str = DEFAULT_PREFIX) -> Json:
    """Find libraries as the loader does.

    Args:
        asked: each with ``soname``, and ``also``: patterns of further files to report.
        library_path: LD_LIBRARY_PATH of the session.
        root: the folder of the artifacts; relative patterns are below it.
    """
    cache = content() if asked else b""
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
    ways += [(path, LIBRARY_CACHE) for path in read_library_cache(cache, soname)]
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
