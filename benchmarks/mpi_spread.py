"""A file from the first rank to all others by MPI's broadcast, in pieces, while it still arrives at the first one.

mpirun … python mpi_spread.py FILE BYTES PIECE_BYTES
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import BinaryIO

from mpi4py import MPI

GIVEN_UP_S = 600.0  # without a further byte
LOOK_S = 0.005


def fill(part: memoryview, source: BinaryIO) -> None:
    """Read a piece of a file that may still grow."""
    done, until = 0, time.monotonic() + GIVEN_UP_S
    while done < len(part):
        more = source.readinto(part[done:])  # type: ignore[attr-defined]
        done += more
        if not more:
            if time.monotonic() > until:
                raise SystemExit(f"{source.name} does not grow any more")
            time.sleep(LOOK_S)


def main() -> None:
    path, size, piece = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    world = MPI.COMM_WORLD
    is_first = world.rank == 0
    buffer = memoryview(bytearray(min(size, piece)))
    with path.open("rb" if is_first else "wb", buffering=0) as file:
        for begin in range(0, size, piece):
            part = buffer[: min(piece, size - begin)]
            if is_first:
                fill(part, file)
            world.Bcast([part, MPI.BYTE], root=0)
            if not is_first:
                file.write(part)


if __name__ == "__main__":
    main()
