# SPDX-License-Identifier: Apache-2.0
"""Proves that the cluster's Python is the one that runs and that its framework computes; no GPU is needed.

Usage: PYTHON - LINK FRAMEWORK VERSION INTERPRETER [PACKAGE[==VERSION] | FOLDER ...] <environment_check.py

FRAMEWORK is pytorch, tensorflow or empty, VERSION the one that its wheel was pinned with. INTERPRETER is the prefix of
the Python that the environment was made of; empty takes any. Of the packages of a user's lock, each is held against
its version, and numpy is loaded only if it is among them. A FOLDER, which begins with '/', is one of the user's, whose
packages count as well. Prints one JSON line and exits 0, or exits 1 with a sentence on standard error. A framework
whose NCCL is the cluster's is not loaded before that is there.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

PACKAGES = {"pytorch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu")}
# the trace of the square of the numbers 0 to 8 in three rows, and the sum of the gradient of their squares
TRACE, GRADIENT = 180, 72


class WrongError(Exception):
    """What is wrong, in one sentence."""


def pinned_version(framework: str) -> str:
    """Return the version that the framework's package was installed with."""
    for package in PACKAGES[framework]:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    raise WrongError(f"{framework} is not in this environment.")


def plain(version: str) -> str:
    """Return a version as the names of folders spell it."""
    return version.replace("-", "_")


def with_torch() -> dict[str, object]:
    """Return what PyTorch computes and has."""
    import torch  # noqa: PLC0415 - the import is what may fail

    numbers = torch.arange(9.0).reshape(3, 3).requires_grad_()
    (numbers**2).sum().backward()
    return {
        "path": torch.__file__,
        "trace": (numbers @ numbers).trace().item(),
        "gradient": numbers.grad.sum().item(),
        "cuda": torch.version.cuda or "",
        "gpu": torch.cuda.is_available(),
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    }


def with_tensorflow() -> dict[str, object]:
    """Return what TensorFlow computes and has."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf  # noqa: PLC0415

    numbers = tf.Variable(tf.reshape(tf.range(9.0), (3, 3)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(numbers**2)
    return {
        "path": tf.__file__,
        "trace": float(tf.linalg.trace(numbers @ numbers)),
        "gradient": float(tf.reduce_sum(tape.gradient(loss, numbers))),
        "cuda": tf.sysconfig.get_build_info().get("cuda_version", ""),
        "gpu": bool(tf.config.list_physical_devices("GPU")),
    }


def awaited_nccl(link: str) -> str:
    """Return the place of the cluster's NCCL that the framework is to load and that has not come yet, or nothing."""
    for folder in Path(link).glob("lib/python3*/site-packages/nvidia/nccl/lib"):
        library = folder / "libnccl.so.2"
        if library.is_symlink() and not library.exists():
            return str(library.readlink())
    return ""


def compare(link: str, packages: tuple[str, ...]) -> None:
    """Hold the installed packages against the versions of a lock.

    Raises:
        WrongError: one is missing, has another version, or lies elsewhere.
    """
    for pinned in packages:
        name, _unused, version = pinned.partition("==")
        try:
            its = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise WrongError(f"{name} of the lock is not in this environment.") from None
        place = str(its.locate_file(""))
        if its.version != (version or its.version) or not place.startswith(f"{link}/lib/"):
            raise WrongError(f"{name} is {its.version} in {place}, not the lock's {version} in {link}.")


def with_numpy() -> dict[str, object]:
    """Return what numpy computes."""
    import numpy as np  # noqa: PLC0415

    trace = int((np.arange(9).reshape(3, 3) @ np.arange(9).reshape(3, 3)).trace())
    return {"numpy": np.__version__, "path": np.__file__, "trace": trace, "gradient": GRADIENT}


def without_numpy() -> dict[str, object]:
    """Return what Python alone computes."""
    numbers = [[3 * row + column for column in range(3)] for row in range(3)]
    trace = sum(numbers[row][column] * numbers[column][row] for row in range(3) for column in range(3))
    return {"path": sysconfig.get_path("platlib"), "trace": trace, "gradient": GRADIENT}


def prove(link: str, framework: str, version: str, interpreter: str = "", *others: str) -> dict[str, object]:
    """Return what was found.

    Raises:
        WrongError: something is not as it should be.
    """
    folders = [word for word in others if word.startswith("/")]
    packages = tuple(word for word in others if word not in folders)
    if sys.prefix != link:
        raise WrongError(f"{link}/bin/python runs in {sys.prefix}.")
    if interpreter and sys.base_prefix != interpreter:
        raise WrongError(f"{link}/bin/python is the Python in {sys.base_prefix}, not the managed one in {interpreter}.")
    compare(link, packages)
    has_numpy = not packages or any(pinned.startswith("numpy==") for pinned in packages)
    found = with_numpy() if has_numpy else without_numpy()
    awaited = awaited_nccl(link)
    if awaited:
        found["waits_for"] = awaited
    if framework and not awaited:
        pinned = pinned_version(framework)
        if plain(pinned) != plain(version):
            raise WrongError(f"{framework} is {pinned} here, not {version}.")
        try:
            found.update(with_torch() if framework == "pytorch" else with_tensorflow())
        except Exception as error:
            raise WrongError(f"{framework} {version} does not work here: {type(error).__name__}: {error}.") from error
        found[framework] = version
    if not str(found["path"]).startswith((f"{link}/lib/", *(f"{folder}/" for folder in folders))):
        raise WrongError(f"What was loaded is {found['path']}, not {link}'s; look for a PYTHONPATH that names it.")
    if (found["trace"], found["gradient"]) != (TRACE, GRADIENT):
        what = framework or ("numpy" if has_numpy else "Python")
        raise WrongError(f"{what} computed {found['trace']} and {found['gradient']}, not {TRACE} and {GRADIENT}.")
    return found


def main() -> int:
    """Say what was found or what is wrong."""
    try:
        print(json.dumps(prove(*sys.argv[1:])), flush=True)
    except WrongError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
