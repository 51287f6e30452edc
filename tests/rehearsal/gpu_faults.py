"""Faults of GPUs, of the links between them and of their way to the network, planted one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fault import Fault, edits
from gpu_parts import LINK_ERRORS, LINKS, MANAGER, QUERY, cards, config, folder, gpus, kind_of, slot
from recorded_machine import Answer, Machine

_GPUS = ("h100-sxm", "a100-sxm", "l40s-pcie")
_SXM = ("h100-sxm", "a100-sxm")
_VICTIM = 1  # of the GPUs
_AGE_S = 600.0


def victim(machine: Machine) -> str:
    """Return the GPU that gets the fault."""
    return gpus(kind_of(machine))[_VICTIM]


def set_for(machine: Machine, device: str, old: str, new: str) -> None:
    """Change what the query tool says of one GPU."""
    answer = machine.tools[QUERY]
    head, mark, rest = answer.text.partition(f'<gpu id="0000{device.upper()}">')
    own, end, others = rest.partition("</gpu>")
    assert old in own, f"{device}: {old}"
    answer.text = head + mark + own.replace(old, new, 1) + end + others


def _log(text: str, times: int = 1) -> Callable[[Machine, int], None]:
    """Write lines to the kernel's log; ``{bus}`` is the GPU's address as the driver writes it."""

    def plant(machine: Machine, _look: int) -> None:
        device = victim(machine)
        line = text.format(bus=device.removesuffix(".0"), device=device)
        machine.events += [(_AGE_S + number, line) for number in range(times)]

    return plant


def says(old: str, new: str) -> Callable[[Machine, int], None]:
    """Change what the query tool says of the GPU with the fault."""
    return lambda machine, _look: set_for(machine, victim(machine), old, new)


def _ecc_grows(machine: Machine, look: int) -> None:
    if look:
        name = "dram_uncorrectable"
        set_for(machine, victim(machine), f"<{name}>0<", f"<{name}>3<")


def _corrected_grow(machine: Machine, look: int) -> None:
    if look:
        for name, count in (("dram_correctable", 900), ("sram_correctable", 30)):
            set_for(machine, victim(machine), f"<{name}>0<", f"<{name}>{count}<")


def _pages_retired(machine: Machine, look: int) -> None:
    """Retire a page, as GPUs before Ampere do."""
    count = f"<double_bit_retirement><retired_count>{look}</retired_count></double_bit_retirement>"
    set_for(machine, victim(machine), "<retired_pages>", f"<retired_pages>{count}")


def _link_down(machine: Machine, _look: int) -> None:
    answer = machine.tools[LINKS]
    head, mark, rest = answer.text.partition(f"GPU {_VICTIM}: ")
    line = next(line for line in rest.splitlines() if line.startswith("\t Link 5: "))
    answer.text = head + mark + rest.replace(line, "\t Link 5: <inactive>", 1)


def _links_inactive(machine: Machine, _look: int) -> None:
    """Have a GPU tell what an A100 did: test/data/bad_nvlink_status.txt of Azure/azurehpc-health-checks."""
    answer = machine.tools[LINKS]
    head, mark, rest = answer.text.partition(f"GPU {_VICTIM}: ")
    name, _, rest = rest.partition("\n")
    after = rest.partition("\nGPU ")
    said = "NVML: Unable to retrieve NVLink information as all links are inactive"
    answer.text = f"{head}{mark}{name}\n{said}{after[1]}{after[2]}"


def _link_errors(machine: Machine, look: int) -> None:
    if look:
        answer = machine.tools[LINK_ERRORS]
        head, mark, rest = answer.text.partition(f"GPU {_VICTIM}: ")
        answer.text = head + mark + rest.replace("Link 4: Replay Errors: 0", "Link 4: Replay Errors: 17", 1)


def _link_slow(machine: Machine, _look: int) -> None:
    answer = machine.tools[LINKS]
    head, mark, rest = answer.text.partition(f"GPU {_VICTIM}: ")
    line = next(line for line in rest.splitlines() if line.startswith("\t Link 2: "))
    answer.text = head + mark + rest.replace(line, "\t Link 2: 14.062 GB/s", 1)


def _no_fabric_manager(machine: Machine, _look: int) -> None:
    del machine.files[MANAGER]


def _fabric_failed(machine: Machine, _look: int) -> None:
    for device in gpus(kind_of(machine)):
        set_for(machine, device, "<status>Success<", "<status>Insufficient Resources<")


def _narrow(machine: Machine, _look: int) -> None:
    machine.add(f"{folder(machine, victim(machine))}/current_link_width", 8)


def _slow_under_load(machine: Machine, _look: int) -> None:
    for device in gpus(kind_of(machine)):
        base = folder(machine, device)
        machine.files[f"{base}/current_link_speed"] = machine.files[f"{base}/max_link_speed"]
        set_for(machine, device, "<gpu_util>0 %<", "<gpu_util>97 %<")
    machine.add(f"{folder(machine, victim(machine))}/current_link_speed", "8.0 GT/s PCIe")


def _slow_slot(machine: Machine, _look: int) -> None:
    base = folder(machine, victim(machine)).rpartition("/")[0]
    machine.add(f"{base}/max_link_speed", "8.0 GT/s PCIe")


def _errors_of_pcie(machine: Machine, look: int) -> None:
    if look:
        machine.add(f"{folder(machine, victim(machine))}/aer_dev_correctable", "RxErr 250\nTOTAL_ERR_COR 253")


def _mismatch(machine: Machine, _look: int) -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127\n"
    for words in (QUERY, LINKS, LINK_ERRORS):
        machine.tools[words] = Answer(text, 18)


def _no_gpu_answers(machine: Machine, _look: int) -> None:
    text = f"Unable to determine the device handle for GPU1: 0000{victim(machine).upper()}: Unknown Error\n"
    machine.tools[QUERY] = Answer(text, 255)


def _gpu_not_listed(machine: Machine, _look: int) -> None:
    answer = machine.tools[QUERY]
    head, mark, rest = answer.text.partition(f'\t<gpu id="0000{victim(machine).upper()}">')
    assert mark
    answer.text = head + rest.partition("</gpu>\n")[2]


def gpu_gone(machine: Machine, look: int) -> None:
    """Take one GPU off the bus."""
    _gpu_not_listed(machine, look)
    _off_the_bus(machine, victim(machine))


def gpus_gone(machine: Machine, _look: int) -> None:
    """Take all GPUs off the bus."""
    for device in gpus(kind_of(machine)):
        _off_the_bus(machine, device)
    machine.tools[QUERY] = Answer("No devices were found\n", 6)


def _off_the_bus(machine: Machine, device: str) -> None:
    base = folder(machine, device)
    machine.files = {path: text for path, text in machine.files.items() if not path.startswith((base, _proc(device)))}
    machine.links = {path: to for path, to in machine.links.items() if not path.startswith(base)}
    del machine.links[f"/sys/bus/pci/devices/{device}"]


def _proc(device: str) -> str:
    return f"/proc/driver/nvidia/gpus/{device}"


def _throttled(machine: Machine, _look: int) -> None:
    for name in ("hw_slowdown", "hw_thermal_slowdown"):
        element = f"<clocks_event_reason_{name}>"
        set_for(machine, victim(machine), f"{element}Not Active", f"{element}Active")


def _throttled_between(machine: Machine, look: int) -> None:
    if look:
        element = "<clocks_event_reasons_counters_hw_therm_slowdown>"
        set_for(machine, victim(machine), f"{element}120000", f"{element}4120000")


def _power_cap(machine: Machine, _look: int) -> None:
    text = machine.tools[QUERY].text
    power = text.partition("<current_power_limit>")[2].partition(".")[0]
    set_for(machine, victim(machine), f"<current_power_limit>{power}", "<current_power_limit>200")


def _power_brake(machine: Machine, _look: int) -> None:
    for name in ("hw_slowdown", "hw_power_brake_slowdown"):
        element = f"<clocks_event_reason_{name}>"
        set_for(machine, victim(machine), f"{element}Not Active", f"{element}Active")


def _capped_alone(machine: Machine, _look: int) -> None:
    """Keep all GPUs of the node busy, and have one at its power cap."""
    for device in gpus(kind_of(machine)):
        base = folder(machine, device)
        machine.files[f"{base}/current_link_speed"] = machine.files[f"{base}/max_link_speed"]
        set_for(machine, device, "<gpu_util>0 %<", "<gpu_util>98 %<")
    element = "<clocks_event_reason_sw_power_cap>"
    set_for(machine, victim(machine), f"{element}Not Active", f"{element}Active")


def _recovery(action: str) -> Callable[[Machine, int], None]:
    """Have the driver ask for an action, which drivers from 565 on tell."""
    return says("<gpu_recovery_action>None", f"<gpu_recovery_action>{action}")


def _left_over(machine: Machine, _look: int) -> None:
    element = "<pid>4711</pid><type>C</type><process_name>/usr/bin/python3</process_name><used_memory>71022 MiB"
    process = f"<processes><process_info>{element}</used_memory></process_info>"
    set_for(machine, victim(machine), "<processes>", process)
    machine.add("/proc/4711/stat", "4711 (python3) S 1 4711 4711 0 -1 4194304 0 0 0 0")
    machine.add("/proc/4711/cgroup", "0::/user.slice/user-1000.slice/session-3.scope")


def _acs(machine: Machine, _look: int) -> None:
    port = folder(machine, victim(machine)).rpartition("/")[0]
    machine.files[f"{port}/config"] = config(0x1D)


def _iommu(machine: Machine, _look: int) -> None:
    for device in gpus(kind_of(machine)):
        machine.add(f"{folder(machine, device)}/iommu_group/type", "DMA-FQ")


_no_peermem = edits("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n", "")


def _card_far_away(machine: Machine, _look: int) -> None:
    machine.add(f"{folder(machine, cards(machine)[0])}/numa_node", 1)


def _card_in_another_slot(machine: Machine, _look: int) -> None:
    """Move a card from the port of a PCI switch to a root port of its own."""
    card = cards(machine)[0]
    old = folder(machine, card)
    new = slot(machine, None, card, "f9")
    for path in [path for path in machine.files if path.startswith(f"{old}/")]:
        machine.files[new + path.removeprefix(old)] = machine.files.pop(path)


_XID = "NVRM: Xid (PCI:{bus}): "
_NO_PROCESS = "pid='<unknown>', name=<unknown>"
_LOGGED: tuple[tuple[str, int, tuple[str, ...], str, int, tuple[str, ...]], ...] = (
    (
        "Xid 79: a GPU fell off the bus",
        17,
        _GPUS,
        f"{_XID}79, {_NO_PROCESS}, GPU has fallen off the bus.",
        1,
        ("Xid 79", "restart it"),
    ),
    (
        "Xid 48: an uncorrectable ECC error",
        18,
        _GPUS,
        f"{_XID}48, {_NO_PROCESS}, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
        2,
        ("Xid 48", "2 times", "reset the GPU"),
    ),
    (
        "Xid 63: a row is to be remapped",
        18,
        _GPUS,
        f"{_XID}63, {_NO_PROCESS}, Row Remapper: New row (0x12bac1c3e0) marked for remapping, reset gpu to activate.",
        1,
        ("Xid 63", "reset"),
    ),
    (
        "Xid 64: remapping failed",
        18,
        _GPUS,
        f"{_XID}64, pid=1896, Row Remapper: Error recording row remap, reset gpu to activate.",
        1,
        ("Xid 64", "replaced"),
    ),
    (
        "Xid 74: an error of an NVLink",
        19,
        _SXM,
        f"{_XID}74, {_NO_PROCESS}, NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0)",
        1,
        ("Xid 74", "reset"),
    ),
    (
        "Xid 94: a contained memory error",
        18,
        _SXM,
        f"{_XID}94, pid=7194, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        1,
        ("Xid 94", "reset"),
    ),
    (
        "Xid 95: an uncontained memory error",
        18,
        _SXM,
        f"{_XID}95, pid=7194, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        1,
        ("Xid 95", "reset"),
    ),
    (
        "Xid 119: the GPU's system processor is silent",
        17,
        _GPUS,
        f"{_XID}119, pid=1580, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU1 GSP!",
        1,
        ("Xid 119", "reset"),
    ),
    (
        "Xid 154: the driver asks for a restart of the node",
        17,
        _GPUS,
        f"{_XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        1,
        ("Xid 154", "'Node Reboot Required'", "restart it"),
    ),
    (
        "SXid: a fatal error of an NVSwitch",
        19,
        _SXM,
        "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        1,
        ("SXid 20034", "0000:05:00.0", "'Link 48 LTSSM Fault Up'"),
    ),
    (
        "SXid: the connection of an NVSwitch is broken",
        19,
        _SXM,
        "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 20012, Non-fatal, Link 12 DL protocol",
        1,
        ("SXid 20012", "0000:05:00.0", "connections"),
    ),
    (
        "the driver cannot start a GPU",
        17,
        _GPUS,
        "NVRM: GPU {device}: RmInitAdapter failed! (0x26:0x56:1463)",
        1,
        ("could not start",),
    ),
    (
        "uncorrected PCIe errors in the log",
        20,
        _GPUS,
        "nvidia {device}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
        1,
        ("uncorrected PCIe",),
    ),
    (
        "an uncorrected machine check",
        0,
        _GPUS,
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400",
        1,
        ("machine check",),
    ),
    (
        "an uncorrected memory error",
        0,
        _GPUS,
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x7c9b5a)",
        1,
        ("memory", "MC0"),
    ),
    (
        "the kernel killed a job for lack of memory",
        0,
        _GPUS,
        "Out of memory: Killed process 2811 (python3) total-vm:812345678kB, anon-rss:512345678kB, file-rss:0kB",
        3,
        ("python3", "3 times"),
    ),
    (
        "a disk that cannot be read",
        0,
        _GPUS,
        "critical medium error, dev nvme0n1, sector 5860533168 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
        2,
        ("nvme0n1",),
    ),
    (
        "a task that hangs",
        25,
        _GPUS,
        "INFO: task python3:2811 blocked for more than 120 seconds.",
        1,
        ("python3", "blocked"),
    ),
    (
        "a link that goes up and down",
        11,
        _GPUS,
        "mlx5_core 0000:31:00.0 ens1f0np0: Link down",
        3,
        ("ens1f0np0", "3 times"),
    ),
)


def _told(check: str, *rows: tuple[Any, ...]) -> list[Fault]:
    """Return faults that change one element of the query tool: its name, its text before and after, and the words."""
    return [
        Fault(name, cause, kinds, says(f"<{element}>{old}", f"<{element}>{new}"), check, tuple(words))
        for name, cause, kinds, element, old, new, *words in rows
    ]


_SHOWN: tuple[Fault, ...] = (
    *_told(
        "ecc",
        ("a remap that waits for a reset", 18, _GPUS, "remapped_row_pending", "No", "Yes", "remapped", "reset"),
        ("a remap that failed", 18, _GPUS, "remapped_row_failure", "No", "Yes", "could not be remapped", "replaced"),
        ("more SRAM errors than allowed", 18, _GPUS, "sram_threshold_exceeded", "No", "Yes", "SRAM"),
        (
            "a page that waits to be retired",
            18,
            _GPUS,
            "pending_retirement",
            "N/A",
            "Yes",
            "waits to be retired",
            "reset",
        ),
        (
            "a page that waits to be retired, told by an older driver",
            18,
            _GPUS,
            "pending_blacklist",
            "N/A",
            "Yes",
            "waits to be retired",
            "reset",
        ),
        (
            "a GPU that must be reset, told by an older driver",
            17,
            _GPUS,
            "reset_required",
            "Requested functionality has been deprecated",
            "Yes",
            "it must be reset",
            "--gpu-reset",
        ),
    ),
    Fault(
        "the driver asks for a reset", 17, _GPUS, _recovery("GPU Reset"), "ecc", ("'GPU Reset'", "--gpu-reset -i 0000:")
    ),
    Fault("the driver asks for a restart", 17, _GPUS, _recovery("Node Reboot"), "ecc", ("'Node Reboot'", "restart it")),
    Fault("uncorrectable ECC errors grow", 18, _GPUS, _ecc_grows, "ecc", ("3 more uncorrectable",)),
    Fault("corrected ECC errors of one GPU grow", 18, _GPUS, _corrected_grow, "ecc", ("corrected 930 ECC errors",)),
    Fault("a page is retired", 18, _GPUS, _pages_retired, "ecc", ("1 more pages retired after double bit errors",)),
    Fault("an NVLink is down", 19, _SXM, _link_down, "nvlink", ("link 5",)),
    Fault("all NVLinks of a GPU are down", 19, _SXM, _links_inactive, "nvlink", ("0 NVLinks up",)),
    Fault("an NVLink is slow", 19, _SXM, _link_slow, "nvlink", ("14.062 GB/s",)),
    Fault("errors of an NVLink grow", 19, _SXM, _link_errors, "nvlink", ("link 4: 17 replay",)),
    Fault("the fabric manager does not run", 19, _SXM, _no_fabric_manager, "fabric manager", ("does not run",)),
    Fault(
        "the fabric's registration failed",
        19,
        ("h100-sxm",),
        _fabric_failed,
        "fabric manager",
        ("Insufficient Resources",),
    ),
    Fault("a PCIe link with half its lanes", 20, _GPUS, _narrow, "pcie", ("8 of 16 lanes",)),
    Fault("a PCIe link slow under load", 20, _GPUS, _slow_under_load, "pcie", ("8 of", "under load")),
    Fault("a slot set to an older generation", 20, _GPUS, _slow_slot, "pcie", ("at most 8 GT/s",)),
    Fault("errors of a PCIe link grow", 20, _GPUS, _errors_of_pcie, "pcie", ("250 more correctable",)),
    Fault("driver and library of two versions", 21, _GPUS, _mismatch, "gpus", ("mismatch",)),
    Fault("a GPU that gives no answer", 17, _GPUS, _no_gpu_answers, "gpus", ("lost",)),
    Fault("a GPU that the tool does not list", 17, _GPUS, _gpu_not_listed, "gpus", ("lost",)),
    Fault("a GPU that is not on the bus", 17, _GPUS, gpu_gone, "gpus", ("not on the PCI bus",)),
    Fault(
        "all GPUs of a node are gone",
        17,
        _GPUS,
        gpus_gone,
        "gpus",
        ("has no GPU", "most nodes with its board and memory"),
    ),
    Fault("a GPU slowed down by heat", 22, _GPUS, _throttled, "throttling", ("hardware thermal slowdown",)),
    Fault("heat slows a GPU between two looks", 22, _GPUS, _throttled_between, "throttling", ("4.0 s",)),
    Fault("the power brake slows a GPU", 22, _GPUS, _power_brake, "throttling", ("power brake", "power supplies")),
    Fault(
        "one busy GPU alone is at its power cap",
        22,
        _GPUS,
        _capped_alone,
        "throttling",
        ("software power cap", "power"),
    ),
    Fault("a power limit below the others", 22, _GPUS, _power_cap, "gpu settings", ("200 W",)),
    Fault("a process left behind holds a GPU", 23, _GPUS, _left_over, "leftovers", ("4711", "python3")),
    *_told(
        "gpu settings",
        ("persistence mode differs", 0, _GPUS, "persistence_mode", "Enabled", "Disabled", "persistence mode"),
        ("compute mode differs", 0, _GPUS, "compute_mode", "Default", "Exclusive_Process", "compute mode"),
        ("MIG mode differs", 0, _SXM, "current_mig", "Disabled", "Enabled", "MIG mode"),
        (
            "ECC is off on one GPU",
            18,
            _GPUS,
            "current_ecc",
            "Enabled",
            "Disabled",
            "ECC of the GPU",
            "is Disabled",
            "nvidia-smi -e 1",
        ),
    ),
    Fault("ACS is on between GPU and card", 14, _SXM, _acs, "gpudirect", ("ACS",)),
    Fault("the IOMMU translates", 14, _GPUS, _iommu, "gpudirect", ("IOMMU", "iommu=pt")),
    Fault("the RDMA card is on another NUMA node", 24, ("l40s-pcie",), _card_far_away, "gpudirect", ("NUMA node",)),
    Fault("an RDMA card is in another slot", 0, _SXM, _card_in_another_slot, "gpudirect", ("PCI switch", "topo -m")),
    Fault("nvidia_peermem is missing", 13, _GPUS, _no_peermem, "gpudirect", ("nvidia_peermem",)),
)

FAULTS: tuple[Fault, ...] = (
    *(
        Fault(name, cause, machines, _log(text, times), "kernel log", words)
        for name, cause, machines, text, times, words in _LOGGED
    ),
    *_SHOWN,
)
