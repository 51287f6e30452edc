# SPDX-License-Identifier: Apache-2.0
"""Pack a finished tree into one compressed tar; a run after an interrupted one finds it again."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Callable, Collection, Dict, Iterator, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    MARKER,
    ArtifactError,
    Entry,
    close_modes,
    leaving_link,
    make_manifest,
    parse_manifest,
    sha256_of,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.command import SYSTEM_PATH

# Take a file that the controller pushed: through no link, and with the size and digest of what was pushed.
#
# The file lies in a folder that others use too, and belongs to the login user, who may change it at any time. So its
# bytes are copied to a folder of root's, and only that copy is used.


def take_pushed(path: str, sha256: str, size: int, target: "str | os.PathLike[str]") -> None:
    """Copy a pushed file to a new file of a folder that only this user can write to.

    Args:
        path: the file, which another user can still change.
        sha256: digest of what the controller pushed.
        size: its bytes; not one more is read.
        target: the new file.

    Raises:
        ArtifactError: the file is not regular, or its content is not what was pushed.
        OSError: it cannot be read, or the target cannot be written.
    """
    total, left = hashlib.sha256(), size
    with _opened_pushed(path) as pushed, open(target, "xb", buffering=0) as out:  # noqa: PTH123 - exclusive: through no link
        if os.fstat(pushed.fileno()).st_size == size:
            while left > 0:
                data = pushed.read(min(left, _CHUNK))
                if not data:
                    break
                left -= len(data)
                total.update(data)
                _written(out, data)
        if left or total.hexdigest() != sha256:
            raise ArtifactError(f"{path} is not what the controller pushed; run again.")


def _written(out: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


def _opened_pushed(path: str) -> BinaryIO:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe could wait for ever
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ArtifactError(f"{path} should be a pushed file, but it is a link; remove it and run again.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ArtifactError(f"{path} should be a pushed file, but it is not a regular file; remove it.")
    return os.fdopen(handle, "rb", buffering=0)  # type: ignore[return-value]


# Compress and decompress zstd with libzstd, for nodes without the program; package managers bring the library.
#
# It runs on nodes, so it needs only Python 3.9 and the standard library. Python 3.14 and later have the format itself.

_NAME = "libzstd.so.1"
_OLDEST = 10400  # 1.4.0, the first release with this interface
_LEVEL_PARAMETER = 100  # ZSTD_c_compressionLevel
_CONTINUE, _END = 0, 2  # ZSTD_EndDirective


class ZstdError(Exception):
    """The library refused its input; the message is the library's."""


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer, which have the same layout."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))


