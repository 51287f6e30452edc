# SPDX-License-Identifier: Apache-2.0
"""Look at one node and answer, in one trip, everything that any part of clusterctl asks about it.

The file is a whole program: the standard library of Python 3.9 is all it needs, it changes nothing on the node, and
it starts a process only for what nothing else tells: whether sudo works, and the version of a library that names it
neither in its path nor in a file beside it, both only when asked. It serves in three ways:

* piped over ssh, followed by its request (see :data:`BOOT`); one line of JSON comes back;
* as a program with the request as its first argument;
* imported by Ansible modules, which share :func:`watch_state` and :func:`collect`.

Every section stands in its own guard: what fails leaves an empty value of the right shape and a sentence in
``problems``, because a record with a hole is worth more than none.
"""

# pathlib would cost a third of the probe's CPU time again, on every node of every run.
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH115, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import resource
import socket
import stat
import struct
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

SCHEMA_VERSION = 1
MARKER = ".clusterctl.json"
MANIFEST = ".clusterctl.files.json"
# What `python3 -c` runs on the node: argv[1] says how many bytes of stdin are this program, the rest is the request.
# Where sudo stands before it, argv[2] and argv[3] are PATH and LD_LIBRARY_PATH of the session that called sudo.
BOOT = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'node_probe','exec'))"

_ARTIFACT_ROOT = "/usr/local"
_DISKS = ("/usr/local", "/var/tmp")  # noqa: S108 - asked for free space only, nothing is written there
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, not written
_SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_SHOWN_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
_READ_BLOCK = 1 << 20
_MOST_LINKS = 40  # as many as Linux follows in one path
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NVIDIA = "0x10de"
# PCI classes of what computes or draws: VGA and 3D controllers, processing accelerators.
_GPU_CLASSES = ("0x0300", "0x0302", "0x1200")
# The first driver branch of each CUDA major (NVIDIA, "CUDA Compatibility", tables 1 and 2 of "Minor Version
# Compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_CUDA_BRANCHES = ((580, 13), (525, 12), (450, 11), (410, 10))
_LIBRARY_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48  # bytes of struct cache_file_new (glibc, sysdeps/generic/dl-cache.h)
_CACHE_ENTRY = "=iIIIQ"  # struct file_entry_new: flags, key, value, osversion, hwcap
_ELF_HEAD = 20  # bytes up to and with e_machine
# By the stem of a library: the artifact of ours that holds it.
_HOLDERS = {"libnccl": "nccl", "libmpi": "openmpi"}
_NCCL = "libnccl"
_NCCL_ANSWER_S = 5.0
_ANSWER_OF_NAMES_S = 4.0
_INFINIBAND = "/sys/class/infiniband"
_COUNTER_WORD = 4  # bytes: port_rcv_data and port_xmit_data count in units of four
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_FABRIC = "/etc/clusterctl/fabric.json"
# Any of these in its environment makes a process a rank, or a child of one.
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMIX_RANK=", b"HOROVOD_RANK=", b"TORCHELASTIC_RUN_ID=")
_REAPERS = {"systemd", "init", "tini", "catatonit", "dumb-init"}
_ARPHRD_LOOPBACK = 772
_ARPHRD_INFINIBAND = 32
_IFF_UP = 0x1
_RTF_UP = 0x1
_RTF_GATEWAY = 0x2
_IPV6_SCOPES = {0x00: "global", 0x10: "host", 0x20: "link", 0x40: "site"}
_IPV4_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}

Json = Dict[str, Any]


# --- small readers ---------------------------------------------------------------------------------------------------


def _text(path: str, default: Optional[str] = None) -> str:
    """Return a file's text without surrounding blanks, or the default where the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        if default is None:
            raise
        return default


def _number(path: str) -> Optional[int]:
    try:
        return int(_text(path))
    except (OSError, ValueError):
        return None


def _entries(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _which(name: str) -> str:
    """Return the path of a program in the system's own folders, or ''."""
    for folder in _SEARCH_PATH:
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def _sha256(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            block = stream.read(_READ_BLOCK)
            if not block:
                return total.hexdigest()
            total.update(block)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# --- path states: what a run leaves behind and a later run compares --------------------------------------------------


def link_of_another(path: str) -> str:
    """Return the first link on the way to a path that another user than root could have set; '' without one.

    Root asks before it opens a path. A link in a folder that only root can write is root's, whoever owns the link.
    """
    if os.geteuid() != 0:
        return ""
    place = "/"
    rest = path.split("/")[::-1]
    followed = 0
    while rest:
        part = rest.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            place = os.path.dirname(place)
            continue
        folder, place = place, os.path.join(place, part)
        try:
            status = os.lstat(place)
            if not stat.S_ISLNK(status.st_mode):
                continue
            around = os.lstat(folder)
            target = os.readlink(place)
        except OSError:
            return ""
        followed += 1
        if followed > _MOST_LINKS or (status.st_uid != 0 and (around.st_uid != 0 or around.st_mode & _OTHERS_WRITE)):
            return place
        rest += target.split("/")[::-1]
        place = "/" if target.startswith("/") else folder
    return ""


def watch_state(path: str, kind: str = "") -> Json:
    """Return the present state of a path in the form of a ``watch`` entry.

    The answer tells what is there, whatever was expected: a link where a file was asked for comes back as a link, so
    that comparing the two entries for equality is the whole test.

    Args:
        path: absolute path.
        kind: ``artifact`` to verify an installed artifact (a folder, or a link to one); anything else looks at the
            path itself.

    Returns:
        ``path`` and ``kind`` (file, dir, link, absent, artifact or other), and by kind: file has mode, owner, group and
        sha256; dir has mode, owner and group; link has target; artifact has marker_sha256 and files. A path that root
        would reach only through another user's link is a link too, to the path of that link.
    """
    if kind == "artifact":
        return _artifact_state(path)
    passed = link_of_another(os.path.dirname(path))
    if passed:
        return {"path": path, "kind": "link", "target": passed}
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"path": path, "kind": "absent"}
    if stat.S_ISLNK(status.st_mode):
        return {"path": path, "kind": "link", "target": os.readlink(path)}
    state: Json = {
        "path": path,
        "kind": "other",
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": _user_name(status.st_uid),
        "group": _group_name(status.st_gid),
    }
    if stat.S_ISDIR(status.st_mode):
        state["kind"] = "dir"
    elif stat.S_ISREG(status.st_mode):
        state["kind"] = "file"
        state["sha256"] = _sha256(path)
    return state


