"""GPUs of a recorded machine: what their driver, its query tool and the PCI bus show of healthy ones."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import NamedTuple

from recorded_machine import Answer, Machine

QUERY = "nvidia-smi -q -x"
LINKS = "nvidia-smi nvlink -s"
LINK_ERRORS = "nvidia-smi nvlink -e"
MANAGER = "/proc/3021/comm"
_DATA = Path(__file__).parents[1] / "data" / "hardware"
_CAPTURED = _DATA.parent / "gpu_h200" / "nvidia-smi-q-x.xml"
_PCI = "/sys/bus/pci/devices"
_RDMA = "/sys/class/infiniband"
_AER = {
    "aer_dev_correctable": "RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3",
    "aer_dev_nonfatal": "UnsupReq 0\nTOTAL_ERR_NONFATAL 0",
    "aer_dev_fatal": "UnsupReq 0\nTOTAL_ERR_FATAL 0",
}


class Model(NamedTuple):
    """A kind of GPU, and how a machine with it is built. A switch carries ``on_switch`` GPUs and one RDMA card."""

    name: str
    architecture: str
    buses: tuple[str, ...]
    speed: str
    generation: int
    power: int
    memory: int
    links: int
    link_speed: str
    nvswitches: int
    on_switch: int
    fabric: tuple[str, str] = ("N/A", "N/A")
    idle: tuple[str, str, int] = ("P0", "", 0)  # state, and what an idle GPU lowers its link to
    mig: str = "Disabled"


MODELS = {
    "h100-sxm": Model(
        "NVIDIA H100 80GB HBM3",
        "Hopper",
        ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db"),
        "32.0 GT/s PCIe",
        5,
        700,
        81559,
        18,
        "26.562",
        4,
        1,
        ("Completed", "Success"),
    ),
    "a100-sxm": Model(
        "NVIDIA A100-SXM4-80GB",
        "Ampere",
        ("07", "0f", "47", "4e", "87", "90", "b7", "bd"),
        "16.0 GT/s PCIe",
        4,
        400,
        81920,
        12,
        "25",
        6,
        2,
    ),
    "l40s-pcie": Model(
        "NVIDIA L40S",
        "Ada Lovelace",
        ("3b", "5e", "af", "d8"),
        "16.0 GT/s PCIe",
        4,
        350,
        46068,
        0,
        "",
        0,
        0,
        idle=("P8", "2.5 GT/s PCIe", 1),
        mig="N/A",
    ),
}


def gpus(kind: str) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs of a kind of machine."""
    return tuple(f"0000:{bus}:00.0" for bus in MODELS[kind].buses)


def kind_of(machine: Machine) -> str:
    """Return the kind of a machine by its GPUs."""
    return next(kind for kind in MODELS if f"/proc/driver/nvidia/gpus/{gpus(kind)[0]}/information" in machine.files)


def folder(machine: Machine, device: str) -> str:
    """Return the folder of a PCI device in /sys/devices."""
    return "/sys/" + machine.links[f"{_PCI}/{device}"].removeprefix("../../../")


