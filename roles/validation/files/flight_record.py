"""PyTorch's flight recorder on this node: ``flight_record.py --make JOB`` or ``--remove JOB`` prints one JSON line.

With ``--make`` the node gets a private folder for the records of a job. A rank that uses NCCL listens there at a pipe,
``pipe_RANK.pipe`` (``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``). A byte in the pipe makes it write ``record_RANK``
(``TORCH_FR_DUMP_TEMP_FILE``): which collectives it has called, and which of them have ended. ``rank_look.py`` asks for
the records and reads them.

A record is a pickle of plain lists, dicts, text and numbers, as torch/csrc/distributed/c10d/FlightRecorderDetail.hpp
of PyTorch writes it. A pickle of anything else is refused, because a pickle can name any function.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import re
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import Any

import job_members

PLACE = "/tmp"  # noqa: S108 - the folder below it is private, and its name is the same on every node
MOST_BYTES = 64 << 20
MOST_GROUPS = 16
MOST_TEXT = 120
SAME_SIZES = ("all_reduce", "broadcast", "reduce")  # every rank has to give these the same sizes
_FORMAT = "2."
_RECEIVES = re.compile(r":recv \d{1,9}<-(\d{1,9})$")  # their numbers within the group
_NUMBER = re.compile(r"\d{1,9}")


def folder(job: str) -> Path:
    """Return the folder of a job's records."""
    return Path(PLACE) / f"clusterctl-flight-{job}"


def make(job: str) -> str:
    """Make the folder; return why that could not be, empty where it is there and ours alone."""
    place = folder(job)
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        known = place.lstat()
        if not (stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid() and not known.st_mode & 0o077):
            return f"{place} belongs to somebody else"
    except OSError as error:
        return f"{place} cannot be made: {error.strerror}"
    return ""


def remove(job: str) -> bool:
    """Remove the folder of a job; whether there was one."""
    place = folder(job)
    try:
        if place.lstat().st_uid != os.getuid() or place.is_symlink():
            return False
        shutil.rmtree(place)
    except OSError:
        return False
    return True


def request(job: str, rank: int) -> bool:
    """Ask a rank for its record, which takes it a second or two; whether it listens."""
    try:
        pipe = os.open(folder(job) / f"pipe_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # no rank has opened it: it has no NCCL, or not yet
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        os.write(pipe, b"1\n")
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


class _Plain(pickle.Unpickler):
    """Read lists, dicts, text and numbers; whatever would call a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the record names {module}.{name}"[:MOST_TEXT])

    def persistent_load(self, _pid: object) -> Any:
        raise pickle.UnpicklingError("the record refers to something outside of it")


def plain(data: bytes) -> Any:
    """Return what a pickle of plain values holds.

    Raises:
        ValueError: it is damaged, or holds something else.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises nearly any exception
        raise ValueError(str(error)[:MOST_TEXT] or type(error).__name__) from None


def groups(record: Any) -> list[dict[str, Any]]:
    """Return how far a rank is in each process group: its last call, and the first one that has not ended.

    Raises:
        ValueError: the record has another form.
    """
    try:
        if not str(record["version"]).startswith(_FORMAT):
            raise ValueError(f"its format {str(record['version'])[:MOST_TEXT]} is unknown")
        calls: dict[str, list[dict[str, Any]]] = {}
        for entry in record["entries"]:
            if not entry.get("is_p2p", False):
                name = entry["process_group"]
                calls.setdefault(str(name[0])[:MOST_TEXT], []).append(_call(entry, str(name[1])))
        idle = _without_entries(record, calls)
        peers = _awaited(record)
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"it has another form: {type(error).__name__} {error}"[:MOST_TEXT]) from None
    found = [*(_group(name, entries) for name, entries in calls.items()), *idle][:MOST_GROUPS]
    if found and peers:
        found[0]["peers"] = peers
    return found