def _artifact_state(path: str) -> Json:
    marker, count, problem = verify_artifact(path)
    if not marker:
        return {"path": path, "kind": "absent"}
    digest = _sha256(f"{os.path.realpath(path)}/{MARKER}")
    return {"path": path, "kind": "artifact", "marker_sha256": digest, "files": problem or count}


def watch_states(entries: List[Json]) -> List[Json]:
    """Return the present state of every entry (only ``path`` and ``kind`` of each are read)."""
    return [watch_state(str(entry["path"]), str(entry.get("kind", ""))) for entry in entries]


def verify_artifact(path: str) -> Tuple[Json, int, str]:
    """Read an artifact's marker and compare its files with its manifest.

    Args:
        path: the artifact's folder, or a link to it.

    Returns:
        The marker ({} where there is none), how many manifest entries there are, and what is wrong ('' where nothing
        is). Kinds, sizes and the targets of links are compared, contents are not: this is the check of every run, made
        to take milliseconds.
    """
    folder = os.path.realpath(path)
    try:
        marker = json.loads(_text(f"{folder}/{MARKER}"))
    except FileNotFoundError:
        return {}, 0, f"{path} has no {MARKER}, so it was never finished"
    except (OSError, ValueError) as error:
        return {}, 0, f"{folder}/{MARKER} cannot be read: {error}"
    if not isinstance(marker, dict):
        return {}, 0, f"{folder}/{MARKER} is no marker"
    return (marker, *_compare_with_manifest(folder, str(marker.get("manifest_sha256", ""))))


def _compare_with_manifest(folder: str, digest: str) -> Tuple[int, str]:
    """Return the number of the manifest's entries and what it finds wrong with the folder."""
    try:
        with open(f"{folder}/{MANIFEST}", "rb") as stream:
            raw = stream.read()
        if digest and hashlib.sha256(raw).hexdigest() != digest:
            return 0, f"{folder}/{MANIFEST} is not the one that the marker names"
        files = json.loads(raw)["files"]
        wrong = [str(entry[0]) for entry in files if _differs(folder, entry)]
    except FileNotFoundError:
        return 0, f"{folder}/{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, LookupError) as error:
        return 0, f"{folder}/{MANIFEST} cannot be read: {error}"
    problem = f"{len(wrong)} of {len(files)} files are missing or changed, first {wrong[0]}" if wrong else ""
    return len(files), problem


def _differs(folder: str, entry: List[Any]) -> bool:
    """Tell whether a file is not as its manifest entry (path, kind, size, sha256 or target) says."""
    name, kind, size, content = entry[:4]
    path = f"{folder}/{name}"
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if kind == "l":
        return not stat.S_ISLNK(status.st_mode) or os.readlink(path) != content
    if kind == "d":
        return not stat.S_ISDIR(status.st_mode)
    return not stat.S_ISREG(status.st_mode) or status.st_size != size


# --- the session: what a non-interactive login sees ------------------------------------------------------------------


class Session:
    """The environment and limits of the ssh session that started the probe, also when it came through sudo.

    sudo replaces the environment (``env_reset``, ``secure_path``), so the probe's own is not what mpirun meets. In this
    order: what the caller took along before sudo; the environment sudo itself was started with, which root may read
    in /proc unless it lacks CAP_SYS_PTRACE, as in most containers; the file /etc/environment, which says what PAM
    gives to a session but not what sshd or a shell's start-up file adds.
    """

    def __init__(self, given: Optional[Dict[str, str]] = None) -> None:
        """Walk up the parents of this process as far as the ssh daemon."""
        self.variables: Dict[str, str] = dict(os.environ)
        self.source = "process"
        self.limits_pid: Optional[int] = None
        above: List[Tuple[int, str]] = []
        pid = os.getppid()
        while pid > 0 and len(above) < 64:  # noqa: PLR2004 - a guard against a /proc that lies in circles
            name, parent = _process(pid)
            if name.startswith("sshd"):
                self.source = "ssh session"
                break
            above.append((pid, name))
            pid = parent
        changers = [index for index, (_, name) in enumerate(above) if name in {"sudo", "su", "doas"}]
        if changers:
            self._look_above(above, changers[-1], pid, given)

    def _look_above(
        self, above: List[Tuple[int, str]], outermost: int, daemon: int, given: Optional[Dict[str, str]]
    ) -> None:
        self.limits_pid = above[outermost + 1][0] if outermost + 1 < len(above) else daemon
        block = given or _environ(above[outermost][0])
        if block is None:
            self.source = "/etc/environment"
            block = read_environment_file(_text("/etc/environment", ""))
        self.variables = block

    def limits(self) -> Json:
        """Return the soft and hard limits that a job in such a session gets; None means unlimited."""
        wanted = {"Max locked memory": "memlock", "Max open files": "nofile"}
        if self.limits_pid:
            found = {}
            for line in _text(f"/proc/{self.limits_pid}/limits").splitlines():
                key = wanted.get(line[:26].strip())
                if key:
                    soft, hard = line[26:].split()[:2]
                    found[key] = {"soft": _limit(soft), "hard": _limit(hard)}
            return found
        own = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}
        limits: Json = {}
        for key, number in own.items():
            low, high = (_limit(str(value)) for value in resource.getrlimit(number))
            limits[key] = {"soft": low, "hard": high}
        return limits


