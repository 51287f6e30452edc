"""Look at the ranks of a job on this node: ``rank_look.py JOB [--stacks [--quick]]`` prints one JSON line.

It changes nothing. Each rank has its state, its CPU time, the bytes that it has read and written, the file or the lock
that it waits for, and the peers that do not acknowledge what it has sent. ``--stacks`` adds the stacks that
``rank_stacks.py`` takes of the first 64 ranks, and the full file systems that ranks use. It also adds what PyTorch's
flight recorder (``flight_record.py``) and NCCL's RAS (``nccl_log.py``) tell. The answer also tells of kills for lack of
memory.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import re
import signal
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bounded_run
import flight_record
import job_look
import job_members
import nccl_log
import rank_stacks

STACKS_S = 12.0  # for all of a node's ranks together
MOST_STACKS = 64
MOST_EXPECTED = 1024
MOST_RAS_LINES = 200
_RAS_S = 8.0
MOST_PATH = 512
MOST_FILES = 256
MOST_PLACES = 32
_SPACE_S = 3.0
# Prints 1 for each place with less than 1 MiB and less than a tenth free, or without a free inode, else 0.
_SPACE = """
import os, sys
for place in sys.argv[1:]:
    try:
        one = os.statvfs(place)
    except OSError:
        print(0)
        continue
    little = one.f_bavail * one.f_frsize < 1 << 20 and one.f_bavail * 10 < one.f_blocks
    print(int(not one.f_flag & os.ST_RDONLY and (little or (one.f_files > 0 and one.f_favail == 0))))
