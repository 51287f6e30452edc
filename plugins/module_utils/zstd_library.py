# SPDX-License-Identifier: Apache-2.0
"""Compress and decompress zstd with libzstd, for nodes without the program; package managers bring the library.

It runs on nodes, so it needs only Python 3.9 and the standard library. Python 3.14 and later have the format itself.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, BinaryIO, Callable, Iterator, Optional

_NAME = "libzstd.so.1"
_OLDEST = 10400  # 1.4.0, the first release with this interface
_CHUNK = 1 << 20
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
