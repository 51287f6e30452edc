"""Faults of memory, disks, file systems, processors and settings."""

from __future__ import annotations

import time

import machine_parts as parts
from fault import Fault, Plant, edits, grows, prints, shows
from recorded_machine import Machine

_METAL = ("h100-sxm", "a100-sxm", "l40s-pcie", "dual-rail-roce", "plain-ethernet")
_ALL = (*_METAL, "cloud-vm")
_DIMM = f"{parts.EDAC}/mc0/dimm3"


_uncorrected = grows(f"{_DIMM}/dimm_ue_count", 1)
_corrected = grows(f"{_DIMM}/dimm_ce_count", 40)


def module_gone(machine: Machine, _look: int) -> None:
    """Take a memory module out."""
    del machine.binary[f"{parts.DMI}/17-3/raw"]


def less_memory(machine: Machine, _look: int) -> None:
    """Take an eighth of the memory away, from the first NUMA node."""
    size = int(machine.files["/proc/meminfo"].split()[1])
    machine.add("/proc/meminfo", f"MemTotal: {size * 7 // 8} kB")
    node = "/sys/devices/system/node/node0/meminfo"
    machine.add(node, machine.files[node].replace(machine.files[node].split()[3], str(16 << 20), 1))


def powersave(machine: Machine, _look: int) -> None:
    """Set the governor powersave."""
    for number in range(4):
        machine.add(f"{parts.CPU}/cpufreq/policy{number}/scaling_governor", "powersave")


_no_turbo = shows(f"{parts.CPU}/intel_pstate/no_turbo", 1)


def _capped(machine: Machine, _look: int) -> None:
    for number in range(4):
        machine.add(f"{parts.CPU}/cpufreq/policy{number}/scaling_max_freq", 1_200_000)