def uuid(node: int, number: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{node:08x}-1f2e-4d3c-8b5a-{number:012x}"


def add_gpus(machine: Machine, node: int, model: str, count: int) -> None:
    """Put GPUs of a model into a machine that has its RDMA devices; the node's number makes serial numbers its own."""
    found = MODELS[model]
    _add_cards(machine, count // max(found.on_switch, 1) if found.on_switch else 1)
    for number, device in enumerate(gpus(model)):
        switch = number // found.on_switch if found.on_switch else None
        base = slot(machine, switch, device, f"e{number}")
        _gpu(machine, base, found)
        text = f"Model: \t\t {found.name}\nIRQ:   \t\t 57\nGPU UUID: \t {uuid(node, number)}\nDevice Minor: \t {number}"
        machine.add(f"/proc/driver/nvidia/gpus/{device}/information", text)
        machine.add(f"/dev/nvidia{number}", "")
    for number, card in enumerate(cards(machine)):
        _card(machine, slot(machine, number if found.on_switch else None, card, f"f{number}"))
    for number in range(found.nvswitches):
        machine.add(f"{_PCI}/0000:0{number}:02.0/vendor", "0x10de")
        machine.add(f"{_PCI}/0000:0{number}:02.0/class", "0x068000")
    _driver(machine)
    if found.nvswitches:
        machine.add(MANAGER, "nv-fabricmanage")
    query(machine, node, model)
    nvlinks(machine, node, model)


def _add_cards(machine: Machine, count: int) -> None:
    """Make RDMA devices for a machine that has none."""
    if not cards(machine):
        for number in range(count):
            machine.links[f"{_RDMA}/mlx5_{number}/device"] = f"../../../0000:a{number}:00.0"


def cards(machine: Machine) -> list[str]:
    """Return the PCI addresses of the RDMA devices of a machine."""
    links = {path: target for path, target in machine.links.items() if path.startswith(f"{_RDMA}/")}
    return sorted({target.rpartition("/")[2] for path, target in links.items() if path.endswith("/device")})


def slot(machine: Machine, switch: int | None, device: str, own: str) -> str:
    """Put a device below a port of a PCI switch, or below a root port of its own; return its folder."""
    above = [f"0000:{own}:01.0"]
    if switch is not None:
        above = [f"0000:c{switch}:01.0", f"0000:d{switch}:00.0", f"0000:{own}:0{switch % 8}.0"]
    path = "/sys/devices/pci0000:00"
    for bridge in above:
        path += f"/{bridge}"
        machine.add(f"{path}/uevent", f"DRIVER=pcieport\nPCI_SLOT_NAME={bridge}")
        machine.add(f"{path}/max_link_width", 16)
        machine.add(f"{path}/max_link_speed", "32.0 GT/s PCIe")
        machine.links[f"{_PCI}/{bridge}"] = "../../../" + path.removeprefix("/sys/")
    machine.files[f"{path}/config"] = config(0)
    path += f"/{device}"
    machine.links[f"{_PCI}/{device}"] = "../../../" + path.removeprefix("/sys/")
    machine.add(f"{path}/uevent", f"PCI_SLOT_NAME={device}")
    return path


def config(control: int) -> str:
    """Return the configuration space of a switch's port, whose only extended capability is access control."""
    return "\0" * 0x100 + "\x0d\0\x01\0" + "\x5f\0" + chr(control) + "\0" + "\0" * 8


def _gpu(machine: Machine, base: str, model: Model) -> None:
    files = {"vendor": "0x10de", "class": "0x030200", "numa_node": "0", "iommu_group/type": "identity", **_AER}
    files |= {"current_link_width": "16", "max_link_width": "16", "max_link_speed": model.speed}
    files["current_link_speed"] = model.idle[1] or model.speed
    for name, text in files.items():
        machine.add(f"{base}/{name}", text)
    machine.links[f"{base}/driver"] = "../../../../bus/pci/drivers/nvidia"


def _card(machine: Machine, base: str) -> None:
    files = {"vendor": "0x15b3", "class": "0x020700", "numa_node": "0", **_AER}
    files |= {"current_link_width": "16", "max_link_width": "16"}
    files |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    for name, text in files.items():
        machine.add(f"{base}/{name}", text)


def _driver(machine: Machine) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Sat May 24 07:24:13 UTC 2025"
    machine.add("/proc/driver/nvidia/version", version)
    loaded = machine.files.get("/proc/modules", "")
    own = "".join(f"{name} 16384 0 - Live 0x0\n" for name in ("nvidia_peermem", "nvidia", "mlx5_core"))
    machine.files["/proc/modules"] = loaded + own
    machine.files.setdefault("/proc/sys/kernel/osrelease", "5.15.0-113-generic\n")
    machine.add("/proc/2/comm", "kthreadd")


def _template(form: str) -> string.Template:
    """Return what a driver tells of one GPU; the newest form is that of a captured machine."""
    if form != "v13":
        return string.Template((_DATA / f"nvidia-smi-gpu.{form}.xml").read_text(encoding="utf-8"))
    text = re.search(r"\t<gpu .*</gpu>", _CAPTURED.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    found = text.group()
    for old, new in (
        (r"00000000:00:06\.0", "0000$device"),
        (r">NVIDIA H200<", ">$model<"),
        (r">Hopper<", ">$architecture<"),
        (r"<serial>\d+", "<serial>$serial"),
        (r"<uuid>[^<]+", "<uuid>$uuid"),
        (r"<minor_number>0", "<minor_number>$number"),
        (r"_mig>Disabled", "_mig>$mig"),
        (r"(max\w*_link_gen)>5", r"\1>$generation"),
        (r"(current\w*_link_gen)>5", r"\1>$generation_now"),
        (r"(_power_limit)>700\.00", r"\1>$power.00"),
        (r"<state>N/A(</state>\s*<status>)N/A", r"<state>$fabric_state\1$fabric_status"),
    ):
        found, count = re.subn(old, new, found)
        assert count, old
    return string.Template(found)


def query(machine: Machine, node: int, kind: str, form: str = "v12") -> None:
    """Record what ``nvidia-smi -q -x`` prints."""
    model = MODELS[kind]
    template = _template(form)
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{form}.dtd">',
        "<nvidia_smi_log>",
    ]
    lines += [f"\t<driver_version>575.57.08</driver_version>\n\t<attached_gpus>{len(model.buses)}</attached_gpus>"]
    for number, device in enumerate(gpus(kind)):
        lines.append(
            template.substitute(
                device=device.upper(),
                model=model.name,
                architecture=model.architecture,
                serial=1_650_000_000_000 + node * 100 + number,
                uuid=uuid(node, number),
                number=number,
                vbios="96.00.89.00.01",
                generation=model.generation,
                generation_now=model.idle[2] or model.generation,
                pstate=model.idle[0],
                memory=model.memory,
                memory_temperature="40 C" if model.links else "N/A",
                power=model.power,
                fabric_state=model.fabric[0],
                fabric_status=model.fabric[1],
                mig=model.mig,
            )
        )
    machine.tools[QUERY] = Answer("\n".join([*lines, "</nvidia_smi_log>", ""]))


def nvlinks(machine: Machine, node: int, kind: str) -> None:
    """Record what ``nvidia-smi nvlink`` prints of states and errors."""
    model = MODELS[kind]
    states: list[str] = []
    errors: list[str] = []
    for number in range(len(model.buses)):
        head = f"GPU {number}: {model.name} (UUID: {uuid(node, number)})"
        states.append(head)
        errors.append(head)
        if not model.links:
            states.append("Device does not have or support Nvlink")
        for link in range(model.links):
            states.append(f"\t Link {link}: {model.link_speed} GB/s")
            errors += [f"\t Link {link}: {what} Errors: {link % 2}" for what in ("Replay", "Recovery", "CRC")]
            errors.append("")
    machine.tools[LINKS] = Answer("\n".join(states) + "\n")
    machine.tools[LINK_ERRORS] = Answer("\n".join(errors) + "\n")
