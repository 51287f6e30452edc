"""Call NCCL through ctypes: load libnccl, name the file that was loaded, and put its errors into words.

NVIDIA's own bindings (nccl4py 0.6) load the libnccl of a wheel in Python's site-packages before the one that the
loader knows. They also need cuda-core and cuda-bindings for the two dozen functions that a check calls. This module
needs the standard library and the libnccl under test.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rank_program import CheckError

if TYPE_CHECKING:
    from collections.abc import Sequence


# Let ranks exchange values with each other: over MPI, or over a key-value store such as PyTorch's TCPStore.


class Mpi:
    """A group of ranks over MPI."""

    def __init__(self, comm: Any) -> None:
        """Keep an mpi4py communicator."""
        self._comm = comm
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())

    def gathered(self, value: Any) -> list[Any]:
        return list(self._comm.allgather(value))

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self._comm.bcast(value, root=0)

    def among(self, members: Sequence[int]) -> Mpi:
        """Return the group of these ranks; all ranks call it, and the others get the group of the others."""
        return self.apart(int(self.rank not in members))

    def apart(self, number: int) -> Mpi:
        """Return the group of the ranks that give the same number; all ranks call it."""
        return Mpi(self._comm.Split(number, self.rank))


class Store:
    """A group of ranks over a key-value store such as PyTorch's TCPStore."""

    def __init__(self, store: Any, rank: int, size: int, prefix: str = "clusterctl") -> None:
        """Keep a store with ``set(key, text)`` and a blocking ``get(key)``."""
        self._store, self.rank, self.size, self._prefix = store, rank, size, prefix
        self._turn = 0

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks; a value is JSON."""
        self._turn += 1
        self._store.set(f"{self._prefix}/{self._turn}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{self._prefix}/{self._turn}/{rank}")) for rank in range(self.size)]

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self.gathered(value)[0]

    def among(self, members: Sequence[int]) -> Store:
        """Return the group of these ranks, or for another rank the group of the others."""
        side = [rank for rank in range(self.size) if (rank in members) == (self.rank in members)]
        return Store(self._store, side.index(self.rank), len(side), f"{self._prefix}/{self.rank in members}")

    def apart(self, number: int) -> Store:
        """Return the group of the ranks that give the same number; all ranks call it."""
        everybody = self.gathered(number)
        side = [rank for rank, given in enumerate(everybody) if given == number]
        return Store(self._store, side.index(self.rank), len(side), f"{self._prefix}/{self._turn}-{number}")


def local_rank() -> int:
    """Return which of its node's ranks this one is."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")))


# Call CUDA's driver through ctypes: count the GPUs, open one, and copy between it and the host.

CUDA_NOT_READY = 600  # CUresult


