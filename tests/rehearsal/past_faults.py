"""Changes since the last look at a node, on a cluster of two nodes, where neither neighbour is the usual one.

What a GPU's neighbours on the node would tell is planted on all GPUs of the node.
"""

from __future__ import annotations

import json

import machine_faults
import network_faults
from fault import Fault, prints, shows
from gpu_faults import gpu_gone, gpus_gone, says, set_for, victim
from gpu_parts import LINK_ERRORS, LINKS, QUERY, cards, folder, gpus, kind_of
from machine_parts import SMART
from network_faults import cards_gone
from network_parts import NET, RDMA
from recorded_machine import Machine

_SXM = ("h100-sxm", "a100-sxm")
_GPUS = (*_SXM, "l40s-pcie")
_METAL = (*_GPUS, "dual-rail-roce", "plain-ethernet")
_WIRED = _METAL
_FABRIC = _SXM
_ROCE = ("l40s-pcie", "dual-rail-roce")
_RDMA = (*_FABRIC, *_ROCE)
_CHECK = "changed"
_BEFORE = "at the last look 24 h ago"


_mtu_of_interface = shows(f"{NET}/eth0/mtu", 9000)


def _ethernet_down(machine: Machine, _look: int) -> None:
    machine.add(f"{NET}/eth0/operstate", "down")
    machine.add(f"{NET}/eth0/speed", -1)


def _narrow_gpus(machine: Machine, _look: int) -> None:
    for device in gpus(kind_of(machine)):
        machine.add(f"{folder(machine, device)}/current_link_width", 8)


def _slow_card(machine: Machine, _look: int) -> None:
    machine.add(f"{folder(machine, cards(machine)[0])}/current_link_speed", "8.0 GT/s PCIe")


def _fewer_links(machine: Machine, _look: int) -> None:
    lines = machine.tools[LINKS].text.splitlines()
    machine.tools[LINKS].text = "\n".join(
        "\t Link 5: <inactive>" if line.startswith("\t Link 5: ") else line for line in lines
    )


def _power(machine: Machine, _look: int) -> None:
    text = machine.tools[QUERY].text
    power = text.partition("<current_power_limit>")[2].partition(".")[0]
    machine.replace(QUERY, f"<current_power_limit>{power}", "<current_power_limit>200")


_mode = prints(QUERY, "<persistence_mode>Enabled", "<persistence_mode>Disabled")
_vbios = prints(QUERY, "96.00.89.00.01", "96.00.74.00.01")
_board = shows("/sys/class/dmi/id/bios_version", "0.9-old")
_card_firmware = shows(f"{RDMA}/mlx5_0/fw_ver", "20.28.1002")


def _lossless_off(machine: Machine, look: int) -> None:
    machine.replace("dcb pfc show dev ens4np0", "3:on", "3:off")
    del look


def _media_errors(machine: Machine, _look: int) -> None:
    before = json.loads(machine.tools[SMART].text)["nvme_smart_health_information_log"]["media_errors"]
    machine.replace(SMART, f'"media_errors": {before}', f'"media_errors": {before + 12}')


_uncorrectable = says("<dram_uncorrectable>0<", "<dram_uncorrectable>3<")
_corrected = says("<dram_correctable>0<", "<dram_correctable>900<")
_remapped = says("<remapped_row_unc>1<", "<remapped_row_unc>2<")


def _remapped_and_restarted(machine: Machine, _look: int) -> None:
    set_for(machine, victim(machine), "<remapped_row_corr>0<", "<remapped_row_corr>2<")
    machine.boot_id, machine.uptime_s = "0d9e6f34-0c4b-4d7e-9a43-4d8a7a5c1b02", 7_200.0


_replays = prints(LINK_ERRORS, "Link 4: Replay Errors: 0", "Link 4: Replay Errors: 17", 1)
_replays_of_pcie = says("<replay_counter>0<", "<replay_counter>20000<")


def _errors_of_pcie(machine: Machine, _look: int) -> None:
    machine.add(f"{folder(machine, cards(machine)[0])}/aer_dev_nonfatal", "UnsupReq 1\nTOTAL_ERR_NONFATAL 1")


def _throttled(machine: Machine, _look: int) -> None:
    element = "<clocks_event_reasons_counters_hw_therm_slowdown>"
    set_for(machine, victim(machine), f"{element}120000", f"{element}4120000")


