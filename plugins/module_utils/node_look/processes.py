# SPDX-License-Identifier: Apache-2.0
"""Ranks of MPI, Horovod and torchrun jobs, and processes that use the installed artifacts."""

from __future__ import annotations

import os
import pwd

from .artifacts import MARKER
from .reading import ActingAs, Json, list_folder, of_process, read_text, user_name

# A process with one of these variables is a rank, or a child of a rank.
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMIX_RANK=", b"HOROVOD_RANK=", b"TORCHELASTIC_RUN_ID=")
_NVIDIA_DEVICE = "/dev/nvidia"
_LONGEST_COMMAND = 200
_LEAST_S = 0.01  # 0 would say that nothing was measured
_REAPERS = {"systemd", "init", "tini", "catatonit", "dumb-init"}


def name_and_parent(pid: int) -> tuple[str, int]:
    """Return the name and the parent of a process, ('', 0) if it is not visible."""
    line = read_text(f"/proc/{pid}/stat", "")
    name, _unused, rest = line.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]) if len(fields) > 1 else 0


def session_start() -> Json:
    """Return how many seconds the session of sshd took until this program ran, 0.01 at least.

    It is 0 where sshd has not started this program.

    What its processes computed, and waited for a processor, does not count, so that a busy node is no slower.
    """
    chain = [os.getpid()]
    while True:
        parent = name_and_parent(chain[-1])[1]
        if not parent:
            return {"session_start_s": 0.0}
        if name_and_parent(parent)[0].startswith("sshd"):
            break
        chain.append(parent)
    now = float(read_text("/proc/uptime").split()[0])
    fields = read_text(f"/proc/{chain[-1]}/stat").rpartition(")")[2].split()
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    scheduled = [read_text(f"/proc/{pid}/schedstat", "0 0").split() for pid in chain]
    busy = sum(int(computed) + int(waited) for computed, waited, *_unused in scheduled) / 1e9
    return {"session_start_s": round(max(_LEAST_S, now - began - busy), 2)}


def leftovers(wanted: bool) -> Json:
    """Find ranks that outlived their launcher: the oldest of their family now belongs to the first process.

    Only processes whose environment is readable are found.
    """
    if not wanted:
        return {"leftovers": []}
    ranks = {int(name) for name in list_folder("/proc") if name.isdigit() and _is_rank(int(name))}
    now = float(read_text("/proc/uptime").split()[0])
    found = []
    for pid in sorted(ranks):
        oldest, (_unused, parent) = pid, name_and_parent(pid)
        while parent in ranks:
            oldest, (_unused, parent) = parent, name_and_parent(parent)
        reaper = name_and_parent(parent)[0]
        if parent != 1 and reaper not in _REAPERS:
            continue
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            command = _command(pid)
        except OSError:  # ended meanwhile
            continue
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        whose = "its launcher" if oldest == pid else f"the launcher of its parent {oldest}"
        found.append(
            {
                "pid": pid,
                "user": user_name(owner),
                "command": command,
                "age_s": round(max(0.0, now - started), 1),
                "why": f"{whose} is gone",
            }
        )
    return {"leftovers": found}


def busy(wanted: bool, root: str) -> Json:
    """Find the ranks, and the processes that use a GPU, map a file of an artifact or were started from one.

    Found are the processes of the login user, or all of them for root.
    """
    if not wanted:
        return {"busy": []}
    folders = [f"{root}/{name}" for name in list_folder(root)]
    trees = {folder: os.path.realpath(folder) for folder in folders if os.path.isfile(f"{folder}/{MARKER}")}
    found = []
    for pid in sorted(int(name) for name in list_folder("/proc") if name.isdigit() and int(name) != os.getpid()):
        maps = _read_of(pid, "maps").decode("utf-8", "replace")
        rank, gpu, used = _is_rank(pid), uses_gpu(maps), _trees_of(pid, maps, trees, f"{root}/")
        if not rank and not gpu and not used:
            continue
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
        except OSError:  # ended meanwhile
            continue
        command = _command(pid)
        found.append(
            {
                "pid": pid,
                "user": user_name(owner),
                "command": command,
                "rank": rank,
                "gpu": gpu,
                "trees": sorted(used),
            }
        )
    return {"busy": found}


def uses_gpu(maps: str) -> bool:
    """Tell from the text of /proc/PID/maps whether a process has memory of an NVIDIA GPU mapped, as CUDA does."""
    names = {line.rpartition(_NVIDIA_DEVICE)[2] for line in maps.splitlines() if _NVIDIA_DEVICE in line}
    return any(name.isdigit() or name.startswith("-uvm") for name in names)


def _trees_of(pid: int, maps: str, trees: dict[str, str], first: str) -> set[str]:
    """Return the folders of artifacts of which a process maps a file, or from which its program comes."""
    paths = {line[line.index(first) :] for line in maps.splitlines() if first in line}
    program = _read_of(pid, "cmdline").partition(b"\0")[0].decode("utf-8", "replace")
    paths |= {program} if program.startswith(first) else set()
    places = {first + path[len(first) :].partition("/")[0] for path in paths}
    return {trees[place] for place in places if place in trees}


def _command(pid: int) -> str:
    return b" ".join(_read_of(pid, "cmdline").split(b"\0")).decode("utf-8", "replace").strip()[:_LONGEST_COMMAND]


def _is_rank(pid: int) -> bool:
    block = b"\0" + _read_of(pid, "environ")
    return any(b"\0" + name in block for name in _RANK_VARIABLES)


def _read_of(pid: int, name: str) -> bytes:
    """Return a file of a process, b'' if it is not readable or the process has ended.

    In a container, root may lack CAP_SYS_PTRACE, and is refused the files of other users' processes. It then reads them
    with the identity of their owner (ptrace(2), "Ptrace access mode checking").
    """
    try:
        return of_process(f"/proc/{pid}/{name}")
    except PermissionError:
        if os.geteuid() != 0:
            return b""
    except OSError:
        return b""
    try:
        owner = os.stat(f"/proc/{pid}")
        user = pwd.struct_passwd((str(owner.st_uid), "", owner.st_uid, owner.st_gid, "", "", ""))
        with ActingAs(user):
            return of_process(f"/proc/{pid}/{name}")
    except OSError:
        return b""
