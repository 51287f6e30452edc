"""The mainboard of a recorded machine: memory, processors, disks, sensors, settings; healthy ones."""

from __future__ import annotations

import json
import struct
import time

from recorded_machine import Answer, Machine

CPU = "/sys/devices/system/cpu"
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
INTERRUPTS = "/proc/interrupts"
NVME = "/sys/bus/pci/devices/0000:02:00.0"
EDAC = "/sys/devices/system/edac/mc"
DMI = "/sys/firmware/dmi/entries"
SMART = "smartctl --json=c -H -A /dev/nvme0n1"
SDR = "ipmitool sdr list"
SEL = "ipmitool sel elist last 50"
SEL_CLOCK = "ipmitool sel time get"
MODULES = 8  # of a socket
MOUNTS = (
    "/dev/root / ext4 rw,relatime 0 0",
    "tmpfs /dev/shm tmpfs rw 0 0",
    "/dev/md0 /scratch xfs rw,relatime 0 0",
    "server:/home /home nfs4 rw,vers=4.2 0 0",
)
_GIB = 1 << 30


def add_mainboard(machine: Machine, node: int, *, sockets: int, virtual: bool = False) -> None:
    """Give a machine its board, processors, memory and disks; the node's number makes serial numbers its own."""
    _processors(machine, sockets, virtual=virtual)
    _memory(machine, sockets * (32 if virtual else 512))
    _file_systems(machine, node)
    if virtual:
        machine.add("/sys/class/dmi/id/sys_vendor", "QEMU")
        machine.add("/sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)")
        machine.add("/sys/block/vda/ro", 0)
        return
    _board(machine, node, sockets)
    _disk(machine, node)
    _sensors(machine)


