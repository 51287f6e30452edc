# SPDX-License-Identifier: Apache-2.0
"""Prove what a Horovod is: what it was built with, which libraries it runs on, and that its numbers are right.

Usage:
    mpirun -np 2 PYTHON horovod_check.py '{"framework": …}'    as ranks: the numbers and the libraries
    PYTHON horovod_check.py '{"framework": …}' HOROVODRUN       alone: what HOROVODRUN --check-build says

The JSON object holds ``framework`` (pytorch or tensorflow), ``controllers`` and ``operations`` (as --check-build names
them), ``openmpi_key``, ``nccl`` (the folder of the cluster's NCCL) with ``nccl_key``, and ``folder``, where Horovod
must come from. Prints one JSON line and exits 0, or exits 1 with a sentence on standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_MARKER = ".clusterctl.json"
_LABELS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_HEADINGS = {"frameworks": "Frameworks", "controllers": "Controllers", "operations": "Tensor Operations"}
# A driver's library is there where the driver is, and a framework brings its own copies of these.
_DRIVER = ("libcuda.so", "libnvidia-ml.so")


class WrongError(Exception):
    """Something is not as it was asked for; the message is the sentence without the host."""


def artifact_key(path: str) -> str:
    """Return the key of the artifact that holds ``path``, empty where no folder above it has a marker."""
    for folder in Path(path).parents:
        try:
            return str(json.loads((folder / _MARKER).read_bytes())["key"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""


def mapped(name: str) -> list[str]:
    """Return the real paths of every library in this process whose file name starts with ``name``."""
    found = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and Path(fields[5]).name.startswith(name):  # noqa: PLR2004 - proc(5)
            found.add(os.path.realpath(fields[5]))
    return sorted(found)


def resolved(ldd: str) -> dict[str, str]:
    """Return what ``ldd`` said as names and paths; an empty path is a library that was not found."""
    found = {}
    for line in ldd.splitlines():
        match = re.match(r"\s*(\S+) => (?:(/\S+)|not found)", line)
        if match:
            found[match.group(1)] = match.group(2) or ""
    return found


def built_in(text: str) -> dict[str, list[str]]:
    """Return what ``horovodrun --check-build`` ticked, by heading.

    Raises:
        WrongError: it is no such output.
    """
    ticked: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        title = re.match(r"\s*Available (.+):\s*$", line)
        entry = re.match(r"\s*\[([X ])\] (\S.*?)\s*$", line)
        if title:
            heading = title.group(1)
            ticked[heading] = []
        elif entry and heading and entry.group(1) == "X":
            ticked[heading].append(entry.group(2))
    missing = [heading for heading in _HEADINGS.values() if heading not in ticked]
    if missing:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise WrongError(f"horovodrun --check-build names no {missing[0]}; it said: {last}")
    return {field: sorted(ticked[heading]) for field, heading in _HEADINGS.items()}


def compare_build(wanted: dict[str, Any], text: str) -> None:
    """Hold what was built in against what was asked for.

    Raises:
        WrongError: they differ.
    """
    found = built_in(text)
    asked = {
        "frameworks": [_LABELS[wanted["framework"]]],
        "controllers": sorted(wanted["controllers"]),
        "operations": sorted(wanted["operations"]),
    }
    for field, heading in _HEADINGS.items():
        if found[field] != asked[field]:
            raise WrongError(
                f"Horovod was asked to have the {heading.lower()} {', '.join(asked[field])}, and horovodrun"
                f" --check-build names {', '.join(found[field]) or 'none'}"
            )


def said_by_this_process() -> str:
    """Return what ``horovodrun --check-build`` would say; its children inherit the framework that is imported here."""
    from horovod.runner.launch import check_build  # noqa: PLC0415 - not on every way through this program

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        check_build(verbose=False)
    return said.getvalue()


def check_libraries(wanted: dict[str, Any], module: str) -> None:
    """Ask the loader, in a clean environment, which libraries the compiled module gets.

    Raises:
        WrongError: libmpi or libnccl is not the cluster's, or something is missing.
    """
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    done = subprocess.run(["ldd", module], env=environment, check=False, capture_output=True, text=True)
    libraries = resolved(done.stdout)
    missing = [name for name, path in libraries.items() if not path and not name.startswith(_DRIVER)]
    if missing:
        raise WrongError(f"{module} lacks {', '.join(missing)}")
    found = {
        name: next((os.path.realpath(path) for library, path in libraries.items() if library.startswith(name)), "")
        for name in ("libmpi.so", "libnccl.so")
    }
    if "NCCL" in wanted["operations"]:
        # a host without an NCCL of the cluster runs on the one that the framework brings
        ours = wanted["nccl_key"] if Path(wanted["nccl"]).is_dir() else ""
        _require(module, found["libnccl.so"], ours, "NCCL")
    elif found["libnccl.so"]:
        raise WrongError(f"{module} was linked with {found['libnccl.so']}, and no NCCL was asked for")
    _require(module, found["libmpi.so"], wanted["openmpi_key"], "Open MPI")


def _require(module: str, path: str, key: str, owner: str) -> None:
    if not path:
        raise WrongError(f"{module} was not linked with {owner}")
    here = artifact_key(path)
    if key and here != key:
        raise WrongError(
            f"the loader gives {module} {path}, which is {'of build ' + here if here else 'no build of the cluster'},"
            f" not of the installed {owner} build {key}"
        )


def ranks_numbers(framework: str) -> tuple[Any, list[list[float]]]:
    """Return Horovod and the sum and the average over all ranks of four times (rank + 1)."""
    hvd: Any
    mine: Any
    if framework == "tensorflow":
        import horovod.tensorflow as hvd  # noqa: PLC0415 - which one is an answer of this program
        import tensorflow as tf  # noqa: PLC0415

        hvd.init()
        mine = tf.constant([float(hvd.rank() + 1)] * 4)
    else:
        import horovod.torch as hvd  # noqa: PLC0415
        import torch  # noqa: PLC0415

        hvd.init()
        mine = torch.full((4,), float(hvd.rank() + 1))
    results = [hvd.allreduce(mine, op=op, name=name) for op, name in ((hvd.Sum, "sum"), (hvd.Average, "average"))]
    return hvd, [result.numpy().tolist() for result in results]


def check_rank(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what this rank is.

    Raises:
        WrongError: it is not what was asked for.
    """
    framework = wanted["framework"]
    name = {"pytorch": "horovod.torch.mpi_lib_v2", "tensorflow": "horovod.tensorflow.mpi_lib"}[framework]
    try:
        if framework == "tensorflow":
            import horovod.tensorflow  # noqa: PLC0415
        else:
            import horovod.torch  # noqa: PLC0415
        module = str(sys.modules[name].__file__) if name in sys.modules else compiled(name)
    except (ImportError, OSError) as error:
        raise WrongError(f"{sys.executable} cannot import Horovod with {_LABELS[framework]}: {error}") from error
    here = os.path.realpath(horovod.__file__)
    if wanted["folder"] and not here.startswith(os.path.realpath(wanted["folder"]) + os.sep):
        raise WrongError(
            f"Horovod comes from {here}, not from {wanted['folder']}; look for a PYTHONPATH that names it, or a Horovod"
            " in the environment's own packages"
        )
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0":
        compare_build(wanted, said_by_this_process())
        check_libraries(wanted, module)
    hvd, (total, average) = ranks_numbers(framework)
    size, rank = hvd.size(), hvd.rank()
    if total != [size * (size + 1) / 2] * 4 or average != [(size + 1) / 2] * 4:
        raise WrongError(f"the sum over {size} ranks was {total} and the average {average}")
    libraries = mapped("libmpi.so")
    if len(libraries) != 1:
        raise WrongError(f"a rank has {len(libraries)} libmpi mapped ({', '.join(libraries)}) instead of one")
    key = artifact_key(libraries[0])
    if wanted["openmpi_key"] and key != wanted["openmpi_key"]:
        raise WrongError(
            f"Horovod runs on {libraries[0]}, which is {'of build ' + key if key else 'no build of the cluster'}, not"
            f" of the installed Open MPI build {wanted['openmpi_key']}; look for an LD_LIBRARY_PATH or LD_PRELOAD that"
            " names it"
        )
    answer = {
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "horovod": horovod.__version__,
        "controller": "MPI" if hvd.mpi_enabled() else "Gloo",
        "library_path": libraries[0],
        "openmpi_key": key,
        "nccl_paths": mapped("libnccl.so"),
    }
    hvd.shutdown()
    return answer


def compiled(name: str) -> str:
    """Return the path of a compiled module that is loaded by ctypes and so in nobody's list.

    Raises:
        ImportError: there is none.
    """
    package, _, module = name.rpartition(".")
    for folder in sys.modules[package].__path__:
        for path in sorted(Path(folder).glob(f"{module}.*.so")):
            return str(path)
    raise ImportError(f"there is no {name}")


def main(arguments: list[str]) -> int:
    """Run the check and say what is wrong."""
    wanted = json.loads(arguments[0])
    try:
        if arguments[1:]:
            argv = [arguments[1], "--check-build"]
            done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            compare_build(wanted, done.stdout)
            print(json.dumps(built_in(done.stdout)), flush=True)
        else:
            print(json.dumps(check_rank(wanted)), flush=True)
    except WrongError as error:
        print(f"On {socket.gethostname()} {error}.", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