def _without_entries(record: dict[str, Any], calls: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the groups whose calls have all ended, by the counters of ``pg_status``.

    They go by the order in which this rank made the groups, and names that count up have the same order. They count
    calls between two ranks too, so a counter is never below the number of the last collective.
    """
    config, status = record.get("pg_config", {}), record.get("pg_status", {})
    if len(config) != len(status) or not all(str(name).isdecimal() for name in (*config, *status)):
        return []
    pairs = list(zip(sorted(config, key=int), sorted(status, key=int)))  # noqa: B905 - strict= is of Python 3.10
    known = {str(entry["process_group"][0]): str(entry["pg_id"]) for entry in record["entries"] if "pg_id" in entry}
    if any(known.get(name, number) != number for name, number in pairs):
        return []
    return [
        {"group": name, "meaning": str(config[name]["desc"])[:MOST_TEXT], "last": int(last), "last_call": ""}
        for name, number in pairs
        if name not in calls and (last := status[number]["last_enqueued_collective"]) is not None
    ]


def _awaited(record: dict[str, Any]) -> list[int]:
    """Return the ranks from which this one receives, by the entries before its first collective that is under way."""
    found = set()
    for entry in record["entries"]:
        if entry.get("retired") or entry["state"] == "completed":
            continue
        if not entry.get("is_p2p", False):
            break
        peer = _RECEIVES.search(str(entry["profiling_name"]))
        ranks = _NUMBER.findall(
            str(record.get("pg_config", {}).get(str(entry["process_group"][0]), {}).get("ranks", ""))
        )
        if peer and int(peer.group(1)) < len(ranks):
            found.add(int(ranks[int(peer.group(1))]))
    return sorted(found)[:MOST_GROUPS]


def _call(entry: dict[str, Any], meaning: str) -> dict[str, Any]:
    name = str(entry["profiling_name"]).rpartition(":")[2][:MOST_TEXT]
    sizes = str(entry.get("input_sizes", ""))[:MOST_TEXT] if name in SAME_SIZES else ""
    ended = bool(entry.get("retired")) or entry["state"] == "completed"
    number = int(entry["collective_seq_id"])
    return {"number": number, "call": name, "sizes": sizes, "ended": ended, "meaning": meaning[:MOST_TEXT]}


def _group(name: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    last = max(calls, key=lambda call: int(call["number"]))
    # Calls of a group end in their order. Gloo leaves one open now and then, although the next one has ended.
    ended = max((int(call["number"]) for call in calls if call["ended"]), default=-1)
    after = [call for call in calls if not call["ended"] and int(call["number"]) > ended]
    waiting = min(after, key=lambda call: int(call["number"]), default=None)
    found = {"group": name, "meaning": last["meaning"], "last": last["number"], "last_call": last["call"]}
    if waiting is not None:
        found.update({"waits": waiting["number"], "call": waiting["call"], "sizes": waiting["sizes"]})
    return found


def read(job: str, rank: int) -> dict[str, Any] | None:
    """Return the last record of a rank, in short and with its age in seconds; None where there is none."""
    try:
        handle = os.open(folder(job) / f"record_{rank}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.getuid():
            return None
        found: dict[str, Any] = {"rank": rank, "age_s": max(0.0, time.time() - known.st_mtime)}
        if known.st_size > MOST_BYTES:
            return {**found, "problem": f"it has more than {MOST_BYTES >> 20} MiB"}
        try:
            return {**found, "groups": groups(plain(file.read(MOST_BYTES)))}
        except ValueError as error:
            return {**found, "problem": str(error)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or remove the folder of a job's flight records.")
    parser.add_argument("job", help="the job's id")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--make", action="store_true")
    what.add_argument("--remove", action="store_true")
    arguments = parser.parse_args()
    if not job_members.JOB_ID.fullmatch(arguments.job):
        parser.error("the job id is malformed")
    if arguments.make:
        answer: dict[str, object] = {"event": "made", "folder": str(folder(arguments.job)), "problem": ""}
        answer["problem"] = make(arguments.job)
    else:
        answer = {"event": "removed", "removed": remove(arguments.job)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
