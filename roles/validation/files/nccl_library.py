"""Call NCCL through ctypes: load libnccl, name the file that was loaded, and put its errors into words.

NVIDIA's own bindings (nccl4py 0.6) load the libnccl of a wheel in Python's site-packages before the one that the
loader knows. They also need cuda-core and cuda-bindings for the two dozen functions that a check calls. This module
needs the standard library and the libnccl under test.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from rank_program import CheckError

LIBRARY = "libnccl.so.2"
SUM, MAX, MIN = 0, 2, 3  # ncclRedOp_t
FLOAT32, FLOAT32_BYTES = 7, 4  # ncclDataType_t
IN_PROGRESS = 7  # ncclResult_t
RTLD_DI_LINKMAP = 2  # dlfcn.h


class LinkMap(ctypes.Structure):
    """The begin of glibc's struct link_map (link.h): where a library was loaded, and from which file."""

    _fields_ = (("address", ctypes.c_size_t), ("name", ctypes.c_char_p))


class UniqueId(ctypes.Structure):
    """ncclUniqueId: 128 bytes that are passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


def version_words(code: int) -> str:
    """Return NCCL's version as text; from 2.9 on the number is major*10000 + minor*100 + patch (nccl.h)."""
    base = 10000 if code >= 10000 else 1000  # noqa: PLR2004 - see above
    return f"{code // base}.{code % base // 100}.{code % 100}"


class Nccl:
    """libnccl, loaded from wherever the loader finds it, or from a path."""

    _pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    _signatures = {  # noqa: RUF012 - nccl.h, unchanged since 2.7
        "ncclGetVersion": (_pointer,),
        "ncclGetUniqueId": (_pointer,),
        "ncclCommInitRank": (_pointer, _int, UniqueId, _int),
        "ncclCommCuDevice": (_pointer, _pointer),
        "ncclCommGetAsyncError": (_pointer, _pointer),
        "ncclCommDestroy": (_pointer,),
        "ncclGroupStart": (),
        "ncclGroupEnd": (),
        "ncclAllReduce": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
        "ncclBroadcast": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
        "ncclReduce": (_pointer, _pointer, _size, _int, _int, _int, _pointer, _pointer),
        "ncclAllGather": (_pointer, _pointer, _size, _int, _pointer, _pointer),
        "ncclReduceScatter": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
        "ncclSend": (_pointer, _size, _int, _int, _pointer, _pointer),
        "ncclRecv": (_pointer, _size, _int, _int, _pointer, _pointer),
    }

    def __init__(self, library: str = LIBRARY) -> None:
        """Load it with its own symbols first, ahead of a framework's NCCL in the same process.

        Raises:
            CheckError: the library is missing or lacks a function.
        """
        try:
            self._library = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
            for name, arguments in self._signatures.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, ctypes.c_int
            self._library.ncclGetErrorString.argtypes = (ctypes.c_int,)
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as problem:
            raise CheckError(f"NCCL does not load: {problem}") from problem
        code = ctypes.c_int()
        self("ncclGetVersion", ctypes.byref(code))
        self.code = code.value
        self.path = self._own_path()

    def _own_path(self) -> str:
        """Return the real path of the file behind the handle; a framework may have mapped another of the same name."""
        place = ctypes.POINTER(LinkMap)()
        ask = ctypes.CDLL(None).dlinfo
        ask.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        handle = self._library._handle  # noqa: SLF001 - ctypes has no other name for it
        if ask(handle, RTLD_DI_LINKMAP, ctypes.byref(place)) != 0:
            return ""
        return str(Path(place.contents.name.decode("utf-8", "surrogateescape")).resolve())

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function that returns ncclResult_t."""
        self.judge(name, getattr(self._library, name)(*arguments))

    def judge(self, name: str, result: int) -> None:
        """Raise what a result says, in NCCL's own words."""
        if result == 0:
            return
        words = self._library.ncclGetErrorString(result).decode("utf-8", "replace")
        last = self._last_error()
        raise CheckError(f"{name}: {words}{': ' if last else ''}{last}")

    def _last_error(self) -> str:
        """Return NCCL's last sentence, which names the cause; since 2.13."""
        if not hasattr(self._library, "ncclGetLastError"):
            return ""
        function = self._library.ncclGetLastError
        function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_char_p
        return " ".join((function(None) or b"").decode("utf-8", "replace").split())

    @property
    def version(self) -> str:
        """What ncclGetVersion of this very file says."""
        return version_words(self.code)

    def unique_id(self) -> bytes:
        """Return a new communicator's id."""
        unique = UniqueId()
        self("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def communicator(self, size: int, unique: bytes, rank: int) -> ctypes.c_void_p:
        """Join a communicator; returns when all have."""
        comm = ctypes.c_void_p()
        self("ncclCommInitRank", ctypes.byref(comm), size, UniqueId.from_buffer_copy(unique), rank)
        return comm

    def device_of(self, comm: ctypes.c_void_p) -> int:
        """Return the number of the GPU that a communicator uses."""
        device = ctypes.c_int(-1)
        self("ncclCommCuDevice", comm, ctypes.byref(device))
        return device.value

    def look_for_trouble(self, comm: ctypes.c_void_p) -> None:
        """Raise what has gone wrong behind the scenes, a connection that was lost for example."""
        state = ctypes.c_int()
        self("ncclCommGetAsyncError", comm, ctypes.byref(state))
        if state.value != IN_PROGRESS:
            self.judge("while it ran", state.value)
