# SPDX-License-Identifier: Apache-2.0
"""Mainboard, processors, memory, sensors, and processes of the machine."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .record import Answer, Json, Tree


# --- board -----------------------------------------------------------------------------------------------------------
# The fields are those of the SMBIOS specification (DMTF DSP0134), type 17 for memory; the kernel shows them as
# Documentation/ABI/testing/sysfs-firmware-dmi-entries says. Only root may read serial numbers.

_ID = "/sys/class/dmi/id"
_ENTRIES = "/sys/firmware/dmi/entries"
_MEMORY = "17-"
_LEAST = 0x1B  # up to the part number, SMBIOS 2.3
_UNKNOWN = 0xFFFF
_IN_KIB = 0x8000
_EXTENDED = 0x7FFF
_NOTHING = frozenset({"", "none", "not specified", "unknown", "no dimm", "to be filled by o.e.m.", "00000000", "n/a"})


def read_board(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the board, the firmware and each memory module."""
    words = {name: _word(tree.text(f"{_ID}/{name}")) for name in ("sys_vendor", "product_name", "bios_version")}
    model = " ".join(word for word in (words["sys_vendor"], words["product_name"]) if word)
    if model:
        answer.reading("board", "", "model", model)
    if words["bios_version"]:
        answer.reading("board", "", "firmware", words["bios_version"])
    for place in ("product", "board", "chassis"):
        serial = _word(tree.text(f"{_ID}/{place}_serial"))
        if serial:
            answer.part("board", place, model, serial, words["bios_version"])
    slots = [name for name in tree.names(_ENTRIES) if name.startswith(_MEMORY)]
    filled = 0
    for name in slots:
        data = tree.data(f"{_ENTRIES}/{name}/raw")
        module = memory_module(data) if data else None
        if module:
            filled += 1
            place, model_of, serial, size = module
            answer.part("dimm", place, f"{model_of} {size >> 20} GiB".strip(), serial)
    if filled:
        answer.reading("memory", "", "memory modules", filled)
    closed = [path for path in tree.problems if path.startswith((_ID, _ENTRIES))]
    if closed:
        answer.unseen("serial numbers of board and memory", "only root may read them")
        for path in closed:
            del tree.problems[path]


def memory_module(data: bytes) -> tuple[str, str, str, int] | None:
    """Return place, model, serial number and size in KiB of a structure of type 17, None for an empty slot."""
    if len(data) < _LEAST or data[0] != 17 or not _LEAST <= data[1] <= len(data):  # noqa: PLR2004 - the type's number
        return None
    (size,) = struct.unpack_from("<H", data, 0x0C)
    if size in {0, _UNKNOWN}:
        return None
    if size == _EXTENDED and data[1] >= 0x20:  # noqa: PLR2004 - SMBIOS 2.7
        kib = (struct.unpack_from("<I", data, 0x1C)[0] & 0x7FFFFFFF) << 10
    else:
        kib = size & 0x7FFF if size & _IN_KIB else size << 10
    strings = [text.decode("latin-1").strip() for text in data[data[1] :].split(b"\0")]

    def named(offset: int) -> str:
        number = data[offset]
        return _word(strings[number - 1]) if 0 < number <= len(strings) else ""

    place = " ".join(word for word in (named(0x11), named(0x10)) if word)
    model = " ".join(word for word in (named(0x17), named(0x1A)) if word)
    return place, model, named(0x18), kib


def _word(text: str | None) -> str:
    word = " ".join((text or "").split())
    return "" if word.lower() in _NOTHING else word