"""
_TICKS = os.sysconf("SC_CLK_TCK")
# System calls of x86-64 and of the generic table (arm64) that wait for a file: by number, the kind of their argument.
_CALLS = {
    "x86_64": {0: "fd", 1: "fd", 17: "fd", 18: "fd", 19: "fd", 20: "fd", 74: "fd", 75: "fd", 5: "fd", 217: "fd"}
    | {2: "path", 4: "path", 6: "path", 257: "at", 262: "at", 332: "at"},
    "aarch64": {63: "fd", 64: "fd", 65: "fd", 66: "fd", 67: "fd", 68: "fd", 82: "fd", 83: "fd", 80: "fd", 61: "fd"}
    | {56: "at", 79: "at", 291: "at"},
}.get(os.uname().machine, {})
# The calls that may wait for a lock of a file, and the commands of fcntl that do: F_SETLKW and F_OFD_SETLKW.
_FLOCK, _FCNTL = {"x86_64": (73, 72), "aarch64": (32, 25)}.get(os.uname().machine, (-1, -1))
_WAITS_FOR_LOCK = (7, 38)
_RETRANSMITS = "01"  # the timer of a socket in /proc/net/tcp (Documentation/networking/proc_net_tcp.rst)
_LEAST_TRIES = 2
_RAY_TASK = re.compile(r"ray::(?!IDLE|DashboardAgent|RuntimeEnvAgent)")  # the titles of Ray's workers
_RAY_NODE = os.fsencode(Path(__file__).absolute().parent / "ray_node.py")
_WRAPPERS = re.compile(r"(?:ba|da|z)?sh|env|time|timeout|numactl|nice|stdbuf|catchsegv|orted|prted|prterun|mpirun")


def ranks_of(job: str) -> dict[int, int]:
    """Return the process of each rank and its number.

    A wrapper (a shell, ``torchrun``, DeepSpeed's launcher) is passed over for what it started. A helper that
    the program started, such as a worker of a data loader, is not a rank.
    """
    pids = job_members.members(job)
    if any(_is_ray_node(pid) for pid in pids):
        return rank_of_ray(pids)
    started = [pid for pid in pids if _is_of_a_launcher(pid)]
    found = {pid: rank for pid in started or pids if (rank := rank_stacks.rank_of(pid)) is not None}
    parents = {pid: rank_stacks.parent_of(pid) for pid in found}
    chosen: dict[int, int] = {}
    for pid, rank in sorted(found.items()):
        if found.get(parents[pid]) == rank:
            continue  # it was started by another process of this rank
        place = pid
        while _WRAPPERS.fullmatch(_name(place)):
            children = [child for child, parent in parents.items() if parent == place and found[child] == rank]
            if not children:
                break
            place = min(children)
        if not _WRAPPERS.fullmatch(_name(place)) or rank not in chosen.values():
            chosen[place] = rank
    return dict(sorted(chosen.items(), key=lambda item: item[1]))


def _is_of_a_launcher(pid: int) -> bool:
    """Say whether a launcher of a node started a process as a rank: it gives the rank and the one on the node."""
    names = environment_of(pid).keys()
    return "TORCHELASTIC_RUN_ID" in names or {"RANK", "LOCAL_RANK"} <= names


def rank_of_ray(pids: list[int]) -> dict[int, int]:
    """Return the process that stands for this node in a job of Ray.

    It is a stopped one, else the driver, a worker with a task, the raylet, or before its start ``ray_node.py``. Workers
    without a task and helpers of Ray are left out.
    """
    parents = {pid: rank_stacks.parent_of(pid) for pid in pids}
    found: list[tuple[bool, int, int, int]] = []
    for pid, parent in parents.items():
        title = rank_stacks.text(f"/proc/{pid}/cmdline")
        kinds = (
            _is_ray_node(parent) and "RAY_ADDRESS" in environment_of(pid),
            bool(_RAY_TASK.match(title)),
            _name(pid) == "raylet",
            _is_ray_node(pid),
        )
        rank = rank_stacks.rank_of(pid)
        if rank is not None and True in kinds:
            found.append((rank_stacks.state_of(pid) not in {"T", "t"}, kinds.index(True), pid, rank))
    return {pid: rank for *_order, pid, rank in sorted(found)[:1]}


def _is_ray_node(pid: int) -> bool:
    return job_members.read_bytes(f"/proc/{pid}/cmdline").split(b"\0")[1:2] == [_RAY_NODE]


def _name(pid: int) -> str:
    return rank_stacks.text(f"/proc/{pid}/comm").strip()


def look(
    pid: int, rank: int, unacknowledged: dict[int, str], waiting: dict[int, tuple[int, int]] | None = None
) -> dict[str, object]:
    """Return what /proc tells of a rank; ``waiting`` is what :func:`waited_locks` returned."""
    fields = rank_stacks.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    moved = re.findall(r"^[rw]char: (\d+)", rank_stacks.text(f"/proc/{pid}/io"), re.MULTILINE)
    peers = sorted({unacknowledged[inode] for inode in _sockets(pid) if inode in unacknowledged})
    return {
        "pid": pid,
        "rank": rank,
        "state": fields[0] if fields else "X",
        "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0,
        "system_s": int(fields[12]) / _TICKS if fields else 0.0,
        "wanted_s": wanted_s(pid),
        "moved_bytes": sum(map(int, moved)),
        "command": job_members.command_of(pid)[:80],
        "file": file_of(pid),
        **lock_of(pid, waiting or {}),
        "silent_peers": peers,
    }


def wanted_s(pid: int) -> float:
    """Return for how long the threads of a process ran or waited for a core, -1 where the kernel does not count it."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        words = rank_stacks.text(f"{task}/schedstat").split()
        if len(words) != 3 or not all(word.isdecimal() for word in words):  # noqa: PLR2004 - scheduler/sched-stats.rst
            return -1.0
        spent += int(words[0]) + int(words[1])
    return spent / 1e9 if spent else -1.0


def _sockets(pid: int) -> list[int]:
    found = []
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            word = re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink()))
            found += [int(word.group(1))] if word else []
    except OSError:
        pass
    return found


def file_of(pid: int) -> str:
    """Return the file or folder for which a thread of a process waits in a system call, empty without one."""
    for task in sorted(Path(f"/proc/{pid}/task").glob("[0-9]*")):
        words = rank_stacks.text(f"{task}/syscall").split()
        if not words or not words[0].isdigit() or int(words[0]) not in _CALLS:
            continue
        kind, arguments = _CALLS[int(words[0])], [int(word, 16) for word in words[1:3]]
        name = _open_file(pid, arguments[0]) if kind == "fd" else _argument(pid, arguments[kind == "at"])
        if name.startswith("/") and not name.startswith(("/dev/", "/proc/")):
            return f"{name}{_file_system(pid, name)}"
    return ""