def _limit(text: str) -> Optional[int]:
    return None if text in {"unlimited", str(resource.RLIM_INFINITY)} else int(text)


def _process(pid: int) -> Tuple[str, int]:
    """Return the name and the parent of a process, ('', 0) where it cannot be seen."""
    line = _text(f"/proc/{pid}/stat", "")
    name, _, rest = line.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]) if len(fields) > 1 else 0


def read_environment_file(text: str) -> Dict[str, str]:
    """Return the variables of an /etc/environment as pam_env reads them: KEY=value, quotes around the value dropped."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("export "):
            words = words[7:].lstrip()
        name, separator, value = words.partition("#")[0].rstrip().partition("=")
        if not separator or not name:
            continue
        if value[:1] in {'"', "'"}:
            value = value[1:]
            if value[-1:] in {'"', "'"}:
                value = value[:-1]
        found[name] = value
    return found


def _environ(pid: int) -> Optional[Dict[str, str]]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            raw = stream.read()
    except OSError:
        return None
    pairs = (item.decode("utf-8", "replace").partition("=") for item in raw.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


# --- sections --------------------------------------------------------------------------------------------------------


def _names(_request: Json, _session: Session) -> Json:
    """Tell the node's names from files alone: a resolver that does not answer would cost seconds."""
    name = socket.gethostname()
    full = name
    for line in _text("/etc/hosts", "").splitlines():
        words = line.partition("#")[0].split()[1:]
        dotted = [word for word in words if word.startswith(f"{name}.")]
        if name in words and dotted:
            full = dotted[0]
            break
    return {"hostname": name, "fqdn": full}


def _kernel(_request: Json, _session: Session) -> Json:
    about = os.uname()
    return {"time": time.time(), "kernel": about.release, "machine": about.machine}


def read_os_release(text: str) -> Json:
    """Return id, version_id, name, family and major of an os-release file's text."""
    values = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("=")
        values[key] = value.strip("\"'")
    identity = values.get("ID", "linux").lower()
    related = {identity, *values.get("ID_LIKE", "").lower().split()}
    family = "Linux"
    if related & {"debian", "ubuntu"}:
        family = "Debian"
    elif related & {"rhel", "fedora", "centos"}:
        family = "RedHat"
    version = values.get("VERSION_ID", "")
    return {
        "id": identity,
        "version_id": version,
        "name": values.get("PRETTY_NAME", values.get("NAME", identity)),
        "family": family,
        "major": version.partition(".")[0],
    }


def _software(_request: Json, _session: Session) -> Json:
    release = _text("/etc/os-release", "") or _text("/usr/lib/os-release", "")
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except (ValueError, OSError):  # no GNU C library
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
    """Tell whether pip modules will find python3-packaging (a folder's presence; importing it would cost more)."""
    return any(os.path.isdir(f"{folder}/packaging") for folder in sys.path if folder)


