# SPDX-License-Identifier: Apache-2.0
"""Operating system, processors, memory, control groups, disk space and tools of the node."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import suppress

from .libraries import in_library_cache
from .reading import Json, find_program, list_folder, read_number, read_text

# --- control groups --------------------------------------------------------------------------------------------------

CONTROL_GROUPS = "/sys/fs/cgroup"


def control_group_folders(root: str, lines: str, controller: str) -> list[tuple[str, bool]]:
    """Return the folders of the control groups of a process and of all above it, and whether each is of version 2.

    A container may see its own group at the root, under a path that is the host's. Paths may not exist.

    Args:
        root: where the control groups are mounted.
        lines: the list of the control groups of the process.
        controller: what the groups of version 1 are to control, ``cpu`` or ``memory``.
    """
    found = []
    for line in lines.split("\n"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top = root if os.path.exists(f"{root}/cgroup.controllers") else f"{root}/unified"
        elif controller in controllers.split(","):
            top = next((at for at in (f"{root}/{controllers}", f"{root}/{controller}") if os.path.isdir(at)), "")
        else:
            continue
        while top:
            found.append((top + path.rstrip("/"), number == "0"))
            if path in {"", "/"}:
                break
            path = os.path.dirname(path)
    return found


# --- cpu quota -------------------------------------------------------------------------------------------------------

_NS, _US = 1e9, 1e6


def cpu_quota(root: str = CONTROL_GROUPS, own: str = "/proc/self/cgroup") -> Json:
    """Return the tightest CPU quota between this process and the root of its control groups.

    Args:
        root: where the control groups are mounted.
        own: the list of the control groups of a process.

    Returns:
        Under ``cpu_quota``: ``group`` (the folder of the control group with that quota), ``cores`` (None if nothing
        limits), and what the kernel counted there: ``throttled_periods`` and ``throttled_s``.
    """
    quotas = [
        quota
        for folder, is_unified in control_group_folders(root, read_text(own, ""), "cpu")
        for quota in _quota(folder, is_unified)
    ]
    least = min(quotas, key=lambda quota: quota["cores"], default=None)
    return {"cpu_quota": least or {"group": "", "cores": None, "throttled_periods": 0, "throttled_s": 0.0}}


def _quota(folder: str, is_unified: bool) -> list[Json]:
    """Return the quota of one control group, [] if it has none."""
    try:
        if is_unified:
            quota, period = (int(word) for word in read_text(f"{folder}/cpu.max").split())
        else:
            quota = int(read_text(f"{folder}/cpu.cfs_quota_us"))
            period = int(read_text(f"{folder}/cpu.cfs_period_us"))
    except (OSError, ValueError):  # such a file is missing, or the quota is "max"
        return []
    if quota <= 0 or period <= 0:
        return []
    counts = dict([*line.split(), "0"][:2] for line in read_text(f"{folder}/cpu.stat", "").splitlines() if line)
    held = int(counts.get("throttled_usec", 0)) / _US or int(counts.get("throttled_time", 0)) / _NS
    return [
        {
            "group": folder,
            "cores": quota / period,
            "throttled_periods": int(counts.get("nr_throttled", 0)),
            "throttled_s": round(held, 3),
        }
    ]


# --- processes and kills ----------------------------------------------------------------------------------------------

_MANY = 8192  # processes; where a user may have as many, they are not counted


def processes(
    limit: int | None, uid: int, root: str = CONTROL_GROUPS, own: str = "/proc/self/cgroup", proc: str = "/proc"
) -> Json:
    """Return how many more processes a session may start, and how many the kernel has killed for lack of memory.

    Threads count as processes. The kernel counts kills in each control group above the process that it killed.

    Args:
        limit: of processes of the user (nproc), None for no limit. It does not hold for root.
        uid: of the user.
        root: where the control groups are mounted.
        own: the list of the control groups of a process.
        proc: the folder of the processes.

    Returns:
        ``process_room``, with ``left`` and ``by`` (what limits); None where nothing does. ``memory_kills``.
    """
    lines = read_text(own, "")
    rooms = []
    for folder, _unused in control_group_folders(root, lines, "pids"):
        with suppress(OSError, ValueError):  # without a limit it says 'max', and the root group has no file
            rooms.append((_number(folder, "pids.max") - _number(folder, "pids.current"), f"{folder}/pids.max"))
    if uid and limit is not None and limit < _MANY:
        rooms.append((limit - _threads(uid, proc), "nproc"))
    least = min(rooms, default=None)
    kills = [0]
    for folder, is_unified in control_group_folders(root, lines, "memory"):
        counted = read_text(f"{folder}/{'memory.events' if is_unified else 'memory.oom_control'}", "")
        kills += [int(count) for count in re.findall(r"^oom_kill (\d+)$", counted, re.MULTILINE)]
    room = {"left": max(0, least[0]), "by": least[1]} if least else None
    return {"process_room": room, "memory_kills": max(kills)}


def _threads(uid: int, proc: str) -> int:
    """Return the number of threads of a user."""
    found = 0
    for name in list_folder(proc):
        if name.isdecimal():
            status = read_text(f"{proc}/{name}/status", "")
            if re.search(rf"^Uid:\t{uid}\t", status, re.MULTILINE):
                found += int(*re.findall(r"^Threads:\t(\d+)$", status, re.MULTILINE)[:1] or [0])
    return found


# --- host capacity ---------------------------------------------------------------------------------------------------

# For each version of control groups: what limits the memory, what is used, and the caches of files in memory.stat.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))


def free_bytes(path: str) -> int:
    """Return the bytes that a process without privileges may still write below ``path``."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def available_memory_bytes(proc: str = "/proc", groups: str = CONTROL_GROUPS) -> int:
    """Return the memory that a new process may take: the kernel's, within the limits of our control groups."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text(f"{proc}/meminfo"), re.MULTILINE))
    room = [int(meminfo["MemAvailable"]) * 1024]
    own = read_text(f"{proc}/self/cgroup")
    for folder, is_unified in control_group_folders(groups, own, "memory"):
        limit, used, caches = _VERSION_2 if is_unified else _VERSION_1
        with suppress(OSError, ValueError):  # without a limit version 2 says 'max', and its root group has no file
            stat = dict(line.split() for line in read_text(f"{folder}/memory.stat").splitlines())
            given_back = sum(int(stat.get(name, 0)) for name in caches)  # on demand
            room.append(_number(folder, limit) - _number(folder, used) + given_back)
    return max(0, min(room))


def _number(folder: str, name: str) -> int:
    return int(read_text(f"{folder}/{name}"))


# --- topology --------------------------------------------------------------------------------------------------------
# Formats: Documentation/ABI/stable/sysfs-devices-node, and Documentation/ABI/testing/sysfs-bus-pci of Linux. The path
# of a PCI device in /sys/devices names each bridge above it.

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MOST_CPUS = 1 << 16


def numa(root: str = "") -> Json:
    """Return ``numa``: by NUMA node, the cores that a session may use, each as the list of its hardware threads.

    A machine that has no NUMA nodes, or hides them, has one with the number 0.

    Args:
        root: begin of the paths of /sys, for tests.
    """
    allowed = os.sched_getaffinity(0)
    found = []
    base = f"{root}/sys/devices/system/node"
    for name in list_folder(base):
        if re.fullmatch(r"node[0-9]{1,6}", name):
            cpus = allowed & set(cpu_list(read_text(f"{base}/{name}/cpulist", "")))
            found.append({"number": int(name[4:]), "cores": _cores(cpus, root)})
    found = [one for one in found if one["cores"]] or [{"number": 0, "cores": _cores(allowed, root)}]
    return {"numa": sorted(found, key=lambda one: int(one["number"]))}


def place(path: str) -> Json:
    """Return ``numa`` (-1 where unknown) and ``pci_path`` (the bridges from the root, then the device) of a device.

    Args:
        path: a link to a PCI device's folder, such as /sys/bus/pci/devices/0000:07:00.0.
    """
    number = read_number(f"{path}/numa_node")
    steps = [step for step in os.path.realpath(path).lower().split("/") if _PCI.fullmatch(step)]
    return {"numa": -1 if number is None else number, "pci_path": steps}


_MELLANOX = "0x15b3"
_NETWORK = ("0x0200", "0x0207")  # PCI classes: Ethernet and InfiniBand controllers


def driverless_cards(root: str = "") -> Json:
    """Return the PCI addresses of the cards that could do RDMA and that no driver has taken, NVIDIA's Mellanox alone.

    A card that is given to a virtual machine has the driver vfio-pci.

    Args:
        root: begin of the path of /sys, for tests.
    """
    base = f"{root}/sys/bus/pci/devices"
    found = [
        bus.lower()
        for bus in list_folder(base)
        if read_text(f"{base}/{bus}/vendor", "") == _MELLANOX
        and read_text(f"{base}/{bus}/class", "")[:6] in _NETWORK
        and not os.path.exists(f"{base}/{bus}/driver")
        and not os.path.exists(f"{base}/{bus}/physfn")
    ]
    return {"driverless_cards": found}


def cpu_list(text: str) -> list[int]:
    """Return the numbers in a list of the kernel such as ``0-3,8``; [] for another text."""
    found: list[int] = []
    for word in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if not match or int(match.group(2) or match.group(1)) >= _MOST_CPUS:
            return []
        found += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return found


def _cores(cpus: set[int], root: str) -> list[str]:
    """Return each core among some hardware threads as the list of its threads among them, such as ``0,64``."""
    left, found = set(cpus), []
    for cpu in sorted(cpus):
        if cpu in left:
            text = read_text(f"{root}/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "")
            threads = sorted((set(cpu_list(text)) & left) | {cpu})
            left.difference_update(threads)
            found.append(",".join(str(one) for one in threads))
    return found


# --- system ----------------------------------------------------------------------------------------------------------

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
            "gdrcopy": in_library_cache(b"libgdrapi.so.2"),
            "ssh": bool(find_program("ssh")),
        }
    }


# --- scratch space ---------------------------------------------------------------------------------------------------

# A process of root's that acts as a user still has root's real id, about which access(2) asks.
_EFFECTIVE = os.access in os.supports_effective_ids
_USUAL_FOLDER = "/tmp"  # noqa: S108 - measured, not written
_FOLDER_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in the order in which Open MPI reads them
# Open MPI 4.1 keeps one folder of this name for a node and a user. One that another user owns stops every launch.
_SESSION_FOLDER = "ompi.{host}.{uid}"


def scratch(variables: dict[str, str], uid: int) -> Json:
    """Return the state of the session's folder for temporary files, of /tmp and of /dev/shm.

    Args:
        variables: the variables of the session.
        uid: the login user.
    """
    chosen = next((variables[name] for name in _FOLDER_VARIABLES if variables.get(name, "").startswith("/")), "")
    paths = dict.fromkeys([chosen.rstrip("/") or _USUAL_FOLDER, _USUAL_FOLDER, _SHARED_MEMORY])
    return {"scratch": [_scratch_state(path, uid) for path in paths]}


def _scratch_state(path: str, uid: int) -> Json:
    state: Json = {
        "path": path,
        "exists": os.path.isdir(path),
        "free_bytes": 0,
        "total_bytes": 0,
        "free_inodes": None,
        "read_only": False,
        "writable": False,
        "blocked": [],
    }
    if not state["exists"]:
        return state
    space = os.statvfs(path)
    session = f"{path}/{_SESSION_FOLDER.format(host=os.uname().nodename, uid=uid)}"
    taken = os.path.lexists(session) and not _may_write(session)
    state.update(
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        free_inodes=space.f_favail if space.f_files else None,  # btrfs and others have no fixed number
        read_only=bool(space.f_flag & os.ST_RDONLY),
        writable=_may_write(path),
        blocked=[session] if taken else [],
    )
    return state


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)
