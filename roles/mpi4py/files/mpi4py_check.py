# SPDX-License-Identifier: Apache-2.0
"""A rank that proves what it runs on: mpi4py and numpy imported, numbers right, and the libmpi that is really mapped.

Usage: mpirun -np 2 PYTHON mpi4py_check.py OPENMPI_KEY MPI4PY_FOLDER

Prints one JSON line and exits 0, or exits 1 with a sentence on standard error. An empty OPENMPI_KEY or MPI4PY_FOLDER
is not compared.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

_MARKER = ".clusterctl.json"


def mapped_libmpi() -> set[str]:
    """Return the real paths of every libmpi in this process."""
    found = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and Path(fields[5]).name.startswith("libmpi.so"):  # noqa: PLR2004 - proc(5)
            found.add(os.path.realpath(fields[5]))
    return found


def artifact_key(path: str) -> str:
    """Return the key of the artifact that holds ``path``, empty where no folder above it has a marker."""
    for folder in Path(path).parents:
        try:
            return str(json.loads((folder / _MARKER).read_bytes())["key"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""


def problem(openmpi_key: str, mpi4py_folder: str) -> str:
    """Return what is wrong with this rank in one sentence, empty where nothing is."""
    host = socket.gethostname()
    try:
        import mpi4py  # noqa: PLC0415 - a failing import is one of the answers
        import numpy as np  # noqa: PLC0415
        from mpi4py import MPI  # noqa: PLC0415
    except ImportError as error:
        return f"On {host} a rank of {sys.executable} cannot import what it needs: {error}."
    libraries = mapped_libmpi()
    if len(libraries) != 1:
        return f"On {host} a rank has {len(libraries)} libmpi mapped ({', '.join(sorted(libraries))}) instead of one."
    library = libraries.pop()
    key = artifact_key(library)
    if openmpi_key and key != openmpi_key:
        return (
            f"On {host} mpi4py runs on {library}, which is {'of build ' + key if key else 'no build of the cluster'},"
            f" not of the installed Open MPI build {openmpi_key}; look for an LD_LIBRARY_PATH or LD_PRELOAD that names"
            " it."
        )
    here = os.path.realpath(mpi4py.__file__)
    if mpi4py_folder and not here.startswith(os.path.realpath(mpi4py_folder) + os.sep):
        return f"On {host} mpi4py comes from {here}, not from {mpi4py_folder}; look for a PYTHONPATH that names it."
    world = MPI.COMM_WORLD
    mine, total = np.full(4, world.rank + 1, dtype="i8"), np.zeros(4, dtype="i8")
    world.Allreduce(mine, total)
    if total.tolist() != [world.size * (world.size + 1) // 2] * 4:
        return f"On {host} the sum over {world.size} ranks was wrong: {total.tolist()}."
    answer = {
        "rank": world.rank,
        "size": world.size,
        "host": host,
        "mpi4py": mpi4py.__version__,
        "numpy": np.__version__,
        "library": MPI.Get_library_version().split(",")[0],
        "library_path": library,
        "openmpi_key": key,
    }
    print(json.dumps(answer), flush=True)
    return ""


def main() -> int:
    """Run the check and say what is wrong."""
    wrong = problem(*[*sys.argv[1:3], "", ""][:2])
    if wrong:
        print(wrong, file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
