#!/usr/bin/env python3
"""Prove that NCCL gives right answers on the GPUs, and measure it; every rank prints what it found, as one JSON line.

Started by mpirun (mpi4py carries NCCL's unique id) or, on a machine without MPI, by torchrun (PyTorch's TCPStore
carries it). What the lines mean stands in ``rank_program.py``.

NCCL and CUDA's driver are called through ctypes, because NVIDIA's own bindings (nccl4py 0.6) load the libnccl of a
wheel in Python's site-packages before the one that the loader knows, and need cuda-core and cuda-bindings for the two
dozen functions that are called here; so the check needs numpy, the driver and the very libnccl that it is about.

1. Every rank loads libnccl as a non-interactive session does, through the loader cache, and says which file that was
   and what ncclGetVersion of it answers. The first rank of each node also runs the program that the role ``nccl`` has
   compiled against the header.
2. Ranks that have a GPU form one communicator. Where ranks outnumber GPUs, up to four share one where NCCL allows it
   (2.30.3), else one rank per GPU takes part; the others say that they stand aside, as do the ranks of nodes without a
   GPU.
3. Answers are compared with those known beforehand: small integers, exact in every type used, so that there is no
   tolerance. Buffers are filled with another pattern before, and a margin behind them must keep it.
4. Time and bus bandwidth are measured as nccl-tests does.

The check ``nccl_sweep`` does the first two, then measures more sizes and operations as ``sweep_checks.py`` says, and
looks at the GPUs' clocks meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import gpu_state
import measure
import rank_program
import sweep_checks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

CHECKS = ("nccl", "nccl_sweep")
LIBRARY = "libnccl.so.2"
INSTALLED = "/usr/local/nccl/lib/libnccl.so.2"
PROOF = "/usr/local/nccl/libexec/clusterctl-nccl-check"
PROOF_LIMIT_S = 60.0

SHARING_SINCE = 23003  # NCCL 2.30.3: NCCL_MULTI_RANK_GPU_ENABLE
MOST_SHARING = 4  # ranks on one GPU; without MPS they take turns, and each step of a collective waits for a turn
SHARED_SETTINGS = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # a GPU can join a multicast group once
    "NCCL_MAX_CTAS": "2",  # the ranks' kernels must fit on the GPU side by side where MPS lets them
}

COUNTS = (1, 3, 1001, 40009, 1048583)  # values; the largest is beyond every switch of protocol. See Bench.counts
MARGIN = 64  # values behind the end of every receive buffer
ALL_PAIRS_UP_TO = 32  # ranks; beyond it send and receive go at distances 1, 2, 4, ...
SIZES = (4096, 1 << 20, 1 << 26, 1 << 29)  # bytes, as nccl-tests counts them
SHARED_SIZES = (4096, 1 << 20)
REPETITIONS = 5
REPETITION_S = 0.05  # a repetition launches as many operations as fit into this
MOST_LAUNCHES = 50
SLOWEST_S = 2.0  # an operation that is expected to take longer is not measured
ANSWERS_SHARE = 0.5  # of the deadline; answers still missing then are left out, and that is said
MEASURE_SHARE = 0.75

SUM, MAX, MIN = 0, 2, 3  # ncclRedOp_t
FLOAT32, FLOAT32_BYTES = 7, 4
IN_PROGRESS = 7  # ncclResult_t
CUDA_NOT_READY = 600  # CUresult
RTLD_DI_LINKMAP = 2  # dlfcn.h


class CheckError(Exception):
    """NCCL or CUDA refused something; the sentence has the function and the library's own words."""


class Kind(NamedTuple):
    """A type of values: its number in ncclDataType_t, how it is stored, and up to where every integer is exact."""

    name: str
    number: int
    storage: str
    exact_to: int