@lru_cache(maxsize=None)
def library() -> Optional[Any]:
    """Return the loaded library; None where it is missing or too old."""
    try:
        found = ctypes.CDLL(_NAME)
        if found.ZSTD_versionNumber() < _OLDEST:
            return None
        buffer = ctypes.POINTER(_Buffer)
        for name, result, arguments in (
            ("ZSTD_createDStream", ctypes.c_void_p, []),
            ("ZSTD_freeDStream", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_decompressStream", ctypes.c_size_t, [ctypes.c_void_p, buffer, buffer]),
            ("ZSTD_createCCtx", ctypes.c_void_p, []),
            ("ZSTD_freeCCtx", ctypes.c_size_t, [ctypes.c_void_p]),
            ("ZSTD_CCtx_setParameter", ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
            ("ZSTD_compressStream2", ctypes.c_size_t, [ctypes.c_void_p, buffer, buffer, ctypes.c_int]),
            ("ZSTD_isError", ctypes.c_uint, [ctypes.c_size_t]),
            ("ZSTD_getErrorName", ctypes.c_char_p, [ctypes.c_size_t]),
        ):
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return found


def _loaded() -> Any:
    found = library()
    if found is None:
        raise ZstdError(f"{_NAME} is not on this node")
    return found


def _checked(found: Any, code: int) -> int:
    if found.ZSTD_isError(code):
        raise ZstdError(str(found.ZSTD_getErrorName(code).decode()))
    return code


def decompressed(source: BinaryIO) -> Iterator[memoryview]:
    """Yield the decompressed content of ``source``; a portion is valid until the next one is taken.

    Raises:
        ZstdError: the content is damaged or ends too early.
    """
    found = _loaded()
    room = ctypes.create_string_buffer(_CHUNK)
    view = memoryview(room)
    stream = found.ZSTD_createDStream()
    missing = 1
    try:
        for chunk in iter(lambda: source.read(_CHUNK), b""):
            given = _Buffer(ctypes.cast(chunk, ctypes.c_void_p), len(chunk), 0)
            full = True
            while given.position < given.size or full:
                out = _Buffer(ctypes.addressof(room), _CHUNK, 0)
                missing = _checked(found, found.ZSTD_decompressStream(stream, out, given))
                full = out.position == _CHUNK
                if out.position:
                    yield view[: out.position]
                if not missing and given.position == given.size:
                    break
    finally:
        found.ZSTD_freeDStream(stream)
    if missing:
        raise ZstdError("the archive ends too early")


class Compressor:
    """A stream that compresses what is written and passes it to ``sink``; :meth:`close` passes the rest."""

    def __init__(self, sink: Callable[[memoryview], Any], level: int) -> None:
        """Begin a frame."""
        self._library = _loaded()
        self._sink = sink
        self._room = ctypes.create_string_buffer(_CHUNK)
        self._context = self._library.ZSTD_createCCtx()
        self._ask(self._library.ZSTD_CCtx_setParameter(self._context, _LEVEL_PARAMETER, level))

    def write(self, data: bytes) -> int:
        """Take in bytes."""
        given = _Buffer(ctypes.cast(data, ctypes.c_void_p), len(data), 0)
        while given.position < given.size:
            self._step(given, _CONTINUE)
        return len(data)

    def close(self) -> None:
        """End the frame."""
        while self._step(_Buffer(None, 0, 0), _END):
            pass
        self.release()

    def release(self) -> None:
        """Free the memory; the stream cannot be written any more."""
        if self._context:
            self._library.ZSTD_freeCCtx(self._context)
            self._context = None

    def _step(self, given: _Buffer, directive: int) -> int:
        out = _Buffer(ctypes.addressof(self._room), _CHUNK, 0)
        left = self._ask(self._library.ZSTD_compressStream2(self._context, out, given, directive))
        if out.position:
            self._sink(memoryview(self._room)[: out.position])
        return left

    def _ask(self, code: int) -> int:
        return _checked(self._library, code)


_CHUNK = 1 << 20
FOLDER = "/var/cache/clusterctl/packs"  # on a builder
SUFFIXES = {"zst": ".tar.zst", "gz": ".tar.gz"}


def packable(tree: str, root: str, name: str, beside: Collection[str] = ()) -> List[Entry]:
    """Take write access of others from what a build left, and return its manifest.

    Args:
        tree: the folder.
        root: folder of the artifacts.
        name: of the artifact.
        beside: see :func:`artifact.leaving_link`.

    Raises:
        ArtifactError: see :func:`artifact.make_manifest`; or a link leads where others than root may write.
    """
    close_modes(tree)
    entries = make_manifest(tree)
    link = leaving_link(entries, root, beside)
    if link:
        raise ArtifactError(f"The build of {name} cannot be packed: {link}; correct its steps.")
    return entries


class Packs:
    """Where the pack of one artifact is kept until the controller has fetched it."""

    def __init__(self, folder: str, base: str) -> None:
        """Remember the places; nothing is touched yet."""
        self.folder = Path(folder)
        self.base = base
        self.record = self.folder / f"{base}.json"

    def kept(self) -> Optional[Dict[str, Any]]:
        """Return the pack that an earlier run did not hand over; None where it is missing or damaged."""
        try:
            answer: Dict[str, Any] = json.loads(self.record.read_bytes())
            return answer if sha256_of(answer["pack"]) == answer["sha256"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def make(self, tree: Path) -> Dict[str, Any]:
        """Pack a tree and return the pack's path, digest, size and compression.

        Raises:
            OSError: the pack cannot be written.
        """
        zstd = shutil.which("zstd", path=SYSTEM_PATH)
        compression = "zst" if zstd or library() else "gz"
        pack = self.folder / f"{self.base}{SUFFIXES[compression]}"
        partial = pack.with_suffix(".partial")
        try:
            with partial.open("wb") as out:
                # One fast level: higher ones cost more time than the bytes are worth.
                if zstd:
                    _pack_by([zstd, "-3", "-q", "-c"], tree, out)
                elif compression == "zst":
                    compressor = Compressor(out.write, 3)
                    _add_all(compressor, tree)
                    compressor.close()
                else:
                    _pack_by(["gzip", "-4", "-n", "-c"], tree, out)
            partial.chmod(0o644)
            partial.replace(pack)
        finally:
            partial.unlink(missing_ok=True)
        return {
            "pack": str(pack),
            "sha256": sha256_of(pack),
            "size": pack.stat().st_size,
            "compression": compression,
            "manifest_sha256": hashlib.sha256((tree / MANIFEST).read_bytes()).hexdigest(),
        }

    def keep(self, answer: Dict[str, Any]) -> None:
        """Write the record by which :meth:`kept` finds the pack."""
        disk_files.write(self.record, json.dumps(answer))

    def release(self) -> None:
        """Remove the pack and its record."""
        for path in (self.record, *(self.folder / f"{self.base}{suffix}" for suffix in SUFFIXES.values())):
            path.unlink(missing_ok=True)


def _pack_by(squeeze: List[str], tree: Path, out: BinaryIO) -> None:
    with subprocess.Popen(squeeze, stdin=subprocess.PIPE, stdout=out) as process:
        _add_all(process.stdin, tree)
        if process.stdin:
            process.stdin.close()
        if process.wait():
            raise OSError(errno.ENOSPC, "the pack could not be written", out.name)


def _add_all(sink: Any, tree: Path) -> None:
    def owned_by_root(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        if member.name in {".", MARKER}:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    # files that came later, such as a byte code cache, stay behind
    known = {entry.path for entry in parse_manifest((tree / MANIFEST).read_bytes())}
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as bundle:
        bundle.add(
            tree / MANIFEST, arcname=MANIFEST, recursive=False, filter=owned_by_root
        )  # the reader needs it first
        for path in sorted(tree.rglob("*")):
            name = str(path.relative_to(tree))
            if name in known:
                bundle.add(path, arcname=name, recursive=False, filter=owned_by_root)