class Cuda:
    """CUDA's driver: how many GPUs this process sees, and one of them with a stream and two buffers."""

    def __init__(self) -> None:
        """Load and start the driver.

        Raises:
            CheckError: the driver is missing, or it sees no GPU.
        """
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as problem:
            raise CheckError(f"no CUDA driver: {problem}") from problem
        self("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(count))
        if count.value < 1:
            raise CheckError("the CUDA driver sees no GPU")
        self.count = count.value
        self.number = -1
        self.stream = ctypes.c_void_p()
        self.send, self.receive, self.capacity = 0, 0, 0

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function that returns CUresult."""
        result = getattr(self._library, name)(*arguments)
        if result:
            raise CheckError(f"{name}: {self.words(result)}")

    def words(self, result: int) -> str:
        """Return the driver's words for a result."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(result), ctypes.byref(text))
        return (text.value or b"").decode("utf-8", "replace") or f"CUDA error {result}"

    @property
    def version(self) -> str:
        number = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def describe(self, number: int) -> tuple[str, str]:
        """Return a GPU's name and its place on the bus, by which ranks find out that they share it."""
        device = self._device(number)
        name, place = ctypes.create_string_buffer(128), ctypes.create_string_buffer(64)
        self("cuDeviceGetName", name, ctypes.c_int(128), device)
        self("cuDeviceGetPCIBusId", place, ctypes.c_int(64), device)
        return name.value.decode("utf-8", "replace"), place.value.decode("utf-8", "replace")

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        return device

    def open(self, number: int) -> None:
        """Make a GPU this thread's own, through its primary context, which is the one that NCCL's CUDA runtime uses."""
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(number))
        self("cuCtxSetCurrent", context)
        self("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(0))
        self.number = number

    def reserve(self, size: int) -> None:
        """Have both buffers hold this many bytes at least."""
        if size <= self.capacity:
            return
        self.release()
        self.send, self.receive = self._allocated(size), self._allocated(size)
        self.capacity = size

    def _allocated(self, size: int) -> int:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def release(self) -> None:
        for address in (self.send, self.receive):
            if address:
                self("cuMemFree_v2", ctypes.c_uint64(address))
        self.send, self.receive, self.capacity = 0, 0, 0

    def close(self) -> None:
        """Free buffers, stream and context; the driver frees the rest when the process ends."""
        self.release()
        self("cuStreamDestroy_v2", self.stream)
        self("cuDevicePrimaryCtxRelease_v2", self._device(self.number))

    def free_bytes(self) -> int:
        """Return how much memory of the GPU is free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def upload(self, address: int, array: Any) -> None:
        """Copy a numpy array to the GPU, and wait until it is there."""
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)
        self("cuCtxSynchronize")  # a copy from pageable memory may return while it is still on its way

    def download(self, array: Any, address: int) -> None:
        """Fill a numpy array from the GPU."""
        target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), size)

    def is_idle(self) -> bool:
        """Whether the stream has done all it was given."""
        state = self._library.cuStreamQuery(self.stream)
        if state not in {0, CUDA_NOT_READY}:
            raise CheckError(f"a kernel failed: {self.words(state)}")
        return bool(state == 0)


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


# NCCL's communicator of the ranks that take part: choose them, join them, wait for their GPUs, and leave.

if TYPE_CHECKING:
    from collections.abc import Sequence

    import rank_program


MIG = "MIG"  # begin of the name of an instance of a GPU in MIG mode


def crew(places: Sequence[str], most: int) -> list[int]:
    """Return the ranks that take part: the first ``most`` on each GPU; a rank without a GPU has an empty place.

    A place that names a MIG instance, or the GPU of one, takes one rank.
    """
    seen: dict[str, int] = {}
    members: list[int] = []
    for rank, place in enumerate(places):
        if place and seen.get(place, 0) < (1 if f" {MIG}" in place else most):
            seen[place] = seen.get(place, 0) + 1
            members.append(rank)
    return members


def show_what_nccl_printed() -> None:
    """Flush C's standard output: NCCL prints the report of its diagnostics there, and a killed rank would lose it."""
    ctypes.CDLL(None).fflush(None)


class Communicator:
    """The communicator, one GPU and the findings."""

    def __init__(self, nccl: Nccl, cuda: Cuda, ranks: Mpi | Store, report: rank_program.Rank) -> None:
        """Keep them together; :meth:`join` is next."""
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        self.numpy, self.nccl, self.cuda, self.ranks, self.report = np, nccl, cuda, ranks, report
        self.rank, self.size = ranks.rank, ranks.size
        self.handle = ctypes.c_void_p()

    def join(self) -> None:
        """Form the communicator of all ranks on this side."""
        self.report.doing("ncclCommInitRank")
        unique = self.ranks.first_says(self.nccl.unique_id().hex() if self.rank == 0 else "")
        self.handle = self.nccl.communicator(self.size, bytes.fromhex(unique), self.rank)
        show_what_nccl_printed()
        device = self.nccl.device_of(self.handle)
        if device != self.cuda.number:
            raise CheckError(f"NCCL uses GPU {device} where this rank has opened GPU {self.cuda.number}")

    def wait(self) -> None:
        """Wait for the GPU, and raise errors of the network meanwhile."""
        while not self.cuda.is_idle():
            self.nccl.look_for_trouble(self.handle)
            os.sched_yield()
        self.nccl.look_for_trouble(self.handle)

    def leave(self) -> None:
        """End the communicator when all ranks are done with it, and close the GPU."""
        self.disband()
        self.cuda.close()

    def disband(self) -> None:
        """End the communicator when all ranks are done with it."""
        self.ranks.gathered(0)
        self.nccl("ncclCommDestroy", self.handle)
        show_what_nccl_printed()

    def exchange(self, count: int, number: int, target: int, source: int) -> None:
        """Send and receive at once; one after the other would hang."""
        nccl, cuda = self.nccl, self.cuda
        nccl("ncclGroupStart")
        nccl("ncclSend", cuda.send, count, number, target, self.handle, cuda.stream)
        nccl("ncclRecv", cuda.receive, count, number, source, self.handle, cuda.stream)
        nccl("ncclGroupEnd")
