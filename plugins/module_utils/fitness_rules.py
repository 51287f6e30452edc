# SPDX-License-Identifier: Apache-2.0
"""Rules that say whether one node by itself is fit for a job: artifacts, folders, disks, limits, GPUs and sshd.

Reads and writes nothing. Three programs share the rules: the controller for ``doctor`` and ``validate``, and the node's
own ``check_node.py``. So the file needs only Python 3.9 and the standard library. It takes sections of the record of
``node_look``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

# The artifacts that every job needs, and those that only some jobs need, as people call them.
NEEDED = {"openmpi": "Open MPI", "python_env": "the cluster's Python", "mpi4py": "mpi4py"}
OPTIONAL = {"ucx": "UCX", "cpython": "the managed Python", "nccl": "NCCL", "horovod": "Horovod"}
SHM = "/dev/shm"  # noqa: S108 - its name, for people
PROVISION = "run 'clusterctl provision' for this node"
KIB, MIB = 1 << 10, 1 << 20
GIB = 1 << 30
FULL = 4 * MIB  # a daemon and its ranks share about 4 MiB of files for a start
FEW_INODES = 100  # a daemon makes a few folders, and some files for each rank
LITTLE_DISK, NO_DISK = GIB, 100 * MIB
# The defaults of kernels and of systemd are 64 KiB and 8 MiB; verbs pin all that is sent.
LEAST_MEMLOCK = 16 * MIB
FILES_OF_A_JOB = 64  # and one for each rank that a rank talks to

Words = Tuple[str, str]
"""A cause and its cure, without the name of the node; both are '' where nothing is wrong."""


def not_installed(artifact: Mapping[str, Any], called: str) -> str:
    """Say what is wrong with an artifact that every job needs, '' if it is whole."""
    if artifact["ok"]:
        return ""
    return f"{called}: {artifact['problem'] or artifact['link'] + ' does not exist'}"


def broken_extra(artifact: Mapping[str, Any], called: str) -> str:
    """Say what is wrong with an artifact that only some jobs need; one that was never installed is fine."""
    if artifact["problem"] in {"", f"{artifact['link']} does not exist"}:
        return ""
    return f"{called}: {artifact['problem']}"


def artifacts(found: Sequence[Mapping[str, Any]]) -> List[Words]:
    """Return what is wrong with the artifacts of a node, needed ones first."""
    by_name = {str(one["name"]): one for one in found}
    causes = [not_installed(by_name[name], called) for name, called in NEEDED.items() if name in by_name]
    causes += [broken_extra(by_name[name], called) for name, called in OPTIONAL.items() if name in by_name]
    return [(cause, PROVISION) for cause in causes if cause]


def unusable(folder: Mapping[str, Any]) -> Words:
    """Say why nothing can be written to a folder for temporary files or for shared memory."""
    path = folder["path"]
    if not folder["exists"]:
        return "does not exist", f"make it: 'mkdir -m 1777 {path}'"
    if folder["read_only"]:
        cure = f"look for errors of the disk in the kernel's log, then 'mount -o remount,rw {path}'"
        return "is read-only", cure
    if not folder["writable"]:
        return "is not writable for the login user", f"'chmod 1777 {path}'"
    if folder["free_bytes"] < FULL:
        free, total = folder["free_bytes"] // MIB, folder["total_bytes"] // MIB
        full = f"is full ({free} of {total} MiB are free)", f"free space in {path}"
        small = f"has {folder['total_bytes'] // KIB} KiB in all", f"mount it larger: 'mount -o remount,size=1g {path}'"
        return small if folder["total_bytes"] < FULL else full
    if folder["free_inodes"] is not None and folder["free_inodes"] < FEW_INODES:
        return f"is full ({folder['free_inodes']} inodes are free)", f"remove files in {path}"
    return "", ""


def scratch(folder: Mapping[str, Any]) -> List[Words]:
    """Return why a launch could not write to a folder."""
    problem, cure = unusable(folder)
    found = [(f"{folder['path']} {problem}, and each launch writes to it", cure)] if problem else []
    for path in folder["blocked"]:
        cause = f"{path} belongs to another user, and Open MPI keeps the files of a job there"
        found.append((cause, f"remove it: 'rm -r {path}'"))
    return found


def disk(state: Mapping[str, Any]) -> Words:
    """Say that a disk is almost full, or full; :func:`is_full` tells which."""
    if not state["total_bytes"] or state["free_bytes"] >= LITTLE_DISK:
        return "", ""
    amount = "100 MiB" if is_full(state) else "1 GiB"
    return f"less than {amount} is free in {state['path']}", f"free space in {state['path']}"


def is_full(state: Mapping[str, Any]) -> bool:
    """Whether so little is free on a disk that programs fail."""
    return bool(state["total_bytes"]) and state["free_bytes"] < NO_DISK


def memlock(limit: "int | None", rdma: Sequence[Mapping[str, Any]]) -> Words:
    """Say that a process may lock too little memory for RDMA.

    Args:
        limit: in bytes, None for unlimited.
        rdma: the RDMA devices of the node.
    """
    in_use = any(port["state"] == "ACTIVE" for device in rdma for port in device["ports"])
    if not in_use or limit is None or limit >= LEAST_MEMLOCK:
        return "", ""
    cause = f"a session may lock {limit // 1024} KiB of memory, and RDMA locks all that it sends"
    return cause, "set memlock to unlimited in /etc/security/limits.d"


def gpus(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> List[Words]:
    """Return the GPUs that the last provision saw and that are gone, or have lost their driver.

    Args:
        before: the GPUs at that time, each with ``bus`` and ``driver``.
        now: the present GPUs.
    """
    present: Dict[str, Mapping[str, Any]] = {str(one["bus"]): one for one in now}
    gone = [str(one["bus"]) for one in before if str(one["bus"]) not in present]
    loose = [
        str(one["bus"])
        for one in before
        if one["driver"] and str(one["bus"]) in present and not present[str(one["bus"])]["driver"]
    ]
    found = []
    if gone:
        cause = f"{len(gone)} of {len(before)} GPUs are gone since the last provision ({', '.join(gone)})"
        cure = "look with 'nvidia-smi' and in the kernel's log; if they were taken out, run 'clusterctl provision'"
        found.append((cause, cure))
    if loose:
        cause = f"{len(loose)} of {len(before)} GPUs have no driver ({', '.join(loose)})"
        found.append((cause, "load it with 'modprobe nvidia', and look in the kernel's log"))
    return found


def listener(port: int, tables: Sequence[str]) -> Words:
    """Say that no process listens on sshd's port.

    Args:
        port: the port.
        tables: the texts of /proc/net/tcp and /proc/net/tcp6.
    """
    ending, listening = f":{port:04X}", "0A"
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[1].endswith(ending) and words[3] == listening:  # noqa: PLR2004 - proc(5)
                return "", ""
    return f"sshd does not listen on port {port}", "start it: 'systemctl start ssh' (sshd on EL)"