KINDS = (
    Kind("u1", 1, "u1", 254),  # 255 fills the buffers before
    Kind("i4", 2, "i4", 2**31 - 1),
    Kind("i8", 4, "i8", 2**53),
    Kind("f2", 6, "f2", 2**11),
    Kind("bf16", 9, "u2", 2**8),
    Kind("f4", FLOAT32, "f4", 2**24),
    Kind("f8", 8, "f8", 2**53),
)


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
        """Load it; its own symbols come first, whatever NCCL a framework has brought into the process.

        Raises:
            CheckError: there is none, or it lacks a function.
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


class Cuda:
    """CUDA's driver: how many GPUs this process sees, and one of them with a stream and two buffers."""

    def __init__(self) -> None:
        """Load and start the driver.

        Raises:
            CheckError: there is none, or it sees no GPU.
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
        """The CUDA version that the driver offers."""
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
        """Free the buffers."""
        for address in (self.send, self.receive):
            if address:
                self("cuMemFree_v2", ctypes.c_uint64(address))
        self.send, self.receive, self.capacity = 0, 0, 0

    def close(self) -> None:
        """Free what is left; the driver frees the rest when the process ends."""
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


class Mpi:
    """The ranks among themselves, over MPI."""

    def __init__(self, comm: Any) -> None:
        """Keep an mpi4py communicator."""
        self._comm = comm
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())

    def gathered(self, value: Any) -> list[Any]:
        """Return everybody's value."""
        return list(self._comm.allgather(value))

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self._comm.bcast(value, root=0)

    def among(self, members: Sequence[int]) -> Mpi:
        """Return these ranks among themselves; everybody calls it, and who is not among them keeps to the others."""
        return Mpi(self._comm.Split(int(self.rank not in members), self.rank))


class Store:
    """The ranks among themselves, over a key-value store such as PyTorch's TCPStore."""

    def __init__(self, store: Any, rank: int, size: int, prefix: str = "clusterctl") -> None:
        """Keep a store with ``set(key, text)`` and a blocking ``get(key)``."""
        self._store, self.rank, self.size, self._prefix = store, rank, size, prefix
        self._turn = 0

    def gathered(self, value: Any) -> list[Any]:
        """Return everybody's value (what JSON can carry)."""
        self._turn += 1
        self._store.set(f"{self._prefix}/{self._turn}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{self._prefix}/{self._turn}/{rank}")) for rank in range(self.size)]

    def first_says(self, value: Any) -> Any:
        """Return the first rank's value."""
        return self.gathered(value)[0]

    def among(self, members: Sequence[int]) -> Store:
        """Return these ranks among themselves, or the others for who is not among them."""
        side = [rank for rank in range(self.size) if (rank in members) == (self.rank in members)]
        return Store(self._store, side.index(self.rank), len(side), f"{self._prefix}/{self.rank in members}")


def crew(places: Sequence[str], most: int) -> list[int]:
    """Return the ranks that take part: the first ``most`` on each GPU; a rank without a GPU has an empty place."""
    seen: dict[str, int] = {}
    members: list[int] = []
    for rank, place in enumerate(places):
        if place and seen.get(place, 0) < most:
            seen[place] = seen.get(place, 0) + 1
            members.append(rank)
    return members


def distances(size: int) -> list[int]:
    """Return how far apart ranks are that send to each other: everybody to everybody, as long as that is feasible."""
    if size == 1:
        return [0]
    return list(range(1, size)) if size <= ALL_PAIRS_UP_TO else [2**power for power in range(size.bit_length() - 1)]


def bus_factor(operation: str, size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    Algorithm bandwidth is bytes over seconds, where the bytes of allgather, reduce-scatter and all-to-all are those of
    the whole array (NVIDIA/nccl-tests, doc/PERFORMANCE.md; send and receive: src/sendrecv.cu). With one rank nothing
    crosses a bus, whatever the formula says; the caller leaves the figure out there.
    """
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in {"allgather", "reduce_scatter", "alltoall"}:
        return (size - 1) / size
    return 1.0


def size_words(size_bytes: int) -> str:
    """Return 4KiB, 64MiB or 1GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes}B"


def launches(seconds_per_operation: float) -> int:
    """Return how many operations make one repetition."""
    return max(1, min(MOST_LAUNCHES, int(REPETITION_S / max(seconds_per_operation, 1e-6))))