def _processors(machine: Machine, sockets: int, *, virtual: bool) -> None:
    machine.add("/sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock" if virtual else "tsc")
    machine.add("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine.add("/proc/sys/kernel/numa_balancing", 0)
    machine.add("/proc/sys/vm/zone_reclaim_mode", 0)
    machine.add("/proc/sys/net/ipv4/neigh/default/gc_thresh3", 1024)
    machine.add(f"{CPU}/offline", "")
    for node in range(sockets):
        first, last = node * 32, node * 32 + 31
        machine.add(f"/sys/devices/system/node/node{node}/cpulist", f"{first}-{last}")
        machine.add(f"/sys/devices/system/node/node{node}/meminfo", numa_memory(node, 32 if virtual else 512))
    machine.add("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", 0)
    machine.add(HUGE_PAGES, 0)
    machine.add("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/md1 ro quiet")
    if virtual:
        return
    for number, name in enumerate(("POLL", "C1", "C1E", "C6")):
        machine.add(f"{CPU}/cpu0/cpuidle/state{number}/name", name)
        machine.add(f"{CPU}/cpu0/cpuidle/state{number}/disable", 0)
    machine.add(INTERRUPTS, interrupts(sockets * 32, polls=2_880))
    machine.add(f"{CPU}/smt/control", "on")
    machine.add(f"{CPU}/cpuidle/current_driver", "intel_idle")
    machine.add("/sys/module/intel_idle/parameters/max_cstate", 9)
    machine.add(f"{CPU}/intel_pstate/no_turbo", 0)
    for number in range(4):
        policy = f"{CPU}/cpufreq/policy{number}"
        machine.add(f"{policy}/scaling_driver", "intel_pstate")
        machine.add(f"{policy}/scaling_governor", "performance")
        machine.add(f"{policy}/energy_performance_preference", "performance")
        machine.add(f"{policy}/scaling_max_freq", 3_800_000)


def numa_memory(node: int, gib: int) -> str:
    """Return the file meminfo of a NUMA node."""
    return f"Node {node} MemTotal: {gib << 20} kB\nNode {node} MemFree: {gib << 19} kB"


def interrupts(processors: int, *, polls: int, exceptions: int = 0, thresholds: int = 0) -> str:
    """Return /proc/interrupts: the numbers of all processors, with the given ones on processor 0."""
    rows = {"  0": (44, "IO-APIC    2-edge      timer"), "MCE": (exceptions, "Machine check exceptions")}
    rows |= {"MCP": (polls, "Machine check polls"), "THR": (thresholds, "Threshold APIC interrupts")}
    lines = ["           " + "".join(f"CPU{number:<8d}" for number in range(processors))]
    for name, (count, words) in rows.items():
        numbers = [count, *([polls if name == "MCP" else 0] * (processors - 1))]
        lines.append(f"{name}: " + " ".join(f"{number:10d}" for number in numbers) + f"   {words}")
    return "\n".join([*lines, "ERR:          0", "MIS:          0"])


def _memory(machine: Machine, gib: int) -> None:
    machine.add(
        "/proc/meminfo", f"MemTotal: {gib << 20} kB\nMemFree: {gib << 19} kB\nHugePages_Total: 0\nHugepagesize: 2048 kB"
    )


def _file_systems(machine: Machine, node: int) -> None:
    """Mount a disk, a scratch disk and a shared file system, and leave a job's segments in /dev/shm that are in use."""
    machine.add("/proc/self/mounts", "\n".join(MOUNTS))
    for place, answer_s, gib, free in (
        ("/", 0.0002, 440, 0.71),
        ("/scratch", 0.0003, 890, 0.22),
        ("/home", 0.004, 9000, 0.4),
    ):
        machine.calls["file_systems"][place] = {
            "answer in s": answer_s * (1 + node / 10),
            "size in bytes": gib * _GIB,
            "free bytes": int(gib * _GIB * free) - node * _GIB,
            "inodes": gib << 16,
            "free inodes": gib << 15,
        }
    machine.calls["shared_memory"] = {
        "nccl-yX2pQr": {"bytes": 9 << 20, "age in s": 86_400.0, "owner": 1000},  # too little to be missed
        f"sm_segment.node{node}.1000.5f0d0000.0": {"bytes": 128 << 20, "age in s": 4000.0, "owner": 1000},
        "postgres-cache": {"bytes": 512 << 20, "age in s": 86_400.0, "owner": -1},
    }
    segment = f"/dev/shm/sm_segment.node{node}.1000.5f0d0000.0"  # noqa: S108 - a record
    machine.add("/proc/5012/maps", f"7f1c40000000-7f1c48000000 rw-s 00000000 00:1a 9 {segment}")


def _board(machine: Machine, node: int, sockets: int) -> None:
    machine.add("/sys/class/dmi/id/sys_vendor", "Supermicro")
    machine.add("/sys/class/dmi/id/product_name", f"SYS-{sockets}21")
    machine.add("/sys/class/dmi/id/bios_version", "2.4")
    machine.add("/sys/class/dmi/id/board_serial", f"WM{node:010d}")
    for number in range(sockets * MODULES):
        place = f"P{number // MODULES + 1}-DIMM{'ABCDEFGH'[number % MODULES]}1"
        machine.binary[f"{DMI}/17-{number}/raw"] = memory_module(place, f"{node:02d}{number:02d}AF31", 64)
        base = f"{EDAC}/mc{number // MODULES}/dimm{number % MODULES}"
        machine.add(f"{base}/dimm_label", place)
        machine.add(f"{base}/dimm_ce_count", (node * 7 + number) % 3)  # the total of a healthy one need not be 0
        machine.add(f"{base}/dimm_ue_count", 0)


def memory_module(place: str, serial: str, gib: int) -> bytes:
    """Return a structure of type 17 (SMBIOS 2.8) as the kernel shows it."""
    head = bytearray(0x28)
    head[0], head[1] = 17, len(head)
    struct.pack_into("<H", head, 0x0C, 0x7FFF)
    struct.pack_into("<I", head, 0x1C, gib << 10)
    head[0x10], head[0x17], head[0x18], head[0x1A] = 1, 2, 3, 4
    words = (place, "Micron Technology", serial, "MTC40F2046S1RC48BA1")
    return bytes(head) + b"".join(word.encode() + b"\0" for word in words) + b"\0"


def _disk(machine: Machine, node: int) -> None:
    base = "/sys/block/nvme0n1/device"
    machine.add(f"{base}/model", "SAMSUNG MZQL2960HCJR-00A07")
    machine.add(f"{base}/serial", f"S64FNE0T{node:06d}")
    machine.add(f"{base}/firmware_rev", "GDC5902Q")
    machine.add(f"{base}/state", "live")
    machine.add(f"{NVME}/class", "0x010802")
    machine.add(f"{NVME}/aer_dev_correctable", f"RxErr 0\nBadTLP {node}\nTOTAL_ERR_COR {node}")
    log = {"critical_warning": 0, "percentage_used": 3, "media_errors": node % 2}
    log |= {"available_spare": 100, "available_spare_threshold": 10}
    found = {"smart_status": {"passed": True}, "nvme_smart_health_information_log": log}
    machine.tools[SMART] = Answer(json.dumps(found))
    array = "md0 : active raid1 nvme2n1[1] nvme1n1[0]\n      937560384 blocks super 1.2 [2/2] [UU]"
    machine.add("/proc/mdstat", f"Personalities : [raid1]\n{array}")


def _sensors(machine: Machine) -> None:
    machine.add("/dev/ipmi0", "")
    rows = ("CPU1 Temp        | 48 degrees C      | ok", "FAN1             | 8400 RPM          | ok")
    machine.tools[SDR] = Answer("\n".join((*rows, "FAN9             | no reading        | ns")) + "\n")
    machine.tools[SEL_CLOCK] = Answer(time.strftime("%m/%d/%Y %H:%M:%S\n", time.gmtime()))
    machine.tools[SEL] = Answer("   1 | 01/02/2020 | 03:04:05 | Power Unit PWR | Power off/down | Asserted\n")