_slow_clock = shows("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
_huge_pages = shows("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
_reserved = edits("/proc/meminfo", "HugePages_Total: 0", "HugePages_Total: 65536")
_shallow = shows("/sys/module/intel_idle/parameters/max_cstate", 0)


def _amd(change: Plant) -> Plant:
    """Change a machine whose idle driver is not Intel's, so that the files of intel_idle are missing."""

    def plant(machine: Machine, look: int) -> None:
        del machine.files["/sys/module/intel_idle/parameters/max_cstate"]
        change(machine, look)

    return plant


_states_off = shows(f"{parts.CPU}/cpu0/cpuidle/state3/disable", 1)


def _states_gone(machine: Machine, _look: int) -> None:
    for name in ("name", "disable"):
        del machine.files[f"{parts.CPU}/cpu0/cpuidle/state3/{name}"]


_limited = shows("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/md2 ro processor.max_cstate=1 idle=nomwait")
_gigantic = shows(parts.HUGE_PAGES, 64)


def _memory_moved(machine: Machine, _look: int) -> None:
    """Take a module from one socket and put it to the other, so that the sum stays."""
    for node, gib in enumerate((576, 448)):
        machine.add(f"/sys/devices/system/node/node{node}/meminfo", parts.numa_memory(node, gib))


_other_idle_driver = shows(f"{parts.CPU}/cpuidle/current_driver", "acpi_idle")
_offline = shows(f"{parts.CPU}/offline", "5,37")


def _numa(machine: Machine, _look: int) -> None:
    machine.add("/sys/devices/system/node/node1/cpulist", "32-47")
    machine.add("/sys/devices/system/node/node2/cpulist", "48-63")


_read_only = edits("/proc/self/mounts", "/ ext4 rw", "/ ext4 ro")
_not_mounted = edits("/proc/self/mounts", "server:/home /home nfs4 rw,vers=4.2 0 0\n", "")


def _home(**changed: float | bool | str) -> Plant:
    """Let the shared file system answer in another way."""

    def plant(machine: Machine, _look: int) -> None:
        machine.calls["file_systems"]["/home"] |= changed

    return plant


def _home_gone(machine: Machine, _look: int) -> None:
    machine.calls["file_systems"]["/home"] = {"problem": "Transport endpoint is not connected"}


def _full(place: str, name: str) -> Plant:
    def plant(machine: Machine, _look: int) -> None:
        machine.calls["file_systems"][place][name] = 4096

    return plant


def _segments(machine: Machine, _look: int) -> None:
    left = {"bytes": 33 << 20, "age in s": 9000.0, "owner": 1000}
    machine.calls["shared_memory"] |= {"nccl-Ab12Cd": left, "psm2_shm.1000000000009": {**left, "bytes": 40 << 20}}


_failing_disk = prints(parts.SMART, '"passed": true', '"passed": false')
_worn_disk = prints(parts.SMART, '"percentage_used": 3', '"percentage_used": 104')
_no_spare = prints(parts.SMART, '"available_spare": 100', '"available_spare": 7')
_dead_disk = shows("/sys/block/nvme0n1/device/state", "dead")
_lost_member = edits("/proc/mdstat", "[2/2] [UU]", "[2/1] [U_]")
_fan = prints(parts.SDR, "8400 RPM          | ok", "0 RPM             | cr")


def _power_supply(machine: Machine, _look: int) -> None:
    at = time.strftime("%m/%d/%Y | %H:%M:%S", time.gmtime(time.time() - 600))
    machine.tools[parts.SEL].text += f"   2 | {at} | Power Supply PS2 | Failure detected | Asserted\n"


def _stuck(machine: Machine, _look: int) -> None:
    fields = "1 4711 4711 0 -1 4194560 1 0 0 0 20 4 0 0 20 0 1 0 100 0 0"
    machine.add("/proc/4711/stat", f"4711 (python) D {fields}")
    machine.add("/proc/4711/wchan", "nfs_wait_on_request")


def _interrupts(**grown: int) -> Plant:
    """Let interrupts of machine checks grow between the two looks."""

    def plant(machine: Machine, look: int) -> None:
        count = len(machine.files[parts.INTERRUPTS].partition("\n")[0].split())
        numbers = {"polls": 2_880} | {name: look * number for name, number in grown.items()}
        machine.add(parts.INTERRUPTS, parts.interrupts(count, **numbers))

    return plant


def _polls(machine: Machine, look: int) -> None:
    count = len(machine.files[parts.INTERRUPTS].partition("\n")[0].split())
    machine.add(parts.INTERRUPTS, parts.interrupts(count, polls=2_880 + 6_000 * look))


def _disk_link(machine: Machine, look: int) -> None:
    machine.add(f"{parts.NVME}/aer_dev_correctable", f"RxErr {80 * look}\nTOTAL_ERR_COR {3 + 80 * look}")


FAULTS: tuple[Fault, ...] = (
    Fault("uncorrected errors of a memory module", 0, _METAL, _uncorrected, "memory", ("P1-DIMMD1", "uncorrected")),
    Fault("corrected errors of a memory module above 10 a day", 0, _METAL, _corrected, "memory", ("P1-DIMMD1", "40")),
    Fault(
        "machine check exceptions", 0, _METAL, _interrupts(exceptions=64), "machine checks", ("64 machine check exc",)
    ),
    Fault("corrected machine checks", 0, _METAL, _interrupts(thresholds=40), "machine checks", ("40 threshold",)),
    Fault("machine checks are polled ever faster", 0, _METAL, _polls, "machine checks", ("machine check polls",)),
    Fault("errors of a disk's PCIe link grow", 20, _METAL, _disk_link, "pcie", ("0000:02:00.0 had 80 more",)),
    Fault("a memory module is gone", 0, _METAL, module_gone, "memory", ("memory modules",)),
    Fault("an eighth of the memory is gone", 0, ("cloud-vm",), less_memory, "memory", ("GiB of memory", "node0")),
    Fault("the governor is powersave on one node", 0, _METAL, powersave, "processors", ("governor", "powersave")),
    Fault("turbo is off on one node", 0, _METAL, _no_turbo, "processors", ("turbo is off",)),
    Fault("the frequency is capped on one node", 0, _METAL, _capped, "processors", ("highest frequency", "1200000")),
    Fault("the clock source is hpet", 0, _ALL, _slow_clock, "processors", ("hpet",)),
    Fault("transparent huge pages differ", 0, _ALL, _huge_pages, "processors", ("transparent huge pages",)),
    Fault("huge pages are reserved on one node", 0, _ALL, _reserved, "processors", ("reserved huge pages", "65536")),
    Fault("C-states are off on one node", 0, _METAL, _shallow, "processors", ("deepest C-state", "kernel parameters")),
    Fault("a C-state is off, not Intel", 0, _METAL, _amd(_states_off), "processors", ("switched off is C6",)),
    Fault("a C-state is missing, not Intel", 0, _METAL, _amd(_states_gone), "processors", ("POLL C1 C1E, and",)),
    Fault(
        "C-states are limited by the kernel's parameters",
        0,
        _METAL,
        _amd(_limited),
        "processors",
        ("processor.max_cstate=1", "idle=nomwait"),
    ),
    Fault("pages of 1 GiB are reserved on one node", 0, _ALL, _gigantic, "processors", ("1048576kB", "is 64")),
    Fault(
        "a memory module is on another socket",
        0,
        ("h100-sxm", "a100-sxm", "dual-rail-roce"),
        _memory_moved,
        "memory",
        ("node1 has 448 GiB", "512 GiB"),
    ),
    Fault("another idle driver", 0, _METAL, _other_idle_driver, "processors", ("idle driver", "acpi_idle")),
    Fault("processors are offline", 0, _ALL, _offline, "processors", ("5,37",)),
    Fault("NUMA nodes differ", 24, ("h100-sxm", "a100-sxm", "dual-rail-roce"), _numa, "processors", ("NUMA nodes",)),
    Fault("a file system is read-only", 0, _ALL, _read_only, "file systems", ("/ is read-only",)),
    Fault("a shared file system is not mounted", 25, _ALL, _not_mounted, "file systems", ("/home is not mounted",)),
    Fault(
        "a shared file system is slow", 25, _ALL, _home(**{"answer in s": 1.4}), "file systems", ("/home took 1400 ms",)
    ),
    Fault(
        "a shared file system is slower than on the others",
        25,
        _ALL,
        _home(**{"answer in s": 0.31}),
        "file systems",
        ("/home took 310 ms", "5 ms are usual"),
    ),
    Fault(
        "a shared file system is dead",
        25,
        _ALL,
        _home(hangs=True),
        "file systems",
        ("/home (nfs4) does not answer", "umount -l /home"),
    ),
    Fault(
        "the server of a shared file system is gone", 25, _ALL, _home_gone, "file systems", ("/home", "not connected")
    ),
    Fault("a scratch disk is full", 0, _ALL, _full("/scratch", "free bytes"), "file systems", ("/scratch", "space")),
    Fault("the root disk is full", 0, _ALL, _full("/", "free bytes"), "file systems", ("/ has less than 1 %", "space")),
    Fault(
        "a disk has no inodes left", 0, _ALL, _full("/scratch", "free inodes"), "file systems", ("/scratch", "inodes")
    ),
    Fault(
        "ended jobs left segments in /dev/shm",
        16,
        _ALL,
        _segments,
        "shared memory",
        ("3 segments", "with 82 MiB", "psm2_shm.1000000000009"),
    ),
    Fault("SMART says that a disk fails", 0, _METAL, _failing_disk, "disks", ("nvme0n1", "failing")),
    Fault("a disk is worn", 0, _METAL, _worn_disk, "disks", ("104 %",)),
    Fault("a disk has little spare", 0, _METAL, _no_spare, "disks", ("nvme0n1 has 7 %", "threshold of 10 %")),
    Fault("a disk is dead", 0, _METAL, _dead_disk, "disks", ("'dead'",)),
    Fault("an array lost a member", 0, _METAL, _lost_member, "disks", ("1 of 2",)),
    Fault("a fan stands still", 0, _METAL, _fan, "sensors", ("FAN1", "critical")),
    Fault("a power supply failed", 0, _METAL, _power_supply, "sensors", ("Power Supply PS2",)),
    Fault("a process is stuck in the kernel", 25, _ALL, _stuck, "blocked", ("4711 (python)", "nfs_wait_on_request")),
)
