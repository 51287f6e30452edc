"""The program on a second controller: ``python -m clusterctl.provisioning.worker``, started over ssh by the first.

``check`` tells what is installed here. ``take`` adds files to the cache. ``work`` plays a part of a run, and stops when
the first controller is silent or ends the input. ``end`` ends what a killed ``work`` left.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from clusterctl import __version__
from clusterctl.provisioning import runner_stream
from clusterctl.state import files, paths, processes
from clusterctl.support import content, held_files

HEARTBEAT_S = 0.5  # keep-alive interval
BEGINS = b"clusterctl works in "  # the line before the stream of events; what a login script prints comes before it
PACK, RECORD = ".tar.zst", ".json"
_SILENCE_S = 60.0
_BLOCK = 1 << 16
_READABLE = 0o644  # as the collection leaves files of the cache
NAME = re.compile(r"(?:artifacts|locks)/[A-Za-z0-9_][A-Za-z0-9._+-]*")


def main(words: Sequence[str]) -> None:
    task, rest = words[0], words[1:]
    if task == "check":
        held_files.remove_folders_of_killed()
        _say(installed())
    elif task == "take":
        _say({"taken": take(sys.stdin.buffer, paths.cache_dir().value)})
    elif task == "work":
        work(int(rest[0]))
    elif task == "end":
        folder = sys.stdin.readline().strip()  # among the arguments, it would mark this process and its shell
        end(folder)
        _say({"ended": folder})


def installed() -> dict[str, Any]:
    """Return what a first controller compares with its own, where the playbooks are, and what the cache has."""
    cache = paths.cache_dir().value
    return {
        "clusterctl": __version__,
        "ansible-core": _version("ansible-core"),
        "ansible-runner": _version("ansible-runner"),
        "content": content.digest(),
        "playbooks": str(content.playbook("provision").parent),
        "cached": cached(cache),
    }


def cached(cache: Path) -> list[str]:
    """Return the names of the records of packs and of the locks in a cache; a pack without a record is unfinished."""
    places = [*(cache / "artifacts").glob(f"*{RECORD}"), *(cache / "locks").glob(f"*{RECORD}")]
    names = (f"{place.parent.name}/{place.name}" for place in places)
    return sorted(name for name in names if NAME.fullmatch(name))


def take(source: IO[bytes], cache: Path) -> int:
    """Write the files of a stream of tar into the cache, each whole or not at all; returns their number.

    Raises:
        ValueError: the stream holds something else than files of a cache.
        tarfile.ReadError: it broke off.
    """
    taken = 0
    with tarfile.open(fileobj=source, mode="r|") as stream:
        for member in stream:
            data = stream.extractfile(member) if member.isreg() else None
            if data is None or not NAME.fullmatch(member.name):
                raise ValueError(f"{member.name!r} is not a file of a cache")
            target = cache / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(target, _READABLE) as out:
                size = 0
                while block := data.read(_BLOCK):
                    size += len(block)
                    out.write(block)
                if size != member.size:
                    raise tarfile.ReadError(f"{member.name} broke off")
            taken += 1
    return taken


def work(retries: int) -> None:
    """Play what comes on standard input, and write the events to standard output."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the events
    with held_files.folder() as folder:
        tempfile.tempdir = str(folder)  # the zip of the play; it goes with the folder
        private = folder / "play"
        private.mkdir(mode=0o700)
        target.write(BEGINS + os.fsencode(folder) + b"\n")
        target.flush()
        runner_stream.serve(sys.stdin.buffer, target, private, retries, _silence_of(0))


def _silence_of(descriptor: int) -> Callable[[], bool]:
    """Return what tells whether the input has ended, or has been silent for a minute."""
    heard = time.monotonic()

    def is_alone() -> bool:
        nonlocal heard
        if select.select([descriptor], [], [], 0)[0]:
            if not os.read(descriptor, _BLOCK):
                return True
            heard = time.monotonic()
        return time.monotonic() - heard > _SILENCE_S

    return is_alone


def end(folder: str) -> None:
    """End the processes of a killed ``work`` by the folder that they carry, and remove the folder."""
    if not Path(folder).name.startswith(held_files.FOLDER):
        raise ValueError(f"{folder!r} is not a folder of a worker")
    mark = os.fsencode(folder)
    processes.end_all(lambda pid: processes.carries(pid, mark))
    held_files.remove_abandoned([Path(folder)])
    held_files.remove_folders_of_killed()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
