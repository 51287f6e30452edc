"""Call CUDA's driver through ctypes: count the GPUs, open one, and copy between it and the host."""

from __future__ import annotations

import ctypes
from typing import Any

from rank_program import CheckError

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