def _cuda(_request: Json, _session: Session) -> Json:
    driver = driver_version(_text("/proc/driver/nvidia/version", ""))
    toolkit = ""
    try:
        toolkit = str(json.loads(_text("/usr/local/cuda/version.json"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        if os.access("/usr/local/cuda/bin/nvcc", os.X_OK):
            toolkit = header_cuda_version(_text("/usr/local/cuda/include/cuda.h", ""))
    major = None
    if driver:
        major = driver_cuda(driver)
    elif toolkit:
        major = int(toolkit.partition(".")[0])
    return {
        "cuda": {
            "major": major,
            "driver_version": driver,
            "toolkit_version": toolkit,
            "libcuda": _in_library_cache(b"libcuda.so.1"),
            "first_branches": _first_branches(),
        }
    }


def header_cuda_version(text: str) -> str:
    """Return the version that the text of a toolkit's cuda.h names ('' where it names none), 13000 as 13.0.

    Toolkits that were put together of packages or wheels have no version.json.
    """
    words = text.partition("#define CUDA_VERSION ")[2].split(None, 1)[:1]
    if not words or not words[0].isdigit():
        return ""
    number = int(words[0])
    return f"{number // 1000}.{number % 1000 // 10}"


def _first_branches() -> Dict[str, int]:
    """Return the first driver branch that runs each CUDA major, by which the record's reader judges as well."""
    return {str(cuda): branch for branch, cuda in _CUDA_BRANCHES}


def driver_version(text: str) -> str:
    """Return the version that the text of /proc/driver/nvidia/version names ('' where it names none)."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                parts = word.split(".")
                if len(parts) > 1 and all(part.isdigit() for part in parts):
                    return word
    return ""


def driver_cuda(version: str) -> Optional[int]:
    """Return the newest CUDA major that programs may be built for to run on a driver, None for a driver before 410."""
    branch = int(version.partition(".")[0])
    return next((cuda for first, cuda in _CUDA_BRANCHES if branch >= first), None)


def _in_library_cache(name: bytes) -> bool:
    try:
        with open(_LIBRARY_CACHE, "rb") as stream:
            return name + b"\0" in stream.read()
    except OSError:
        return False


def _hardware(_request: Json, _session: Session) -> Json:
    usable = os.sched_getaffinity(0)
    cores = set()
    for number in usable:
        siblings = _text(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", str(number))
        cores.add(siblings or str(number))
    wanted = {"MemTotal": 0, "SwapTotal": 0, "SwapFree": 0}
    for line in _text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in wanted:
            wanted[name] = int(rest.split()[0]) * 1024
    return {
        "cores": len(cores),
        "threads": len(usable),
        "memory_bytes": wanted["MemTotal"],
        "swap_bytes": wanted["SwapTotal"],
        "swap_used_bytes": wanted["SwapTotal"] - wanted["SwapFree"],
    }


def _storage(_request: Json, _session: Session) -> Json:
    disks = []
    for path in _DISKS:
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


def _interfaces(_request: Json, _session: Session) -> Json:
    addresses: Dict[str, List[Json]] = {}
    for name, entry in _ipv4_addresses() + _ipv6_addresses():
        addresses.setdefault(name, []).append(entry)
    found = []
    for name in _entries("/sys/class/net"):
        base = f"/sys/class/net/{name}"
        if not os.path.isdir(base):  # bonding_masters is a file
            continue
        flags = int(_text(f"{base}/flags", "0x0"), 16)
        speed = _number(f"{base}/speed")
        found.append(
            {
                "name": name,
                "kind": _interface_kind(base),
                "mac": _text(f"{base}/address", ""),
                "mtu": _number(f"{base}/mtu"),
                "up": bool(flags & _IFF_UP),
                "carrier": _text(f"{base}/carrier", "0") == "1",
                "speed_mbps": speed if speed and speed > 0 else None,
                "driver": _link_name(f"{base}/device/driver"),
                "master": _link_name(f"{base}/master"),
                "addresses": addresses.get(name, []),
                "rx_bytes": _number(f"{base}/statistics/rx_bytes"),
                "tx_bytes": _number(f"{base}/statistics/tx_bytes"),
            }
        )
    return {"interfaces": found}


def _rdma(_request: Json, _session: Session) -> Json:
    return {"rdma": read_rdma(_INFINIBAND)}


def read_rdma(root: str) -> List[Json]:
    """Return the RDMA devices of a tree like /sys/class/infiniband, each with its ports and their GID tables."""
    found = []
    for name in _entries(root):
        base = f"{root}/{name}"
        ports = [_rdma_port(f"{base}/ports/{number}", int(number)) for number in _entries(f"{base}/ports")]
        found.append(
            {
                "name": name,
                "driver": _link_name(f"{base}/device/driver"),
                "node_guid": _text(f"{base}/node_guid", ""),
                "ports": sorted(ports, key=lambda port: int(port["number"])),
            }
        )
    return found


def _rdma_port(base: str, number: int) -> Json:
    gids = []
    for index in sorted(int(entry) for entry in _entries(f"{base}/gids")):
        gid = _text(f"{base}/gids/{index}", "")
        if gid and gid != _NO_GID:
            netdev = _text(f"{base}/gid_attrs/ndevs/{index}", "")
            gids.append(
                {"index": index, "gid": gid, "type": _text(f"{base}/gid_attrs/types/{index}", ""), "netdev": netdev}
            )
    rate = _text(f"{base}/rate", "").split()  # 100 Gb/sec (4X EDR)
    counters = {
        key: _number(f"{base}/counters/{name}")
        for key, name in (("rx_bytes", "port_rcv_data"), ("tx_bytes", "port_xmit_data"))
    }
    return {
        "number": number,
        "state": _text(f"{base}/state", "").rpartition(":")[2].strip(),  # 4: ACTIVE
        "physical_state": _text(f"{base}/phys_state", "").rpartition(":")[2].strip(),
        "link_layer": _text(f"{base}/link_layer", ""),
        "rate_gbps": float(rate[0]) if rate else None,
        "netdev": gids[0]["netdev"] if gids else "",
        "gids": gids,
        **{key: None if words is None else words * _COUNTER_WORD for key, words in counters.items()},
    }


def _fabric(_request: Json, _session: Session) -> Json:
    text = _text(_FABRIC, "")
    if not text:
        return {"fabric": None}
    record = json.loads(text)
    return {
        "fabric": {
            "cidrs": [str(cidr) for cidr in record["cidrs"]],
            "interface": str(record["interface"]),
            "address": str(record["address"]),
        }
    }


def _resolved(request: Json, _session: Session) -> Json:
    """Look up the node's own name and those asked for, as ssh and mpirun would, within a few seconds in all."""
    asked = request.get("resolve")
    if asked is None:
        return {"names": []}
    names = list(dict.fromkeys([socket.gethostname(), *(str(name) for name in asked)]))
    answers = _look_up(names)
    late = f"no answer within {_ANSWER_OF_NAMES_S:g} s"
    return {
        "names": [{"name": name, **answers.get(name, {"addresses": [], "problem": late})} for name in names],
    }


def _look_up(names: List[str]) -> Dict[str, Json]:
    """Ask the resolver in a process of its own: it cannot be interrupted, and a dead server costs half a minute."""
    import select  # noqa: PLC0415 - seldom needed

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for name in names:
                os.write(writer, json.dumps({name: _addresses_of(name)}).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    end = time.monotonic() + _ANSWER_OF_NAMES_S
    try:
        while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            block = os.read(reader, 1 << 16)
            if not block:
                break
            data += block
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)
    answers: Dict[str, Json] = {}
    for line in data.split(b"\n")[:-1]:
        answers.update(json.loads(line))
    return answers


def _addresses_of(name: str) -> Json:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "problem": error.strerror or str(error)}
    return {"addresses": list(dict.fromkeys(str(entry[4][0]) for entry in found)), "problem": ""}


def _leftovers(request: Json, _session: Session) -> Json:
    """Find ranks that outlived their launcher: their family's oldest was handed over to the first process.

    Only processes whose environment the caller may read are seen.
    """
    if not request.get("leftovers"):
        return {"leftovers": []}
    ranks = {int(name) for name in _entries("/proc") if name.isdigit() and _is_rank(int(name))}
    now = float(_text("/proc/uptime").split()[0])
    found = []
    for pid in sorted(ranks):
        oldest, (_, parent) = pid, _process(pid)
        while parent in ranks:
            oldest, (_, parent) = parent, _process(parent)
        reaper = _process(parent)[0]
        if parent != 1 and reaper not in _REAPERS:
            continue
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            command = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        except OSError:  # it has just ended
            continue
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        whose = "its launcher" if oldest == pid else f"the launcher of its parent {oldest}"
        found.append(
            {
                "pid": pid,
                "user": _user_name(owner),
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
    except OSError:  # somebody else's, or gone
        return False
    return any(b"\0" + name in block for name in _RANK_VARIABLES)


def _link_name(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def _interface_kind(base: str) -> str:
    number = _number(f"{base}/type")
    if number == _ARPHRD_LOOPBACK:
        return "loopback"
    if number == _ARPHRD_INFINIBAND:
        return "infiniband"
    for line in _text(f"{base}/uevent", "").splitlines():
        if line.startswith("DEVTYPE="):  # bridge, bond, vlan, vxlan, wlan, …
            return line[8:]
    for folder, kind in (("bridge", "bridge"), ("bonding", "bond"), ("tun_flags", "tun"), ("device", "physical")):
        if os.path.exists(f"{base}/{folder}"):
            return kind
    # The other end of a veth pair has another index than the interface itself.
    return "veth" if _number(f"{base}/iflink") != _number(f"{base}/ifindex") else "virtual"


def _ipv4_addresses() -> List[Tuple[str, Json]]:
    """Ask the kernel over netlink: one exchange, no process, secondary addresses included (rtnetlink(7))."""
    request = struct.pack("=IHHII", 24, 22, 0x301, 1, 0) + struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)
    names = dict(socket.if_nameindex())
    found: List[Tuple[str, Json]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as channel:
        channel.settimeout(2)
        channel.send(request)
        while True:
            data = channel.recv(1 << 16)
            while len(data) >= 16:  # noqa: PLR2004 - the size of struct nlmsghdr
                length, kind = struct.unpack_from("=IH", data)
                if kind == 2:  # noqa: PLR2004 - NLMSG_ERROR
                    raise OSError("the kernel refused to list the addresses")
                if kind == 3 or length < 16:  # noqa: PLR2004 - NLMSG_DONE
                    return found
                entry = _ipv4_entry(data[16:length], names)
                if entry:
                    found.append(entry)
                data = data[(length + 3) & ~3 :]


def _ipv4_entry(message: bytes, names: Dict[int, str]) -> Optional[Tuple[str, Json]]:
    _, prefix, _, scope, index = struct.unpack_from("=BBBBI", message)
    attributes, rest = {}, message[8:]
    while len(rest) >= 4:  # noqa: PLR2004 - the size of struct rtattr
        length, kind = struct.unpack_from("=HH", rest)
        if length < 4:  # noqa: PLR2004 - the same size; less would never end
            break
        attributes[kind] = rest[4:length]
        rest = rest[(length + 3) & ~3 :]
    raw = attributes.get(2) or attributes.get(1)  # IFA_LOCAL, else IFA_ADDRESS
    if not raw:
        return None
    return names.get(index, str(index)), {
        "family": 4,
        "address": socket.inet_ntop(socket.AF_INET, raw),
        "prefix": prefix,
        "scope": _IPV4_SCOPES.get(scope, str(scope)),
    }


def _ipv6_addresses() -> List[Tuple[str, Json]]:
    found = []
    for line in _text("/proc/net/if_inet6", "").splitlines():
        raw, _, prefix, scope, _, name = line.split()
        found.append(
            (
                name,
                {
                    "family": 6,
                    "address": socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)),
                    "prefix": int(prefix, 16),
                    "scope": _IPV6_SCOPES.get(int(scope, 16), scope),
                },
            )
        )
    return found


def _routes(_request: Json, _session: Session) -> Json:
    return {
        "routes": read_ipv4_routes(_text("/proc/net/route", "")) + read_ipv6_routes(_text("/proc/net/ipv6_route", ""))
    }


def read_ipv4_routes(text: str) -> List[Json]:
    """Return the routes of the text of /proc/net/route (the main table)."""
    found = []
    for line in text.splitlines()[1:]:
        name, target, gateway, flags, _, _, metric, mask = line.split()[:8]
        if not int(flags, 16) & _RTF_UP:
            continue
        prefix = bin(int(mask, 16)).count("1")  # noqa: FURB161 - int.bit_count came with Python 3.10
        has_gateway = bool(int(flags, 16) & _RTF_GATEWAY)
        found.append(
            {
                "family": 4,
                "destination": f"{_ipv4_of_hex(target)}/{prefix}",
                "gateway": _ipv4_of_hex(gateway) if has_gateway else None,
                "interface": name,
                "metric": int(metric),
            }
        )
    return found


def _ipv4_of_hex(text: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(text, 16)))  # the kernel prints the word in host order


def read_ipv6_routes(text: str) -> List[Json]:
    """Return the unicast routes of the text of /proc/net/ipv6_route, without loopback and multicast."""
    found = []
    for line in text.splitlines():
        target, prefix, _, _, gateway, metric, _, _, flags, name = line.split()
        if name == "lo" or target.startswith("ff") or not int(flags, 16) & _RTF_UP:
            continue
        has_gateway = bool(int(flags, 16) & _RTF_GATEWAY)
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(target))
        found.append(
            {
                "family": 6,
                "destination": f"{address}/{int(prefix, 16)}",
                "gateway": socket.inet_ntop(socket.AF_INET6, bytes.fromhex(gateway)) if has_gateway else None,
                "interface": name,
                "metric": int(metric, 16),
            }
        )
    return found


def _gpus(_request: Json, _session: Session) -> Json:
    """List NVIDIA GPUs by the driver's own files, and those on the bus that no driver has taken."""
    found: Dict[str, Json] = {}
    base = "/proc/driver/nvidia/gpus"
    for bus in _entries(base):
        about = read_gpu_information(_text(f"{base}/{bus}/information", ""))
        found[bus.lower()] = {"bus": bus.lower(), **about, "driver": "nvidia"}
    base = "/sys/bus/pci/devices"
    for bus in _entries(base):
        if _text(f"{base}/{bus}/vendor", "") != _NVIDIA or bus.lower() in found:
            continue
        if _text(f"{base}/{bus}/class", "")[:6] in _GPU_CLASSES:
            driver = _link_name(f"{base}/{bus}/driver")
            found[bus.lower()] = {"bus": bus.lower(), "name": "", "uuid": "", "driver": driver}
    return {"gpus": [found[bus] for bus in sorted(found)]}


def read_gpu_information(text: str) -> Dict[str, str]:
    """Return name and uuid of the text of /proc/driver/nvidia/gpus/BUS/information, which tells nothing of memory."""
    about: Dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        about[key.strip()] = value.strip()
    return {"name": about.get("Model", ""), "uuid": about.get("GPU UUID", "")}


def _limits(_request: Json, session: Session) -> Json:
    return {"limits": session.limits()}


def _environment(_request: Json, session: Session) -> Json:
    kept = {name: session.variables[name] for name in _SHOWN_VARIABLES if name in session.variables}
    return {"environment": kept, "environment_source": session.source}


def _user(request: Json, _session: Session) -> Json:
    name = os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""
    entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    can: Optional[bool] = True if os.geteuid() == 0 else None
    if can is None and request.get("check_sudo"):
        can = _sudo_works()
    return {"user": {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "sudo": can}}


def _sudo_works() -> bool:
    program = _which("sudo")
    if not program:
        return False
    import subprocess  # noqa: PLC0415 - asked for seldom; others need not pay the import

    quiet = subprocess.DEVNULL
    return subprocess.call([program, "-n", "true"], stdin=quiet, stdout=quiet, stderr=quiet, timeout=10) == 0


def _ssh(_request: Json, session: Session) -> Json:
    config = read_sshd_config("/etc/ssh/sshd_config")
    keys = config.get("hostkey") or [
        f"/etc/ssh/{name}" for name in _entries("/etc/ssh") if name.startswith("ssh_host_") and name.endswith("_key")
    ]
    lines = []
    for path in keys:
        words = _text(f"{path}.pub", "").split()
        if len(words) > 1:
            lines.append(f"{words[0]} {words[1]}")
    lines.sort(key=lambda line: (not line.startswith("ssh-ed25519"), line))
    connection = session.variables.get("SSH_CONNECTION", "").split()
    port = (connection[3:] or config.get("port") or ["22"])[0]  # the fourth word is the daemon's own port
    return {"ssh": {"host_keys": lines, "port": int(port)}}


def read_sshd_config(path: str, depth: int = 0) -> Dict[str, List[str]]:
    """Return the global Port and HostKey values of sshd's configuration, includes followed as sshd_config(5) says."""
    found: Dict[str, List[str]] = {}
    for line in _text(path, "").splitlines():
        words = line.partition("#")[0].replace("=", " ", 1).split()
        if not words:
            continue
        keyword = words[0].lower()
        if keyword == "match":
            break
        if keyword in {"port", "hostkey"} and len(words) > 1:
            found.setdefault(keyword, []).append(words[1].strip('"'))
        if keyword == "include" and depth < 16:  # noqa: PLR2004 - sshd's own limit
            for pattern in words[1:]:
                for name in _glob(os.path.join("/etc/ssh", pattern.strip('"'))):
                    for key, values in read_sshd_config(name, depth + 1).items():
                        found.setdefault(key, []).extend(values)
    return found


def _glob(pattern: str) -> List[str]:
    """Return the paths that an absolute pattern may mean; a part without a wildcard is taken as it is."""
    import fnmatch  # noqa: PLC0415 - only where something has a pattern

    found = [""]
    for part in pattern.strip("/").split("/"):
        if any(sign in part for sign in "*?["):
            found = [f"{at}/{name}" for at in found for name in _entries(at or "/") if fnmatch.fnmatchcase(name, part)]
        else:
            found = [f"{at}/{part}" for at in found]
    return found


def _tools(_request: Json, _session: Session) -> Json:
    nvcc = "/usr/local/cuda/bin/nvcc"
    return {
        "tools": {
            "gcc": bool(_which("gcc")),
            "make": bool(_which("make")),
            "zstd": bool(_which("zstd")),
            "nvcc": bool(_which("nvcc")) or os.access(nvcc, os.X_OK),
            "ucx": _in_library_cache(b"libucp.so.0"),
        }
    }


def _artifacts(request: Json, _session: Session) -> Json:
    asked = request.get("artifacts")
    if asked is None:
        folders = [f"{_ARTIFACT_ROOT}/{name}" for name in _entries(_ARTIFACT_ROOT)]
        asked = [
            {"name": "", "link": folder}
            for folder in folders
            if not os.path.islink(folder) and os.path.isfile(f"{folder}/{MARKER}")
        ]
    return {
        "artifacts": [
            _artifact(str(entry.get("name", "")), str(entry["link"]), entry.get("inputs") or []) for entry in asked
        ]
    }


def _artifact(name: str, link: str, inputs: List[str]) -> Json:
    if not os.path.isdir(link):
        problem = f"{link} does not exist" if not os.path.lexists(link) else f"{link} leads nowhere"
        return {
            "name": name,
            "link": link,
            "target": "",
            "version": "",
            "key": "",
            "ok": False,
            "problem": problem,
            "inputs": {},
        }
    marker, _, problem = verify_artifact(link)
    found = str(marker.get("name", name))
    if not name:  # found by looking around: tell whether the public link leads here
        public = f"{_ARTIFACT_ROOT}/{found}"
        switched = os.path.realpath(public) == os.path.realpath(link)
        target, link = os.path.realpath(link), public if switched else ""
    else:
        target = os.path.realpath(link)
    return {
        "name": found,
        "link": link,
        "target": target,
        "version": str(marker.get("version", "")),
        "key": str(marker.get("key", "")),
        "ok": not problem,
        "problem": problem,
        "inputs": {key: value for key, value in (marker.get("inputs") or {}).items() if key in inputs},
    }


def _libraries(request: Json, session: Session) -> Json:
    asked = request.get("libraries") or []
    cache = b""
    if asked:
        try:
            with open(_LIBRARY_CACHE, "rb") as stream:
                cache = stream.read()
        except FileNotFoundError:  # no ldconfig has run yet
            pass
    return {"libraries": [_library(str(entry["soname"]), entry.get("also") or [], cache, session) for entry in asked]}


def _library(soname: str, also: List[str], cache: bytes, session: Session) -> Json:
    """Tell which file a session's loader takes for a name, and which others lie in its reach (ld.so(8)).

    A program's own RPATH and the folders for special processors (glibc-hwcaps) are not looked at.
    """
    # Whatever stands first is taken. An empty or relative entry means the folder of whoever runs: nobody's yet.
    entries = session.variables.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    ways = [(f"{entry.rstrip('/')}/{soname}", "LD_LIBRARY_PATH") for entry in entries if entry.startswith("/")]
    ways += [(path, _LIBRARY_CACHE) for path in read_library_cache(cache, soname)]
    ways += [(f"{folder}/{soname}", "default folders") for folder in _default_folders()]
    found: Dict[str, Json] = {}
    for path, via in ways:
        real = os.path.realpath(path)
        if real not in found and _can_be_loaded(real):
            found[real] = {"path": path, "real": real, "version": _library_version(soname, real), "via": via}
    files = list(found.values()) or [{"path": "", "real": "", "version": "", "via": ""}]
    for path in (path for pattern in also for path in _glob(pattern)):
        real = os.path.realpath(path)
        if _can_be_loaded(real):
            known = found.get(real) or {"version": _library_version(soname, real)}
            files.append({**known, "path": path, "real": real, "via": "asked for"})
    return {"soname": soname, **files[0], "others": files[1:]}


def read_library_cache(data: bytes, soname: str) -> List[str]:
    """Return the paths that the bytes of an ld.so.cache have for a name, in the loader's order.

    Read is the format "glibc-ld.so.cache1.1", also where the older one stands before it. Entries for special processors
    are passed over. Those of another machine are not told apart here: their files are.
    """
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return []
    body = memoryview(data)[start:]
    (count,) = struct.unpack_from("=I", body, len(_CACHE_MAGIC))
    end = _CACHE_HEADER + count * struct.calcsize(_CACHE_ENTRY)
    wanted = soname.encode() + b"\0"
    found = []
    for _, key, value, _, hwcap in struct.iter_unpack(_CACHE_ENTRY, body[_CACHE_HEADER:end]):
        if not hwcap and data.startswith(wanted, start + key):
            found.append(os.fsdecode(data[start + value : data.index(b"\0", start + value)]))
    return found


def _default_folders() -> Tuple[str, ...]:
    multiarch = f"{os.uname().machine}-linux-gnu"
    return f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"


def _can_be_loaded(path: str) -> bool:
    """Tell whether a file is a library of this machine: word size, byte order and processor as in this very program."""
    kind = _elf_kind(path)
    return bool(kind) and kind == _elf_kind("/proc/self/exe")


def _elf_kind(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            head = stream.read(_ELF_HEAD)
    except OSError:
        return b""
    return head[4:6] + head[18:20] if head.startswith(b"\x7fELF") else b""


def _library_version(soname: str, real: str) -> str:
    """Return the release that a library's file belongs to, '' where nothing tells."""
    stem = soname.partition(".so")[0]
    folder = real[len(_ARTIFACT_ROOT) + 1 :].partition("/")[0] if real.startswith(f"{_ARTIFACT_ROOT}/") else ""
    if folder:
        try:
            marker = json.loads(_text(f"{_ARTIFACT_ROOT}/{folder}/{MARKER}"))
            if marker["name"] == _HOLDERS.get(stem):
                return str(marker["version"])
        except (OSError, ValueError, LookupError, TypeError):
            pass  # not ours, or damaged, of which the artifacts tell
    if stem != _NCCL:  # the numbers in other names (libmpi.so.40.30.4) are of the interface, not of the release
        return ""
    named = os.path.basename(real).partition(".so.")[2]
    if named.count(".") >= 2 and named.replace(".", "").isdigit():  # noqa: PLR2004 - 2.29.7
        return named
    return _wheel_version(real) or _nccl_version(real)


def _wheel_version(real: str) -> str:
    """Return the version of the wheel that brought site-packages/nvidia/nccl/lib/libnccl.so.2."""
    site, inner, _ = real.rpartition("/nvidia/nccl/lib/")
    names = [name for name in _entries(site) if name.startswith("nvidia_nccl_cu")] if inner else []
    versions = [name[: -len(".dist-info")].rpartition("-")[2] for name in names if name.endswith(".dist-info")]
    return versions[0] if len(versions) == 1 else ""


def _nccl_version(path: str) -> str:
    """Ask a library itself, in a process of its own: what a strange file does when it is loaded is its own affair."""
    import select  # noqa: PLC0415 - seldom needed

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _tell_nccl_version(path, writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], _NCCL_ANSWER_S)[0]
        code = int(os.read(reader, 32) or b"0") if ready else 0
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)
    return nccl_release(code)


