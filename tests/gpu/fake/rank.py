"""One rank of a check of NCCL among processes of this machine, whose store is a folder: without MPI and torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "roles" / "validation" / "files"))

import nccl_checks
import nccl_library
import nccl_sweep
import rank_program


class Folder:
    """A store as PyTorch's TCPStore is one: ``get`` waits for the key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, key: str, text: str) -> None:
        half = self.path / f".{key.replace('/', '.')}"
        half.write_text(text, encoding="utf-8")
        half.rename(self.path / key.replace("/", "."))

    def get(self, key: str) -> bytes:
        file = self.path / key.replace("/", ".")
        until = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > until:
                sys.exit(f"nobody said {key}")
            time.sleep(0.001)
        return file.read_bytes()


def work(report: rank_program.Rank) -> int:
    folder = Folder(Path(os.environ["STORE"]))
    ranks = nccl_library.Store(folder, report.rank, report.size)
    return report.code if report.attempt(lambda: nccl_checks.prove_nccl(report, ranks)) else 1


if __name__ == "__main__":
    nccl_checks.COUNTS = (1, 3, 1001, 4099)  # the fakes add one value after the other
    nccl_sweep.SIZES = (4096, 1 << 16)
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    arguments = nccl_checks.parsed()
    voice = rank_program.Voice(arguments.check, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if "FAKE_HOSTS" in os.environ:
        voice.host = os.environ["FAKE_HOSTS"].split(",")[voice.rank]
    one_way = arguments.check in nccl_sweep.CHECKS
    sys.exit(rank_program.run(arguments, work, voice, nccl=one_way))