FAULTS: tuple[Fault, ...] = (
    Fault(
        "of two: Ethernet at a tenth of its speed", 0, _WIRED, network_faults.tenth, _CHECK, ("speed", "eth0", _BEFORE)
    ),
    Fault("of two: another MTU of an interface", 9, _WIRED, _mtu_of_interface, _CHECK, ("MTU of eth0 is 9000", "1500")),
    Fault("of two: an interface lost its link", 11, _WIRED, _ethernet_down, _CHECK, ("eth0 is down, and was up",)),
    Fault(
        "of two: InfiniBand at half its rate", 0, _FABRIC, network_faults.half_the_rate, _CHECK, ("rate", "mlx5_0/1")
    ),
    Fault(
        "of two: InfiniBand on one lane",
        0,
        _FABRIC,
        network_faults.one_lane,
        _CHECK,
        ("lanes of mlx5_0/1 is 1", "was 4"),
    ),
    Fault("of two: another MTU of InfiniBand", 9, _FABRIC, network_faults.mtu, _CHECK, ("active MTU", "2048", "4096")),
    Fault("of two: PFC is off", 10, _ROCE, _lossless_off, _CHECK, ("PFC of ens4np0 is off, and was 3",)),
    Fault("of two: firmware of a card", 12, _RDMA, _card_firmware, _CHECK, ("firmware", "20.28.1002")),
    Fault("of two: GPUs with half their lanes", 20, _GPUS, _narrow_gpus, _CHECK, ("PCIe lanes", "is 8, and was 16")),
    Fault("of two: a card's PCIe link is slow", 20, _RDMA[:2], _slow_card, _CHECK, ("is 8, and was 32",)),
    Fault("of two: fewer NVLinks on all GPUs", 19, _SXM, _fewer_links, _CHECK, ("NVLinks up", "and was 1")),
    Fault("of two: a lower power limit on all GPUs", 22, _GPUS, _power, _CHECK, ("power limit", "is 200")),
    Fault("of two: persistence mode off on all GPUs", 0, _GPUS, _mode, _CHECK, ("persistence mode", "is Disabled")),
    Fault(
        "of two: another VBIOS on all GPUs", 0, _GPUS, _vbios, _CHECK, ("firmware", "96.00.74.00.01, and was 96.00.89")
    ),
    Fault("of two: another firmware of the board", 0, _METAL, _board, _CHECK, ("firmware of the board is 0.9-old",)),
    Fault(
        "of two: a memory module is gone", 0, _METAL, machine_faults.module_gone, _CHECK, ("number of memory modules",)
    ),
    Fault("of two: an eighth of the memory is gone", 0, _METAL, machine_faults.less_memory, _CHECK, ("memory in KiB",)),
    Fault(
        "of two: the governor is powersave", 0, _METAL, machine_faults.powersave, _CHECK, ("'governor' is powersave",)
    ),
    Fault("of two: all GPUs are gone", 17, _GPUS, gpus_gone, "gpus", ("has no GPU, and had", "24 h ago")),
    Fault("of two: all RDMA cards are gone", 12, _RDMA, cards_gone, "rdma", ("has no RDMA card, and had", "24 h ago")),
    Fault("of two: a GPU is gone", 17, _GPUS, gpu_gone, "parts", ("GPU 16500000003", "and is gone")),
    Fault("media errors grew since yesterday", 0, _METAL, _media_errors, "disks", ("12 more media errors", "24 h")),
    Fault("uncorrectable ECC errors since yesterday", 18, _GPUS, _uncorrectable, "ecc", ("3 more unc", "in 24 h")),
    Fault(
        "corrected ECC errors of one GPU since yesterday", 18, _GPUS, _corrected, "ecc", ("corrected 900", "in 24 h")
    ),
    Fault("a row remapped since yesterday", 18, _GPUS, _remapped, "ecc", ("1 more rows remapped after unc", "in 24 h")),
    Fault(
        "rows remapped since yesterday, and a restart",
        18,
        _GPUS,
        _remapped_and_restarted,
        "ecc",
        ("2 more rows", "24 h"),
    ),
    Fault("replays of an NVLink since yesterday", 19, _SXM, _replays, "nvlink", ("link 4: 17 replay errors in 24 h",)),
    Fault(
        "PCIe replays of a GPU since yesterday", 20, _GPUS, _replays_of_pcie, "pcie", ("20000 more replays in 24 h",)
    ),
    Fault(
        "uncorrected PCIe errors since yesterday", 20, _RDMA[:3], _errors_of_pcie, "pcie", ("1 more non-fatal", "24 h")
    ),
    Fault("heat slowed a GPU since yesterday", 22, _GPUS, _throttled, "throttling", ("4.0 s", "in 24 h")),
)