def waited_locks() -> dict[int, tuple[int, int]]:
    """Return the inode for whose lock each process of /proc/locks waits, and the process that holds it."""
    holders: dict[str, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for line in rank_stacks.text("/proc/locks").splitlines():
        number, *words = line.split()
        waits = words[:1] == ["->"]
        fields = words[waits:]  # kind, mode, type, process, major:minor:inode, first byte, last byte
        if len(fields) < 5 or not re.fullmatch(r"-?\d+", fields[3]):  # noqa: PLR2004
            continue
        inode = fields[4].rpartition(":")[2]
        if not waits:
            holders[number] = int(fields[3])
        elif inode.isdigit():
            found[int(fields[3])] = (int(inode), holders.get(number, 0))
    return found


def lock_of(pid: int, waiting: dict[int, tuple[int, int]]) -> dict[str, object]:
    """Return the file for whose lock a process waits, and who holds that on this node; nothing where it waits for none.

    The kernel does not list the wait for a lock of a network file system, whose server has it. So the system call
    counts too.
    """
    inode, holder = waiting.get(pid, (0, 0))
    name = ""
    for task in sorted(Path(f"/proc/{pid}/task").glob("[0-9]*")):
        words = rank_stacks.text(f"{task}/syscall").split()
        if len(words) > 2 and words[0] in {str(_FLOCK), str(_FCNTL)}:  # noqa: PLR2004
            number, command = (int(word, 16) for word in words[1:3])
            if int(words[0]) == _FLOCK or command in _WAITS_FOR_LOCK:
                name = _open_file(pid, number)
    if not name and inode:
        numbers = [number for number, told, _flags in _files(pid) if told == inode]
        name = _open_file(pid, numbers[0]) if numbers else f"inode {inode}"
    if not name:
        return {}
    program = _name(holder) if holder > 0 else ""
    told = program if re.fullmatch(r"[\w.+-]+", program) else ""
    return {"lock": f"{name}{_file_system(pid, name)}", "lock_pid": max(holder, 0), "lock_program": told}


def _files(pid: int) -> list[tuple[int, int, int]]:
    """Return number, inode and flags of the open files of a process; the file systems are not asked."""
    found = []
    for path in sorted(Path(f"/proc/{pid}/fdinfo").glob("[0-9]*"))[:MOST_FILES]:
        told = dict(line.split(":", 1) for line in rank_stacks.text(str(path)).splitlines() if ":" in line)
        flags, inode = (told.get(name, "").strip() for name in ("flags", "ino"))
        if re.fullmatch(r"[0-7]+", flags):
            found.append((int(path.name), int(inode) if inode.isdigit() else 0, int(flags, 8)))
    return found


def full_places(pids: list[int]) -> dict[int, list[str]]:
    """Return the full file systems that each process uses, by mount point.

    A process uses those of its folder, its home, its temporary files and shared memory, and of the files that it has
    open for writing. A file system that does not answer hides what the others tell.
    """
    used = {pid: _places_of(pid) for pid in pids}
    places = list(dict.fromkeys(place for few in used.values() for place in few))[:MOST_PLACES]
    try:
        told = bounded_run.run([sys.executable, "-I", "-S", "-c", _SPACE, *places], _SPACE_S).output if places else ""
    except (OSError, ValueError):
        return {}
    full = {places[at] for at, word in enumerate(told.split()[: len(places)]) if word == "1"}
    return {pid: [place for place in few if place in full] for pid, few in used.items()}


def _places_of(pid: int) -> list[str]:
    environment = environment_of(pid)
    names = [environment.get(name, "") for name in ("TMPDIR", "HOME")]
    with contextlib.suppress(OSError):
        names.append(str(Path(f"/proc/{pid}/cwd").readlink()))
    names += [_open_file(pid, number) for number, _inode, flags in _files(pid) if flags & os.O_ACCMODE]
    there = [name for name in names if name.startswith("/") and not name.startswith(("/dev/", "/proc/", "/sys/"))]
    there += ["/tmp", "/dev/shm"]  # noqa: S108 - the folders of the machine
    return list(dict.fromkeys(point for name in there if (point := mount_of(pid, name)[0])))


def _open_file(pid: int, number: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/{number}").readlink())  # the kernel answers; the file system is not asked
    except OSError:
        return ""


def _argument(pid: int, address: int) -> str:
    """Return a path that a process has in its memory."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return ""
    try:
        data = b""
        while b"\0" not in data and len(data) < MOST_PATH:
            data += os.pread(descriptor, 64, address + len(data)) or b"\0"
        return data.partition(b"\0")[0].decode("utf-8", "replace")
    except (OSError, OverflowError):
        return ""
    finally:
        os.close(descriptor)


def _file_system(pid: int, name: str) -> str:
    """Return ``(TYPE)`` of the file system that holds a path."""
    kind = mount_of(pid, name)[1]
    return f" ({kind})" if kind else ""


def mount_of(pid: int, name: str) -> tuple[str, str]:
    """Return mount point and type of the file system that holds a path, by the longest mount point."""
    best, kind = "", ""
    for line in rank_stacks.text(f"/proc/{pid}/mountinfo").splitlines():
        before, _unused, after = line.partition(" - ")
        point = before.split()[4] if len(before.split()) > 4 else ""  # noqa: PLR2004 - proc_pid_mountinfo(5)
        inside = name == point or name.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return best, kind


def unacknowledged_sockets() -> dict[int, str]:
    """Return the address of the other end of each socket that sends the same data again and again, by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in rank_stacks.text(f"/proc/self/net/{name}").splitlines()[1:]:
            words = line.split()
            timer, tries = words[5].partition(":")[0], int(words[6], 16)
            if timer == _RETRANSMITS and tries >= _LEAST_TRIES:
                found[int(words[9])] = _address(words[2].partition(":")[0])
    return found


def _address(word: str) -> str:
    """Return an address of /proc/net/tcp, which has words of 32 bits in the order of this machine."""
    parts = [struct.pack("=I", int(word[at : at + 8], 16)) for at in range(0, len(word), 8)]
    found = ipaddress.ip_address(b"".join(parts))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment of a process, empty where it is gone."""
    entries = job_members.read_bytes(f"/proc/{pid}/environ").decode("utf-8", "replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def expected(chosen: dict[int, int]) -> list[int]:
    """Return the ranks that torchrun has started on this node, by the environment of those that are there."""
    found: set[int] = set()
    for pid in chosen:
        environment = environment_of(pid)
        words = [environment.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if "TORCHELASTIC_RUN_ID" in environment and all(word.isdecimal() for word in words):
            rank, place, count = map(int, words)
            found.update(range(rank - place, rank - place + min(count, MOST_EXPECTED)))
    return sorted(found)


def ras_lines(chosen: dict[int, int]) -> list[str]:
    """Return what NCCL's RAS says of the whole job, asked by the nodes of the first and of the last rank alone."""
    for pid, rank in chosen.items():
        environment = environment_of(pid)
        sizes = {environment.get(name) for name in ("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")}
        if (rank == 0 or str(rank + 1) in sizes) and re.search(
            r"/libnccl[^/\n]*\n", rank_stacks.text(f"/proc/{pid}/maps")
        ):
            return nccl_log.answer(environment, _RAS_S, MOST_RAS_LINES)
    return []


def answer(job: str, with_stacks: bool, quick: bool = False) -> dict[str, object]:
    """Return all that is known of a job's ranks on this node."""
    chosen = ranks_of(job)
    silent, waiting = unacknowledged_sockets(), waited_locks()
    ranks = [look(pid, rank, silent, waiting) for pid, rank in chosen.items()]
    found: dict[str, object] = {
        "event": "ranks",
        "at": time.monotonic(),
        "ranks": ranks,
        "expected": expected(chosen),
        "memory": job_look.memory_kills(),
    }
    if with_stacks:
        with ThreadPoolExecutor(1) as pool:  # NCCL waits some seconds for processes that hang
            ras = pool.submit(ras_lines, chosen)
            some = dict(list(chosen.items())[:MOST_STACKS])
            full = full_places(list(some))
            for one in ranks[:MOST_STACKS]:
                one["full"] = full.get(int(str(one["pid"])), [])
            found["stacks"] = rank_stacks.stacks(job, STACKS_S, some, quick=quick)
            found["ras"] = ras.result()
        found["flights"] = [record for rank in chosen.values() if (record := flight_record.read(job, rank))]
    # A rank takes a second or two to write its record, so each look reads what the one before has asked for.
    for rank in chosen.values():
        flight_record.request(job, rank)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what the ranks of a job do on this node.")
    parser.add_argument("job", help="the job's id")
    parser.add_argument("--stacks", action="store_true", help="take their stacks too")
    parser.add_argument("--quick", action="store_true", help="with --stacks: Python frames alone where there are some")
    arguments = parser.parse_args()
    if not job_members.JOB_ID.fullmatch(arguments.job):
        parser.error("the job id is malformed")
    signal.alarm(int(STACKS_S) + 5)
    print(json.dumps(answer(arguments.job, arguments.stacks, arguments.quick)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
