"""Images of handwritten digits for the classifiers beside this file: MNIST's files, or the digits of scikit-learn."""

import gzip
import math
import os
import sys
import zlib
from pathlib import Path

import numpy as np

MAGIC = {1: 0x801, 3: 0x803}  # of bytes in one and in three dimensions; see the file format on MNIST's page
TEST_SHARE = 5  # every fifth of scikit-learn's digits is kept for the test


class DataError(Exception):
    """The images cannot be had; the text says why in one sentence."""


def load(folder, rank, gather):
    """Return training images, their labels, test images and their labels; on all processes, or on none.

    Images are float32 from 0 to 1 of shape (number, height, width), labels int64. They come from the four idx files of
    MNIST in ``folder``, packed with gzip or not, or without a folder from scikit-learn. ``gather`` is Horovod's
    allgather_object: where one process cannot read them, all end, and one says which and why.
    """
    problem = images = None
    try:
        images = _of_mnist(Path(folder)) if folder else _of_scikit_learn()
    except DataError as error:
        problem = f"rank {rank} on {os.uname().nodename}: {error}"
    problems = [text for text in gather(problem) if text]
    if problems:
        if problem == problems[0]:
            print(problem, file=sys.stderr, flush=True)
        gather(None)  # with the first process that ends, the launcher ends the others; this one has spoken before
        sys.exit(1)
    return images


def _of_mnist(folder):
    parts = []
    for part in ("train", "t10k"):
        images = _read(folder, f"{part}-images-idx3-ubyte", 3).astype(np.float32) / 255
        labels = _read(folder, f"{part}-labels-idx1-ubyte", 1).astype(np.int64)
        if len(images) != len(labels):
            raise DataError(f"{folder} has {len(images)} images and {len(labels)} labels named {part}-*.")
        parts += [images, labels]
    return tuple(parts)


def _read(folder, name, dimensions):
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {name} (nor {name}.gz); --data takes a folder with MNIST's four files.")
    try:
        content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path} is damaged ({problem}).") from problem
    magic, *shape = (int.from_bytes(content[at : at + 4], "big") for at in range(0, 4 + 4 * dimensions, 4))
    if magic != MAGIC[dimensions]:
        raise DataError(f"{path} is no idx file of bytes in {dimensions} dimensions.")
    values = np.frombuffer(content[4 + 4 * dimensions :], np.uint8)
    if len(values) != math.prod(shape):
        raise DataError(f"{path} is damaged ({len(values)} bytes, where its header promises {math.prod(shape)}).")
    return values.reshape(shape)


def _of_scikit_learn():
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - nobody who has MNIST's files needs it
    except ImportError:
        raise DataError(
            "Without --data the digits of scikit-learn are taken, which is not installed; set python_env_requirements: "
            "[scikit-learn] in the inventory and run 'clusterctl provision' again, or name a folder with MNIST's files."
        ) from None
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    test = np.arange(len(labels)) % TEST_SHARE == 0
    return images[~test], labels[~test], images[test], labels[test]