def _tell_nccl_version(path: str, writer: int) -> None:
    """Load a library and write down the code of its version; runs in the child alone."""
    import ctypes  # noqa: PLC0415 - only the child pays for it

    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    user = os.environ.get("SUDO_UID")
    if os.geteuid() == 0 and user:  # the session's library path may lead to files that root must not run
        entry = pwd.getpwuid(int(user))
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    code = ctypes.c_int(0)
    if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
        os.write(writer, str(code.value).encode())


def nccl_release(code: int) -> str:
    """Return the release of a version code, as NCCL_VERSION of nccl.h makes it: 22907 is 2.29.7, 2804 is 2.8.4."""
    if code <= 0:
        return ""
    unit = 10000 if code >= 10000 else 1000  # noqa: PLR2004 - since 2.9
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def _watch(request: Json, _session: Session) -> Json:
    return {"watch": watch_states(request.get("watch") or [])}


Section = Callable[[Json, Session], Json]
# Each section with what stands in its place when it fails.
_SECTIONS: Tuple[Tuple[Section, Json], ...] = (
    (_names, {"hostname": "", "fqdn": ""}),
    (_kernel, {"time": 0.0, "kernel": "", "machine": ""}),
    (
        _software,
        {
            "distribution": read_os_release(""),
            "glibc": "",
            "python": {"version": "", "executable": "", "has_packaging": False},
        },
    ),
    (
        _cuda,
        {
            "cuda": {
                "major": None,
                "driver_version": "",
                "toolkit_version": "",
                "libcuda": False,
                "first_branches": _first_branches(),
            }
        },
    ),
    (_hardware, {"cores": 0, "threads": 0, "memory_bytes": 0, "swap_bytes": 0, "swap_used_bytes": 0}),
    (_storage, {"disk": [], "shm_bytes": 0}),
    (_interfaces, {"interfaces": []}),
    (_routes, {"routes": []}),
    (_rdma, {"rdma": []}),
    (_fabric, {"fabric": None}),
    (_resolved, {"names": []}),
    (_leftovers, {"leftovers": []}),
    (_gpus, {"gpus": []}),
    (_limits, {"limits": {}}),
    (_environment, {"environment": {}, "environment_source": ""}),
    (_user, {"user": {"name": "", "uid": -1, "home": "", "sudo": None}}),
    (_ssh, {"ssh": {"host_keys": [], "port": 0}}),
    (_tools, {"tools": {"gcc": False, "make": False, "zstd": False, "nvcc": False, "ucx": False}}),
    (_artifacts, {"artifacts": []}),
    (_libraries, {"libraries": []}),
    (_watch, {"watch": []}),
)