# --- processors ------------------------------------------------------------------------------------------------------

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_HUGE_PAGES = "/sys/kernel/mm/hugepages"
_OF_IDLE = ("idle=", "cpuidle.off=", "intel_idle.max_cstate=", "processor.max_cstate=")  # kernel-parameters.txt
_OF_NODE = re.compile(r"MemTotal:\s+(\d+) kB")
_CHOSEN = re.compile(r"\[([^\]]+)\]")
# Files that hold one word each: the name of the reading, and the path.
_WORDS = (
    ("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("idle driver", f"{_CPU}/cpuidle/current_driver"),
    ("deepest C-state of intel_idle", "/sys/module/intel_idle/parameters/max_cstate"),
    ("frequency driver", f"{_CPU}/cpufreq/policy0/scaling_driver"),
    ("hyperthreading", f"{_CPU}/smt/control"),
    ("automatic NUMA balancing", "/proc/sys/kernel/numa_balancing"),
    ("zone reclaim", "/proc/sys/vm/zone_reclaim_mode"),
)


def read_processors(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the governor, turbo, idle states, clock source, pages and NUMA nodes."""
    for name, path in _WORDS:
        word = tree.text(path)
        if word:
            answer.reading("cpu", "", name, word)
    _idle_states(tree, answer)
    _policies(tree, answer)
    _turbo(tree, answer)
    pages = _CHOSEN.search(tree.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    if pages:
        answer.reading("cpu", "", "transparent huge pages", pages.group(1))
    _memory(tree, answer)
    offline = tree.text(f"{_CPU}/offline")
    if offline is not None:
        answer.reading("cpu", "", "processors offline", offline or "none")


def _idle_states(tree: Tree, answer: Answer) -> None:
    """Tell which idle states there are, which are switched off on any processor, and the kernel's parameters."""
    states = {
        name: tree.text(f"{_CPU}/cpu0/cpuidle/{name}/name") or name for name in tree.names(f"{_CPU}/cpu0/cpuidle")
    }
    if states:
        answer.reading("cpu", "", "idle states", " ".join(states.values()))
        processors = [name for name in tree.names(_CPU) if re.fullmatch(r"cpu\d+", name)]
        off = [
            word
            for name, word in states.items()
            if any(tree.number(f"{_CPU}/{processor}/cpuidle/{name}/disable") for processor in processors)
        ]
        answer.reading("cpu", "", "idle states switched off", " ".join(off) or "none")
    parameters = tree.text("/proc/cmdline")
    if parameters is not None:
        found = [word for word in parameters.split() if word.startswith(_OF_IDLE)]
        answer.reading("cpu", "", "kernel parameters of idle states", " ".join(found) or "none")


def _policies(tree: Tree, answer: Answer) -> None:
    base = f"{_CPU}/cpufreq"
    policies = [name for name in tree.names(base) if name.startswith("policy")]
    for name, file in (("governor", "scaling_governor"), ("energy preference", "energy_performance_preference")):
        words = sorted({tree.text(f"{base}/{policy}/{file}") or "" for policy in policies} - {""})
        if words:
            answer.reading("cpu", "", name, ", ".join(words))
    limits = {tree.number(f"{base}/{policy}/scaling_max_freq") for policy in policies} - {None}
    if limits:
        answer.reading("cpu", "", "highest frequency in kHz", max(limit for limit in limits if limit is not None))


def _turbo(tree: Tree, answer: Answer) -> None:
    off, boost = tree.number(f"{_CPU}/intel_pstate/no_turbo"), tree.number(f"{_CPU}/cpufreq/boost")
    if off is not None:
        answer.reading("cpu", "", "turbo", "off" if off else "on")
    elif boost is not None:
        answer.reading("cpu", "", "turbo", "on" if boost else "off")


def _memory(tree: Tree, answer: Answer) -> None:
    fields = dict(line.split(":", 1) for line in (tree.text("/proc/meminfo") or "").splitlines() if ":" in line)
    for name, field in (("memory in KiB", "MemTotal"), ("reserved huge pages", "HugePages_Total")):
        words = fields.get(field, "").split()
        if words and words[0].isdigit():
            answer.reading("memory", "", name, int(words[0]))
    usual = "".join(fields.get("Hugepagesize", "").split())  # its pages are those of the line above
    for folder in tree.names(_HUGE_PAGES):
        pages_of = folder.rpartition("-")[2]
        pages = tree.number(f"{_HUGE_PAGES}/{folder}/nr_hugepages")
        if pages_of != usual and pages is not None:
            answer.reading("huge pages", pages_of, "reserved huge pages", pages)
    nodes = [name for name in tree.names(_NODE) if re.fullmatch(r"node\d+", name)]
    if nodes:
        answer.reading("cpu", "", "NUMA nodes", len(nodes))
    for name in nodes:
        answer.reading("numa", name, "processors", tree.text(f"{_NODE}/{name}/cpulist") or "none")
        size = _OF_NODE.search(tree.text(f"{_NODE}/{name}/meminfo") or "")
        if size:
            answer.reading("numa", name, "memory in KiB", int(size.group(1)))


# --- memory errors ---------------------------------------------------------------------------------------------------
# The files are those of Documentation/ABI/testing/sysfs-devices-edac of Linux.

_EDAC = "/sys/devices/system/edac/mc"
_COUNTS = (("ce_count", "corrected"), ("ue_count", "uncorrected"))


def read_memory_errors(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the counts of each DIMM, or of a controller that does not tell its DIMMs apart."""
    for controller in tree.names(_EDAC):
        base = f"{_EDAC}/{controller}"
        dimms = [name for name in tree.names(base) if name.startswith(("dimm", "rank"))]
        for dimm in dimms:
            label = tree.text(f"{base}/{dimm}/dimm_label") or f"{controller}/{dimm}"
            _tell(tree, answer, label, f"{base}/{dimm}/dimm_")
        if not dimms and controller.startswith("mc"):
            _tell(tree, answer, controller, f"{base}/")


def _tell(tree: Tree, answer: Answer, device: str, prefix: str) -> None:
    for name, word in _COUNTS:
        count = tree.number(prefix + name)
        if count is not None:
            answer.counter("memory", device, word, count)


# --- machine checks --------------------------------------------------------------------------------------------------
# The rows of /proc/interrupts are those of arch/x86/kernel/irq.c of Linux; other architectures have none of them.

_INTERRUPTS = "/proc/interrupts"
_MOST_BYTES = 1 << 24  # a row has a number for each processor, and these rows are the last ones
_ROWS = {b"MCE": "machine check exceptions", b"MCP": "machine check polls", b"THR": "threshold interrupts"}


def read_machine_checks(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the sum of each row over all processors."""
    data = tree.data(_INTERRUPTS, _MOST_BYTES) or b""
    for line in data.splitlines():
        name, colon, rest = line.partition(b":")
        what = _ROWS.get(name.strip()) if colon else None
        if what:
            counts = [word for word in rest.split() if word.isdigit()]
            answer.counter("machine check", "", what, sum(int(word) for word in counts))


# --- blocked ---------------------------------------------------------------------------------------------------------
# One look proves nothing, because every read of a disk waits so for a moment. A process that has not run at all between
# two looks is stuck.

_MOST = 50
_UTIME, _STIME = 11, 12  # fields of /proc/PID/stat after the command and the state; see proc(5)


def read_blocked(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the time that each such process has run for; its growth between two looks is what counts."""
    told = 0
    for name in tree.names("/proc"):
        if not name.isdigit():
            continue
        text = tree.text(f"/proc/{name}/stat") or ""
        command, _unused, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) <= _STIME or fields[0] != "D":
            continue
        told += 1
        if told > _MOST:
            answer.unseen("blocked processes", f"more than {_MOST}; only the first were read")
            break
        where = tree.text(f"/proc/{name}/wchan") or ""
        device = f"{name} ({command})" + (f" in {where}" if where not in {"", "0"} else "")
        answer.counter("process", device, "ran", int(fields[_UTIME]) + int(fields[_STIME]))
    tree.problems.clear()  # processes end, and those of others may be closed


# --- shared memory ---------------------------------------------------------------------------------------------------

_SHM = "/dev/shm"  # noqa: S108 - read, not written
# Open MPI's sm and vader, NCCL, PyTorch, UCX, PSM2, MPICH; by the names that their sources give.
_JOBS = re.compile(
    r"^(sm_segment\.|vader_segment\.|nccl-|torch_|ucx_|psm2_shm|psm_shm|cuda\.shm\.|mpich_|osc_rdma\.|__KMP_REGISTERED_LIB)"
)
_OLD_S = 600.0
_LEAST_STALE = 64 << 20  # bytes; below, nobody misses them
_ANYBODY = -1
# Programs of a login begin with the rights of root, so their mappings are closed. They map no segment.
_LOGINS = ("sshd", "sshd-session", "sudo", "su", "(sd-pam)", "systemd")
_MOST_MAPS = 1 << 24  # bytes of the list of a process's mappings


class _Segment(NamedTuple):
    size: int
    owner: int  # whose processes may map it; _ANYBODY where others may as well


def read_shared_memory(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many bytes lie in such segments, with the name of the largest."""
    found = _old(tree)
    if sum(one.size for one in found.values()) < _LEAST_STALE:
        return
    mapped, closed = _mapped(tree)
    left = {name: one for name, one in found.items() if name not in mapped}
    stale = {name: one.size for name, one in left.items() if not _may_be_used(one, closed)}
    if sum(stale.values()) >= _LEAST_STALE:
        answer.reading("shared memory", _SHM, "stale bytes", sum(stale.values()))
        answer.reading("shared memory", _SHM, "stale segments", len(stale))
        answer.reading("shared memory", _SHM, "largest", max(stale, key=lambda name: stale[name]))
    elif sum(one.size for one in left.values()) >= _LEAST_STALE:
        answer.unseen("shared memory", "other users' processes cannot be read, and may use the segments in /dev/shm")


def _may_be_used(one: _Segment, closed: set[int]) -> bool:
    """Whether a process that could not be read may have mapped the segment.

    A process of the same user is closed only where it has more rights than a job has.
    """
    return bool(closed) if one.owner == _ANYBODY else one.owner in closed - {os.geteuid()}


def _old(tree: Tree) -> dict[str, _Segment]:
    """Return by name the segments of jobs that nobody has written to for a while."""
    if tree.recorded:
        told = tree.calls("shared_memory")
        return {
            name: _Segment(one["bytes"], one["owner"])
            for name, one in told.items()
            if _JOBS.match(name) and one["age in s"] > _OLD_S
        }
    found: dict[str, _Segment] = {}
    for name in filter(_JOBS.match, tree.names(_SHM)):
        try:
            state = os.lstat(f"{_SHM}/{name}")
        except OSError:
            continue
        if time.time() - state.st_mtime > _OLD_S:
            owner = _ANYBODY if state.st_mode & 0o077 else state.st_uid
            found[name] = _Segment(state.st_blocks * 512, owner)
    return found


def _mapped(tree: Tree) -> tuple[set[str], set[int]]:
    """Return the names that processes have mapped, and the users of the processes that could not be read."""
    found: set[str] = set()
    closed: set[int] = set()
    for name in filter(str.isdigit, tree.names("/proc")):
        text = (tree.data(f"/proc/{name}/maps", _MOST_MAPS) or b"").decode("utf-8", "replace")
        found.update(re.findall(r" /dev/shm/(\S+)", text))
        if f"/proc/{name}/maps" in tree.problems and (tree.text(f"/proc/{name}/comm") or "").strip() not in _LOGINS:
            with contextlib.suppress(OSError):  # it has ended
                closed.add(os.stat(f"{tree.root}/proc/{name}").st_uid)
    tree.problems.clear()
    return found, closed


# --- sensors ---------------------------------------------------------------------------------------------------------
# The states of a sensor are those of ipmitool(1), "sdr": ok, ns (no reading), nc, cr and nr (non-critical, critical,
# non-recoverable), and us for an unspecified fault. An event of before the clock was set has the date "Pre-Init".

_DEVICES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
_SDR_S, _SEL_S = 4.0, 2.0
_WRONG = frozenset({"nc", "cr", "nr", "us"})
_DAY_S = 86400.0
_LOG = "event log of the board"
_MOST_EVENTS = 50
_FIELDS = 3
_EVENT_FIELDS = 6  # number, date, time, sensor, event, direction


def read_sensors(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the sensors that are not well, and the events since ``since``, by default those of the last day."""
    if not any(tree.exists(path) for path in _DEVICES):
        return
    ipmitool = tree.tool("ipmitool")
    if not ipmitool:
        answer.unseen("sensors", "the node has a management controller, and ipmitool is not installed")
        return
    sensors = tree.run([ipmitool, "sdr", "list"], _SDR_S)
    rows = [[word.strip() for word in line.split("|")] for line in sensors.text.splitlines()]
    known = [row for row in rows if len(row) == _FIELDS and row[2] in {*_WRONG, "ok", "ns"}]
    if not known:
        answer.unseen("sensors", sensors.problem or "ipmitool sdr list has no line of a sensor")
        return
    for name, value, state in known:
        if state in _WRONG:
            answer.reading("sensor", name, "state", f"{state}, {value}")
    _events(tree, answer, ipmitool, float(request.get("since") or time.time() - _DAY_S))


def _events(tree: Tree, answer: Answer, ipmitool: str, since: float) -> None:
    log = tree.run([ipmitool, "sel", "elist", "last", str(_MOST_EVENTS)], _SEL_S)
    if log.problem and "printed nothing" not in log.problem and "has no entries" not in log.text:
        answer.unseen(_LOG, log.problem)
        return
    rows = [[word.strip() for word in line.split("|")] for line in log.text.splitlines()]
    known = [fields for fields in rows if len(fields) >= _EVENT_FIELDS]
    if log.text.strip() and not known and "has no entries" not in log.text:
        answer.unseen(_LOG, "ipmitool sel elist has no line of an event")
    behind = _behind(tree, answer, ipmitool) if known else 0.0
    undated = []
    for fields in known:
        if fields[5] != "Asserted":
            continue
        at, text = _time(f"{fields[1]} {fields[2]}"), f"{fields[3]}: {fields[4]}"
        if at is None:
            undated.append(text)
        elif at + behind >= since:
            answer.event(at + behind, "ipmi", fields[3], "", text)
    if undated:
        answer.unseen(_LOG, f"{len(undated)} events have no time, the last is {undated[-1]}")


def _behind(tree: Tree, answer: Answer, ipmitool: str) -> float:
    """Return by how many seconds the board's clock is behind that of the node; 0 if it does not tell."""
    output = tree.run([ipmitool, "sel", "time", "get"], _SEL_S)
    board = _time(output.text)
    if board is None or output.problem:
        answer.unseen(_LOG, f"its clock could not be read: {output.problem or 'ipmitool sel time get tells no time'}")
        return 0.0
    behind = time.time() - board
    if abs(behind) > _DAY_S:
        words = f"{abs(behind) / _DAY_S:.0f} days {'behind' if behind > 0 else 'ahead'}"
        answer.unseen(_LOG, f"its clock is {words}; the times of its events are set right")
    return behind


def _time(text: str) -> float | None:
    """Return the time that a text begins with: a date and a time of the day, as ipmitool prints them."""
    words = " ".join(text.split()[:2])
    for form in ("%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S"):
        try:
            return float(calendar.timegm(time.strptime(words, form)))
        except ValueError:
            continue
    return None


# --- ssh server ------------------------------------------------------------------------------------------------------

_SSHD_S = 2.0
_STARTUPS = re.compile(r"^maxstartups (\d+:\d+:\d+)$", re.MULTILINE)


def read_ssh_server(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many logins the server lets begin at once; without root, its files tell it (``node_look``)."""
    sshd = tree.tool("sshd") if tree.recorded or os.geteuid() == 0 else ""
    found = _STARTUPS.search(tree.run([sshd, "-T"], _SSHD_S).text) if sshd else None
    if found:
        answer.reading("sshd", "", "MaxStartups", found.group(1))
