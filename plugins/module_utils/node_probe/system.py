# SPDX-License-Identifier: Apache-2.0
"""Operating system, hardware, storage and tools of the node."""

from __future__ import annotations

import os
import socket
import sys
import time

from .library_cache import in_library_cache
from .reading import Json, find_program, read_text

_WORK = "/var/tmp"  # noqa: S108 - measured, not written
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, not written


def names() -> Json:
    """Return the node's names from files alone, because a resolver that hangs would cost seconds."""
    name = socket.gethostname()
    full = name
    for line in read_text("/etc/hosts", "").split("\n"):
        words = line.partition("#")[0].split()[1:]
        dotted = [word for word in words if word.startswith(f"{name}.")]
        if name in words and dotted:
            full = dotted[0]
            break
    return {"hostname": name, "fqdn": full}


def kernel() -> Json:
    """Return the clock, the kernel's release and the architecture."""
    about = os.uname()
    return {"time": time.time(), "kernel": about.release, "machine": about.machine}


def read_os_release(text: str) -> Json:
    """Return id, version_id, name, family and major from the text of an os-release file.

    Debian testing has no number yet; its ``version_id`` is the code name (``forky``).
    """
    values = {}
    for line in text.split("\n"):
        key, _unused, value = line.strip().partition("=")
        values[key] = value.strip("\"'")
    identity = values.get("ID", "linux").lower()
    related = {identity, *values.get("ID_LIKE", "").lower().split()}
    family = "Linux"
    if related & {"debian", "ubuntu"}:
        family = "Debian"
    elif related & {"rhel", "fedora", "centos"}:
        family = "RedHat"
    elif related & {"suse", "opensuse"}:
        family = "Suse"
    version = values.get("VERSION_ID") or values.get("VERSION_CODENAME", "")
    return {
        "id": identity,
        "version_id": version,
        "name": values.get("PRETTY_NAME", values.get("NAME", identity)),
        "family": family,
        "major": version.partition(".")[0],
    }


def software() -> Json:
    """Return the distribution, the version of glibc, and the Python that runs the probe."""
    release = read_text("/etc/os-release", "") or read_text("/usr/lib/os-release", "")
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except (ValueError, OSError):  # another C library
        libc = ""
    return {
        "distribution": read_os_release(release),
        "glibc": libc,
        "python": {
            "version": ".".join(str(part) for part in sys.version_info[:3]),
            "executable": sys.executable,
            "has_packaging": _has_packaging(),
        },
    }


def _has_packaging() -> bool:
    """Tell whether Ansible's pip module finds python3-packaging; its folder is enough, because an import is slow."""
    return any(os.path.isdir(f"{folder}/packaging") for folder in sys.path if folder)


def hardware() -> Json:
    """Return the cores that this process may use, the online threads, the memory, and the id of the kernel's start.

    Containers of one machine have the same id. They share its cores.
    """
    usable = os.sched_getaffinity(0)
    cores = set()
    for number in usable:
        siblings = read_text(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", str(number))
        cores.add(siblings or str(number))
    wanted = {"MemTotal": 0, "SwapTotal": 0, "SwapFree": 0}
    for line in read_text("/proc/meminfo").splitlines():
        name, _unused, rest = line.partition(":")
        if name in wanted:
            wanted[name] = int(rest.split()[0]) * 1024
    return {
        "cores": len(cores),
        "threads": len(usable),
        "threads_online": os.sysconf("SC_NPROCESSORS_ONLN"),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id", "").strip(),
        "memory_bytes": wanted["MemTotal"],
        "swap_bytes": wanted["SwapTotal"],
        "swap_used_bytes": wanted["SwapTotal"] - wanted["SwapFree"],
    }


def storage(root: str) -> Json:
    """Return the free space of the disks that clusterctl writes to, and the size of /dev/shm.

    Args:
        root: the prefix of the software.
    """
    disks = []
    for path in (root, _WORK):
        place = path
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        space = os.statvfs(place)
        disks.append(
            {
                "path": path,
                "free_bytes": space.f_bavail * space.f_frsize,
                "total_bytes": space.f_blocks * space.f_frsize,
            }
        )
    shared = 0
    if os.path.isdir(_SHARED_MEMORY):
        space = os.statvfs(_SHARED_MEMORY)
        shared = space.f_blocks * space.f_frsize
    return {"disk": disks, "shm_bytes": shared}


def tools() -> Json:
    """Tell which build tools, libraries and the client of ssh are installed."""
    nvcc = "/usr/local/cuda/bin/nvcc"
    return {
        "tools": {
            "gcc": bool(find_program("gcc")),
            "make": bool(find_program("make")),
            "zstd": bool(find_program("zstd")),
            "libzstd": in_library_cache(b"libzstd.so.1"),
            "nvcc": bool(find_program("nvcc")) or os.access(nvcc, os.X_OK),
            "ucx": in_library_cache(b"libucp.so.0"),
            "ssh": bool(find_program("ssh")),
        }
    }