def platform_id(facts: Json) -> str:
    """Return the id of the platform: nodes of equal id can run each other's binaries.

    Example: ``debian-12-x86_64-glibc2.36-py3.11``, with ``-cuda12`` appended where a driver (or, without one, a
    toolkit) is present.
    """
    distribution = facts["distribution"]
    release = distribution["version_id"] if distribution["family"] == "Debian" else distribution["major"]
    python = ".".join(facts["python"]["version"].split(".")[:2])
    words = [distribution["id"], release or "0", facts["machine"], f"glibc{facts['glibc'] or '0'}", f"py{python}"]
    if facts["cuda"]["major"]:
        words.append(f"cuda{facts['cuda']['major']}")
    return "-".join(words)


def collect(request: Json) -> Json:
    """Return the whole record of this node.

    Args:
        request: all keys optional. ``watch``: entries whose present state is wanted; ``artifacts``: list of
            ``{name, link}`` to verify, each with ``inputs`` (names of what shaped it, to be told as well) where wanted,
            None for whatever lies under /usr/local; ``libraries``: list of ``{soname}`` to
            look for as a session's loader does, each with ``also`` (patterns of further files of that kind to tell of)
            where wanted; ``resolve``: names to look up besides the node's own, None to look up none; ``leftovers``:
            find ranks whose launcher is gone; ``check_sudo``: find out whether the login user may sudo without a
            password (starts one process); ``session``: variables of the ssh session, where the caller took them along
            before sudo.

    Returns:
        A JSON-ready dict of schema :data:`SCHEMA_VERSION`; ``problems`` holds a sentence for each section that failed.
    """
    facts: Json = {"schema_version": SCHEMA_VERSION}
    problems: List[str] = []
    session = Session(request.get("session"))
    for section, fallback in _SECTIONS:
        try:
            facts.update(section(request, session))
        except Exception as error:  # noqa: BLE001 - one blind eye must not blind the other
            facts.update(fallback)
            problems.append(f"{section.__name__.strip('_')}: {type(error).__name__}: {error}")
    facts["platform"] = platform_id(facts)
    facts["problems"] = problems
    return facts


def main(arguments: List[str]) -> int:
    """Read the request (first argument, or what is left on stdin), print one line of JSON, and return 0."""
    piped = not arguments or arguments[0].isdigit()
    text = sys.stdin.buffer.read().decode("utf-8") if piped else arguments[0]
    request = cast("Json", json.loads(text or "{}"))
    if piped and len(arguments) > 1:
        pairs = zip(_SHOWN_VARIABLES, arguments[1:])  # noqa: B905 - strict= came with Python 3.10
        request["session"] = {name: value for name, value in pairs if value}
    sys.stdout.write(json.dumps(collect(request), separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