class Bench:
    """The communicator, one GPU and the findings."""

    def __init__(self, nccl: Nccl, cuda: Cuda, ranks: Mpi | Store, report: rank_program.Rank) -> None:
        """Keep them together; :meth:`join` is next."""
        import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail

        self.numpy, self.nccl, self.cuda, self.ranks, self.report = np, nccl, cuda, ranks, report
        self.rank, self.size = ranks.rank, ranks.size
        self.comm = ctypes.c_void_p()

    def join(self) -> None:
        """Form the communicator of all ranks on this side."""
        self.report.doing("ncclCommInitRank")
        unique = self.ranks.first_says(self.nccl.unique_id().hex() if self.rank == 0 else "")
        self.comm = self.nccl.communicator(self.size, bytes.fromhex(unique), self.rank)
        device = self.nccl.device_of(self.comm)
        if device != self.cuda.number:
            raise CheckError(f"NCCL uses GPU {device} where this rank has opened GPU {self.cuda.number}")

    def wait(self) -> None:
        """Wait for the GPU, and for bad news from the network meanwhile."""
        while not self.cuda.is_idle():
            self.nccl.look_for_trouble(self.comm)
            os.sched_yield()
        self.nccl.look_for_trouble(self.comm)

    def leave(self) -> None:
        """End the communicator when everybody is done with it."""
        self.ranks.gathered(0)
        self.nccl("ncclCommDestroy", self.comm)
        self.cuda.close()

    def values(self, count: int, rank: int) -> Any:
        """Return the numbers that a rank contributes; they differ by position and by rank."""
        return self.numpy.arange(count, dtype="i8") % 7 + 1 + rank

    def stored(self, numbers: Any, kind: Kind) -> Any:
        """Return integers as the bytes of a type; bf16 is the upper half of f4."""
        if kind.name == "bf16":
            return (numbers.astype("f4").view("u4") >> 16).astype("u2")
        return numbers.astype(kind.storage)

    def read(self, stored: Any, kind: Kind) -> Any:
        """Return the numbers of stored bytes."""
        return (stored.astype("u4") << 16).view("f4") if kind.name == "bf16" else stored

    def counts(self) -> Iterator[int]:
        """Yield how many values; the largest is less per rank where many ranks gather, for a host must hold it all."""
        for count in COUNTS:
            yield min(count, max(COUNTS[-2], COUNTS[-1] * 8 // self.size))

    def fits(self, kind: Kind, highest: int) -> bool:
        """Whether every number up to here is exact in a type."""
        return highest <= kind.exact_to

    def prove(self, what: str, kind: Kind, sent: Any, expected: Any, launch: Callable[[], None], part: int = 0) -> None:
        """Run one operation and compare what arrived.

        Args:
            what: words for the report.
            kind: type of the values.
            sent: the numbers in the send buffer.
            expected: the numbers that must be in the receive buffer; None where nothing is received.
            launch: calls NCCL.
            part: how many values of the answer come from each rank, where they do.
        """
        numpy, cuda = self.numpy, self.cuda
        what = self.report.doing(f"{what} {kind.name}[{len(sent)}]")
        blank = kind.exact_to + 1 if kind.name == "u1" else -77
        room = (0 if expected is None else len(expected)) + MARGIN
        received = self.stored(numpy.full(room, blank, dtype="i8"), kind)
        content = self.stored(sent, kind)
        cuda.reserve(max(content.nbytes, received.nbytes))
        cuda.upload(cuda.send, content)
        cuda.upload(cuda.receive, received)
        launch()
        self.wait()
        if expected is None:
            self.report.findings.compared += 1  # taking part without an error is what this rank can prove
            return
        cuda.download(received, cuda.receive)
        got, wanted = self.read(received, kind), self.read(self.stored(expected, kind), kind)
        self.report.findings.array(what, got[: len(wanted)], wanted, part)
        margin = self.read(self.stored(numpy.full(MARGIN, blank, dtype="i8"), kind), kind)
        self.report.findings.array(f"{what}: the margin behind the buffer", got[len(wanted) :], margin)

    def answers(self, until: float) -> None:
        """Prove every operation with every type, small counts first; the first rank decides when it has been enough."""
        done = 0
        for count in self.counts():
            if not self.ranks.first_says(time.monotonic() < until):
                break
            for number, kind in enumerate(KINDS):
                self._reductions(kind, count, number % self.size)
                self._copies(kind, count, (number + self.size // 2) % self.size)
            done = count
        self.report.facts["largest"] = f"{done} values a rank"
        if done < COUNTS[-2]:
            raise CheckError(f"too slow: only {done} values a rank were proved in {ANSWERS_SHARE:.0%} of the deadline")

    def _reductions(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.comm, self.size, self.cuda.stream
        mine, position = self.values(count, self.rank), self.values(count, 0)
        ranks_sum = size * (size - 1) // 2
        for name, operation, expected in (
            ("sum", SUM, position * size + ranks_sum),
            ("max", MAX, position + size - 1),
            ("min", MIN, position),
        ):
            if not self.fits(kind, int(expected.max())):
                continue

            def allreduce(operation: int = operation) -> None:
                nccl("ncclAllReduce", cuda.send, cuda.receive, count, kind.number, operation, comm, stream)

            self.prove(f"allreduce {name}", kind, mine, expected, allreduce)
        if not self.fits(kind, 7 * size + ranks_sum):
            return
        total = position * size + ranks_sum

        def reduce() -> None:
            nccl("ncclReduce", cuda.send, cuda.receive, count, kind.number, SUM, root, comm, stream)

        self.prove(f"reduce to rank {root}", kind, mine, total if self.rank == root else None, reduce)

        def reduce_scatter() -> None:
            nccl("ncclReduceScatter", cuda.send, cuda.receive, count, kind.number, SUM, comm, stream)

        whole = self.values(count * size, 0)
        share = whole[self.rank * count : (self.rank + 1) * count] * size + ranks_sum
        self.prove("reduce-scatter", kind, whole + self.rank, share, reduce_scatter)

    def _copies(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.comm, self.size, self.cuda.stream
        limit = min(kind.exact_to, 251)

        def from_rank(rank: int) -> Any:
            return self.values(count, rank) % limit

        mine = from_rank(self.rank)

        def broadcast() -> None:
            nccl("ncclBroadcast", cuda.send, cuda.receive, count, kind.number, root, comm, stream)

        self.prove(f"broadcast from rank {root}", kind, mine, from_rank(root), broadcast)

        def allgather() -> None:
            nccl("ncclAllGather", cuda.send, cuda.receive, count, kind.number, comm, stream)

        everybody = self.numpy.concatenate([from_rank(rank) for rank in range(size)])
        self.prove("allgather", kind, mine, everybody, allgather, part=count)
        for distance in distances(size):
            target, source = (self.rank + distance) % size, (self.rank - distance) % size

            def exchange(target: int = target, source: int = source) -> None:
                self._exchange(count, kind.number, target, source)

            self.prove(f"send to rank {target}, receive from rank {source}", kind, mine, from_rank(source), exchange)

    def _exchange(self, count: int, number: int, target: int, source: int) -> None:
        """Send and receive at once; one after the other would wait for ever."""
        nccl, cuda = self.nccl, self.cuda
        nccl("ncclGroupStart")
        nccl("ncclSend", cuda.send, count, number, target, self.comm, cuda.stream)
        nccl("ncclRecv", cuda.receive, count, number, source, self.comm, cuda.stream)
        nccl("ncclGroupEnd")

    def operations(self, size_bytes: int) -> dict[str, Callable[[], None]]:
        """Return what is measured: f4 values, out of place, ``size_bytes`` as nccl-tests counts them."""
        nccl, cuda, comm, stream = self.nccl, self.cuda, self.comm, self.cuda.stream
        count = size_bytes // FLOAT32_BYTES
        share = max(1, count // self.size)
        send, receive = cuda.send, cuda.receive
        following, preceding = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return {
            "allreduce": lambda: nccl("ncclAllReduce", send, receive, count, FLOAT32, SUM, comm, stream),
            "broadcast": lambda: nccl("ncclBroadcast", send, receive, count, FLOAT32, 0, comm, stream),
            "reduce": lambda: nccl("ncclReduce", send, receive, count, FLOAT32, SUM, 0, comm, stream),
            "allgather": lambda: nccl("ncclAllGather", send, receive, share, FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl("ncclReduceScatter", send, receive, share, FLOAT32, SUM, comm, stream),
            "send_receive": lambda: self._exchange(count, FLOAT32, following, preceding),
        }

    def measure(self, until: float, *, shared: bool) -> None:
        """Measure every operation and size; the first rank notes the figures and decides what would take too long.

        A repetition launches several operations one after the other and waits for the last; its time is the average
        over the ranks, as nccl-tests reports it, and the figure is the median of the repetitions. The calls come from
        Python, which adds a few microseconds to the smallest size. Ranks that share a GPU have no bus between them:
        only times are noted there.
        """
        with_bus = self.size > 1 and not shared
        last: dict[str, float] = {}  # the seconds that the last size took
        room = min(self.ranks.gathered(self.cuda.free_bytes())) // 4  # two buffers, and as much again left free
        sizes = [size for size in (SHARED_SIZES if shared else SIZES) if size <= room]
        for index, size_bytes in enumerate(sizes):
            growth = size_bytes / sizes[index - 1] if index else 0.0
            self.cuda.reserve(max(size_bytes, FLOAT32_BYTES * self.size))
            for name, operation in self.operations(size_bytes).items():
                expected_s = last.get(name, SLOWEST_S if index else 0.0) * growth
                if not self.ranks.first_says(expected_s < SLOWEST_S and time.monotonic() < until):
                    continue
                self.report.doing(f"measuring {name} of {size_bytes} bytes")
                seconds = self._seconds(operation)
                last[name] = seconds
                if self.rank == 0:
                    figures = self.report.figures
                    figures[f"{name}_{size_words(size_bytes)}_us"] = round(seconds * 1e6, 2)
                    if with_bus:
                        bus = size_bytes / seconds * bus_factor(name, self.size)
                        figures[f"{name}_{size_words(size_bytes)}_bus_bytes_per_s"] = float(f"{bus:.4g}")

    def _seconds(self, operation: Callable[[], None]) -> float:
        """Return the median time of one operation in seconds."""
        operation()  # connections are made at the first use
        self.wait()
        first = max(self.ranks.gathered(self._timed(operation, 1)))
        count = launches(first)
        repetitions = [self._timed(operation, count) / count for _ in range(REPETITIONS)]
        everybody = self.ranks.gathered(repetitions)
        return statistics.median(statistics.fmean(times[turn] for times in everybody) for turn in range(REPETITIONS))

    def _timed(self, operation: Callable[[], None], count: int) -> float:
        self.ranks.gathered(0)
        operation()  # the ranks meet here more closely than at any barrier of the hosts
        self.wait()
        began = time.perf_counter()
        for _ in range(count):
            operation()
        self.wait()
        return time.perf_counter() - began


class Mover:
    """What a sweep needs: NCCL's collectives on arrays in the GPU's memory."""

    name = "nccl"

    def __init__(self, bench: Bench) -> None:
        """Take the ranks of a communicator."""
        self.bench, self.rank, self.size = bench, bench.rank, bench.size
        self.run: Callable[[], None] = bench.wait
        self.given: Any = None
        self.room = 0

    def gathered(self, value: float) -> list[float]:
        """Return everybody's number."""
        return [float(number) for number in self.bench.ranks.gathered(value)]

    def first_says(self, value: float) -> float:
        """Return the first rank's number."""
        return float(self.bench.ranks.first_says(value))

    def meet(self) -> None:
        """Wait for everybody: first the hosts, then, by an operation that is not timed, the GPUs."""
        self.bench.ranks.gathered(0)
        self.run()
        self.bench.wait()

    def wait(self) -> None:
        """Wait until all that was started is done."""
        self.bench.wait()

    def load(self, point: sweep_checks.Point, given: Any, room: int) -> None:
        """Make :attr:`run` an operation on an array, with a buffer for so many values to come."""
        bench = self.bench
        blank = bench.numpy.full(room, sweep_checks.BLANK, dtype="f4")
        bench.cuda.reserve(max(given.nbytes, blank.nbytes))
        bench.cuda.upload(bench.cuda.send, given)
        bench.cuda.upload(bench.cuda.receive, blank)
        self.given, self.room = given, room
        count = len(given) // self.size if point.operation in {"reduce_scatter", "alltoall"} else len(given)
        self.run = self._operation(point.operation, count)

    def _operation(self, name: str, count: int) -> Callable[[], None]:
        """Return a call; ``count`` is what NCCL means by it: values of an array, or of a rank's share of it."""
        nccl, cuda, comm = self.bench.nccl, self.bench.cuda, self.bench.comm
        send, receive, stream, root = cuda.send, cuda.receive, cuda.stream, sweep_checks.ROOT
        return {
            "allreduce": lambda: nccl("ncclAllReduce", send, receive, count, FLOAT32, SUM, comm, stream),
            "broadcast": lambda: nccl("ncclBroadcast", send, receive, count, FLOAT32, root, comm, stream),
            "allgather": lambda: nccl("ncclAllGather", send, receive, count, FLOAT32, comm, stream),
            "reduce_scatter": lambda: nccl("ncclReduceScatter", send, receive, count, FLOAT32, SUM, comm, stream),
            "alltoall": lambda: self._alltoall(count),
        }[name]

    def _alltoall(self, count: int) -> None:
        """Send and receive in one group, as nccl-tests does: ncclAlltoAll is younger than what clusters have."""
        nccl, cuda = self.bench.nccl, self.bench.cuda
        nccl("ncclGroupStart")
        for rank in range(self.size):
            place = rank * count * FLOAT32_BYTES
            nccl("ncclSend", cuda.send + place, count, FLOAT32, rank, self.bench.comm, cuda.stream)
            nccl("ncclRecv", cuda.receive + place, count, FLOAT32, rank, self.bench.comm, cuda.stream)
        nccl("ncclGroupEnd")

    def _downloaded(self, address: int, count: int) -> Any:
        array = self.bench.numpy.empty(count, dtype="f4")
        self.bench.cuda.download(array, address)
        return array

    def sent(self) -> Any:
        """Return what the send buffer holds."""
        return self._downloaded(self.bench.cuda.send, len(self.given))

    def received(self) -> Any:
        """Return what arrived."""
        return self._downloaded(self.bench.cuda.receive, self.room)


def sweep(report: rank_program.Rank, bench: Bench) -> None:
    """Measure collectives over message sizes, and watch the GPUs of the node at it."""
    bench.join()
    watch = gpu_state.Watch() if local_rank() == 0 else None
    if watch:
        watch.start()
    room = min(bench.ranks.gathered(bench.cuda.free_bytes())) // 4  # two buffers, and as much again left free
    sweep_checks.Sweep(report, Mover(bench), bench.numpy).go(room)
    if watch:
        watch.stop()
        gpu_state.report(report, watch.looks)
        for index, values in gpu_state.clocks(watch.looks).items():
            measure.say(
                report.voice, values, quantity="gpu_clock", unit="Hz", better="higher", operation=f"gpu {index}"
            )
        if watch.problem:
            report.facts["gpu_state"] = watch.problem
    report.doing("ncclCommDestroy")
    bench.leave()


def local_rank() -> int:
    """Return which of its node's ranks this one is."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")))


def prove_nccl(report: rank_program.Rank, ranks: Mpi | Store) -> None:
    """Load NCCL, and prove and measure it where there are GPUs."""
    began = time.monotonic()
    report.doing("loading NCCL")
    nccl = load(report)
    if local_rank() == 0:
        report.facts.update(proof(report.arguments.proof))
    report.findings.compared += 1  # the library is loaded
    report.doing("looking for a GPU")
    cuda = found_gpu(report)
    number = local_rank() % cuda.count if cuda else -1
    place = ""
    if cuda:
        report.facts["gpu"], report.facts["gpu_place"] = cuda.describe(number)
        place = f"{report.voice.host} {report.facts['gpu_place']}"
    report.doing("the exchange of who has which GPU")
    everybody = ranks.gathered([place, nccl.version])
    places = [str(entry[0]) for entry in everybody]
    versions = sorted({str(entry[1]) for entry in everybody})
    if len(versions) > 1:  # no communicator is tried: NCCL would refuse it, or worse
        report.findings.note("NCCL's version", f"one everywhere, not {' and '.join(versions)}", nccl.version)
        return
    most = MOST_SHARING if nccl.code >= SHARING_SINCE or report.arguments.pretend_hosts else 1
    members = crew(places, most)
    side = ranks.among(members)
    if cuda is None:
        return
    if ranks.rank not in members:
        report.facts["aside"] = f"NCCL {nccl.version}: no more than {most} a GPU"
        return
    gpus = len({places[member] for member in members})
    if gpus < len(members):
        report.facts["shared"] = f"{len(members)} ranks on {gpus} GPU{'s' if gpus > 1 else ''}"
    set_environment(report)
    cuda.open(number)
    bench = Bench(nccl, cuda, side, report)
    if report.arguments.check == "nccl_sweep":
        sweep(report, bench)
    else:
        play(report, bench, began)


def found_gpu(report: rank_program.Rank) -> Cuda | None:
    """Return CUDA where it sees a GPU; else note why not, which is wrong on some nodes and right on others."""
    try:
        cuda = Cuda()
        report.facts["cuda_driver"] = cuda.version
    except CheckError as problem:
        report.facts["no_gpu"] = str(problem)
        return None
    return cuda


def set_environment(report: rank_program.Rank) -> None:
    """Set what NCCL reads when the first communicator begins; what the user has set stays."""
    if "shared" in report.facts:
        for name, value in SHARED_SETTINGS.items():
            os.environ.setdefault(name, value)
    if report.arguments.pretend_hosts:
        os.environ["NCCL_HOSTID"] = f"clusterctl-{report.rank}"
    os.environ.setdefault("NCCL_DEBUG", "WARN")  # what it says on the way to an error goes into the log


def play(report: rank_program.Rank, bench: Bench, began: float) -> None:
    """Compare answers, measure where they are right, and leave in order."""
    deadline = report.arguments.deadline
    bench.join()
    bench.answers(began + ANSWERS_SHARE * deadline)
    if not any(bench.ranks.gathered(report.findings.wrong)):  # nobody wants to know how fast wrong answers are
        bench.measure(began + MEASURE_SHARE * deadline, shared="shared" in report.facts)
    report.doing("ncclCommDestroy")
    bench.leave()


def load(report: rank_program.Rank) -> Nccl:
    """Load NCCL and note which file that is, what it says of itself, what was installed, and what else is mapped."""
    facts = report.facts
    facts["nccl_installed"] = str(Path(INSTALLED).resolve()) if Path(INSTALLED).exists() else ""
    nccl = Nccl(report.arguments.library)
    facts["nccl_version"], facts["nccl_path"] = nccl.version, nccl.path
    others = [f"{Nccl(path).version} of {path}" for path in mapped_files("libnccl") if path != nccl.path]
    if others:
        facts["nccl_beside"] = ", ".join(others)
    return nccl


def mapped_files(name: str) -> list[str]:
    """Return the real paths of all files ``name.so…`` that this process has mapped."""
    wanted = re.compile(rf"/{re.escape(name)}\.so[^/]*$")
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = [line[line.find("/") :] for line in lines if wanted.search(line)]
    return list(dict.fromkeys(str(Path(path).resolve()) for path in paths))


def proof(program: str) -> dict[str, str]:
    """Run the program that was compiled against the header, and return what it says; nothing where there is none.

    Raises:
        CheckError: it does not load NCCL, or says something else than which one.
    """
    if not Path(program).exists():
        return {}
    try:
        done = subprocess.run([program], capture_output=True, text=True, timeout=PROOF_LIMIT_S, check=False)
        if done.returncode:
            raise CheckError(f"{program}: {' '.join(done.stderr.split()) or f'code {done.returncode}'}")
        said = json.loads(done.stdout)
        return {f"proof_{name}": str(said[name]) for name in ("version", "header", "path")}
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as problem:
        raise CheckError(f"{program} gave no answer: {type(problem).__name__}: {problem}") from problem


def under_torchrun(report: rank_program.Rank) -> int:
    """Let PyTorch's store carry what mpi4py would."""

    def body() -> None:
        from torch.distributed import TCPStore  # noqa: PLC0415 - "started" is said before this import

        environment = os.environ
        agent_has_it = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            report.size,
            is_master=report.rank == 0 and not agent_has_it,
        )
        report.begin()
        ranks = Store(store, report.rank, report.size)
        prove_nccl(report, ranks)
        report.doing("the barrier at the end")
        ranks.gathered(0)

    report.doing("PyTorch's store")
    return report.code if report.attempt(body) else 1


def work(report: rank_program.Rank) -> int:
    """Run the check."""
    report.libraries = ("libmpi", "libnccl")
    if report.arguments.launcher == "torchrun":
        return under_torchrun(report)
    return rank_program.with_mpi(report, lambda mpi: prove_nccl(report, Mpi(mpi.COMM_WORLD)))


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    words = rank_program.parser("Prove that NCCL gives right answers. Started by mpirun or torchrun.", CHECKS)
    sweep_checks.add_options(words)
    words.add_argument("--library", default=LIBRARY, help="the libnccl to load; a bare name is left to the loader")
    words.add_argument("--proof", default=PROOF, help="the program that was compiled against NCCL's header")
    words.add_argument("--launcher", choices=("mpirun", "torchrun"), default="mpirun", help="what started the ranks")
    words.add_argument(
        "--pretend-hosts",
        action="store_true",
        help="give each rank a host of its own (NCCL_HOSTID), so that older NCCL lets ranks share a GPU, over sockets",
    )
    return words.parse_args(argv)


def main() -> int:
    """Say that this rank is up, then run the check."""
    arguments = parsed()
    voice = None
    if arguments.launcher == "torchrun":
        rank_program.end_with_parent()  # torchrun gives its workers sessions of their own
        voice = rank_program.Voice(
            arguments.check, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        )
    return rank_program.run(arguments, work, voice)


if __name__ == "__main__":
    sys.exit(main())
