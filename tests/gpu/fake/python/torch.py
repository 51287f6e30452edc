"""A PyTorch for GPUs that are not there: numpy's arrays in main memory, with the calls that the checks of GPUs make.

It proves the calls and what the checks expect of them, and nothing about CUDA. Types of 16 bits and of 8 are numpy's
float16.

FAKE_GPUS: how many GPUs there are (1), as in cuda.c.
FAKE_TORCH_FAULT: what goes wrong, on the GPU of that number: "sometimes@1" flips a bit of every third large product,
    "always@1" of each product of random numbers, "nan@1" makes one value of it not a number, "known@1" adds 1 to a
    product of whole numbers, "lost@1" raises an error as a GPU does that fell off the bus, "slow@1" multiplies slowly,
    "copy@1" flips a bit of a copy to the host.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "2.13.0+fake"
version = SimpleNamespace(cuda="13.0")
float32, float64 = np.dtype("f4"), np.dtype("f8")
float16 = bfloat16 = float8_e4m3fn = np.dtype("f2")
int16, int32, uint8 = np.dtype("i2"), np.dtype("i4"), np.dtype("u1")
LARGE = 32  # order of a matrix of random numbers, at least; the known ones are of the same order in tests
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
_made = 0


def _fault(kind: str, gpu: int) -> bool:
    return os.environ.get("FAKE_TORCH_FAULT") == f"{kind}@{gpu}"


def device(kind: str, index: int = 0) -> Any:
    return SimpleNamespace(type=kind, index=index)


class Tensor:
    def __init__(self, array: Any, gpu: int = -1) -> None:
        self.array, self.gpu = array, gpu

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__

    def to(self, where: Any) -> Tensor:
        if isinstance(where, np.dtype):
            return Tensor(self.array.astype(where), self.gpu)
        return Tensor(self.array.copy(), where.index)

    def t(self) -> Tensor:
        return Tensor(self.array.T, self.gpu)

    def clone(self) -> Tensor:
        return Tensor(self.array.copy(), self.gpu)

    def float(self) -> Tensor:
        return Tensor(self.array.astype("f4"), self.gpu)

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype), self.gpu)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def cpu(self) -> Tensor:
        return Tensor(self.array.copy())

    def numpy(self) -> Any:
        return self.array

    def pin_memory(self) -> Tensor:
        return self

    def zero_(self) -> None:
        self.array[...] = 0

    def copy_(self, source: Tensor, non_blocking: bool = False) -> None:
        self.array[...] = source.array
        if self.gpu < 0 and _fault("copy", source.gpu):
            self.array[5] ^= 4

    def any(self) -> Any:
        return self.array.any()

    def sum(self) -> Any:
        return self.array.sum()

    def __ne__(self, other: object) -> Any:
        assert isinstance(other, Tensor)
        return Tensor(self.array != other.array, self.gpu)

    __hash__ = None  # type: ignore[assignment]


def from_numpy(array: Any) -> Tensor:
    return Tensor(array)


def empty(shape: Any, dtype: Any, device: Any) -> Tensor:
    return Tensor(np.full(shape, 7, dtype), device.index)


def ones(shape: Any, device: Any) -> Tensor:
    return Tensor(np.ones(shape, "f4"), device.index)


def isnan(of: Tensor) -> Tensor:
    return Tensor(np.isnan(of.array), of.gpu)


def _product(left: Tensor, right: Tensor) -> Any:
    global _made
    _made += 1
    gpu = left.gpu
    if _fault("lost", gpu):
        raise RuntimeError("CUDA error: unspecified launch failure")
    if _fault("slow", gpu):
        time.sleep(0.02)
    found = (left.array.astype("f4") @ right.array.astype("f4")).astype(left.array.dtype)
    known = bool((np.abs(left.array) <= 1).all())
    if _fault("known", gpu) and known:
        found[1, 2] += 1
    if not known and ((_fault("sometimes", gpu) and _made % 3 == 0) or _fault("always", gpu)):
        found[3, 4] = -found[3, 4]
    if not known and _fault("nan", gpu):
        found[0, 0] = np.nan
    return found


def matmul(left: Tensor, right: Tensor, out: Tensor) -> None:
    out.array[...] = _product(left, right)


def _scaled_mm(left: Tensor, right: Tensor, out_dtype: Any, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    return Tensor(_product(left, right).astype(out_dtype), left.gpu)


class cuda:  # noqa: N801 - PyTorch's name
    @staticmethod
    def device_count() -> int:
        return int(os.environ.get("FAKE_GPUS", "1"))

    @staticmethod
    def get_device_properties(index: int) -> Any:
        return SimpleNamespace(name="Fake GPU", major=9, minor=0, multi_processor_count=132)

    @staticmethod
    def set_device(index: int) -> None:
        assert index < cuda.device_count()

    @staticmethod
    def synchronize(index: int = 0) -> None:
        assert index < cuda.device_count()

    @staticmethod
    def can_device_access_peer(one: int, other: int) -> bool:
        return one != other
