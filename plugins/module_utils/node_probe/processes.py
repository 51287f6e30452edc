# SPDX-License-Identifier: Apache-2.0
"""Find ranks of MPI, Horovod and torchrun jobs whose launcher is gone."""

from __future__ import annotations

import os

from .reading import Json, list_folder, read_text, user_name

# A process with one of these variables is a rank, or a child of a rank.
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMIX_RANK=", b"HOROVOD_RANK=", b"TORCHELASTIC_RUN_ID=")
_REAPERS = {"systemd", "init", "tini", "catatonit", "dumb-init"}


def name_and_parent(pid: int) -> tuple[str, int]:
    """Return the name and the parent of a process, ('', 0) if it is not visible."""
    line = read_text(f"/proc/{pid}/stat", "")
    name, _, rest = line.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]) if len(fields) > 1 else 0


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
        oldest, (_, parent) = pid, name_and_parent(pid)
        while parent in ranks:
            oldest, (_, parent) = parent, name_and_parent(parent)
        reaper = name_and_parent(parent)[0]
        if parent != 1 and reaper not in _REAPERS:
            continue
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            command = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        except OSError:  # ended meanwhile
            continue
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        whose = "its launcher" if oldest == pid else f"the launcher of its parent {oldest}"
        found.append(
            {
                "pid": pid,
                "user": user_name(owner),
                "command": command[:200],
                "age_s": round(max(0.0, now - started), 1),
                "why": f"{whose} is gone",
            }
        )
    return {"leftovers": found}


def _is_rank(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            block = b"\0" + stream.read()
    except OSError:  # of another user, or ended
        return False
    return any(b"\0" + name in block for name in _RANK_VARIABLES)
