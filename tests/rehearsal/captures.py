"""Captures of other projects: each goes through the product's own reader, and must give what is known of it.

They lie beside the repository, where ``INDEX.md`` names the project, commit and licence of each. Some are in
tests/data/captures as well, and are read everywhere. The others are left out where they are missing.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gpu_parts
import rehearsal
import yaml
from clusterctl.analysis import rank_evidence
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import HardwareLooks
from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import FlightGroup
from clusterctl.support import content
from clusterctl.validation.checks import parsers
from network_parts import RDMA
from recorded_machine import Answer, Machine

sys.path.append(str(content.role_files("validation")))
import flight_record
import gpu_state
from node_look import gpu as node_gpu

BESIDE = Path(__file__).parents[3] / "shared" / "captures"
_KEPT = Path(__file__).parents[1] / "data" / "captures"
_LINE_S = 0.01  # between two lines of a kernel's log
_STAMP = re.compile(r"(kern +:\w+ *: )?(\[[^]]+\]|\d{4}-\d\d-\d\dT\S+) ?")
_CA = re.compile(r"^CA '(\w+)'\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE)
_PCI = "/sys/bus/pci/devices"
_VENDORS = {"NVIDIA": "0x10de", "Mellanox": "0x15b3"}
_CLASSES = {"3D controller": "0x030200", "PCI bridge": "0x060400", "Bridge": "0x068000"}


class Seen(NamedTuple):
    """How many things a reader found in a capture, and what the product says is wrong with them."""

    count: int
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """A capture, the reader that it is for, how many things are in it, and what is known to be wrong with them."""

    path: str
    of: str
    read: Callable[[str], Seen]
    count: int
    causes: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether the capture can be read on this machine."""
        return _kept(self.path).exists() or (BESIDE / self.path).exists()

    def wrong(self) -> list[str]:
        """Return what the product misses, and what it finds where nothing is wrong."""
        seen = self.read(self.path)
        wrong = [f"{seen.count} were read, and {self.count} are there"] if seen.count != self.count else []
        wrong += [f"missed: {cause}" for cause in self.causes if not any(cause in one for one in seen.causes)]
        return wrong + [one for one in seen.causes if not any(cause in one for cause in self.causes)]


def text(path: str) -> str:
    """Return what was captured."""
    kept = _kept(path)
    data = gzip.decompress(kept.read_bytes()) if kept.exists() else (BESIDE / path).read_bytes()
    return data.decode("utf-8")


def _kept(path: str) -> Path:
    return _KEPT / f"{Path(path).name}.gz"


# --- doctor's look at a machine and its rules -------------------------------------------------------------------------


def _judged(kind: str, machine: Machine, *peers: Machine) -> Seen:
    """Return how many devices of a kind doctor reads of the first machine, and what it finds on all of them."""
    machines = {f"node{number}": one for number, one in enumerate((machine, *peers), start=1)}
    hardware = {name: rehearsal.looks(one, one) for name, one in machines.items()}
    return _found(kind, hardware)


def _found(kind: str, hardware: dict[str, HardwareLooks]) -> Seen:
    view = View(hosts=tuple(Host(name, "10.0.0.1") for name in hardware), nodes={}, hardware=hardware)
    causes = tuple(f"{', '.join(one.hosts)}: {one.cause}" for one in registry.diagnose(view))
    return Seen(len(hardware["node1"].now.devices(kind)), causes)


def _on_own_bus(machine: Machine, number: int, address: str) -> None:
    """Add the place on the PCI bus, which was not captured, of a GPU that the driver has taken."""
    device = f"devices/pci0000:00/{address}"
    machine.links[f"{_PCI}/{address}"] = f"../../../{device}"
    machine.links[f"/sys/{device}/driver"] = "../../../bus/pci/drivers/nvidia"
    for name, value in (("vendor", "0x10de"), ("class", "0x030200")):
        machine.add(f"/sys/{device}/{name}", value)
    machine.add(f"/proc/driver/nvidia/gpus/{address}/information", f"Device Minor: \t {number}")
    machine.add(f"/dev/nvidia{number}", "")


def gpus(path: str) -> Seen:
    """Read an answer to ``nvidia-smi -q -x``."""
    machine = Machine()
    machine.tools[gpu_parts.QUERY] = Answer(text(path))
    for number, address in enumerate(re.findall(r'<gpu id="0000(\S+)"', machine.tools[gpu_parts.QUERY].text)):
        _on_own_bus(machine, number, address.lower())
    return _judged("gpu", machine)


def _linked(said: str) -> Machine:
    """Return a machine whose ``nvidia-smi nvlink -s`` said this."""
    machine = Machine()
    machine.tools[gpu_parts.LINKS] = Answer(said)
    machine.tools[gpu_parts.LINK_ERRORS] = Answer(re.sub(r"Link (\d+): .*", r"Link \1: Replay Errors: 0", said))
    for number, uuid in re.findall(r"GPU (\d+): .*\(UUID: (\S+)\)", said):
        machine.add(f"/proc/driver/nvidia/gpus/0000:{int(number) + 7:02x}:00.0/information", f"GPU UUID: {uuid}")
    return machine


def links(path: str, beside: str = "") -> Seen:
    """Read an answer to ``nvidia-smi nvlink -s``; of three nodes, two say what stands beside it."""
    return _judged("nvlink", _linked(text(path)), *[_linked(text(beside or path))] * 2)


def log(path: str) -> Seen:
    """Read a log of the kernel, its last line a moment ago."""
    lines = [_STAMP.sub("", line, count=1) for line in text(path).splitlines()]
    machine = Machine()
    machine.events = [((len(lines) - number) * _LINE_S, line) for number, line in enumerate(lines)]
    looks = rehearsal.looks(machine, machine)
    return Seen(len(looks.now.events), _found("", {"node1": looks}).causes)


def _ported(said: str) -> Machine:
    """Return a machine with the RDMA ports that ``ibstat`` listed; the form is that of sysfs."""
    machine = Machine()
    for name, own in _CA.findall(said):
        told = dict(re.findall(r"^\s+([\w ]+): (.+)$", own, re.MULTILINE))
        layer, rate = told["Link layer"], told["Rate"]
        files = {"fw_ver": told["Firmware version"], "hca_type": told["CA type"], "board_id": told["CA type"]}
        files["node_guid"] = ":".join(re.findall("....", told["Node GUID"].removeprefix("0x")))
        port = {"state": f"4: {told['State'].upper()}", "phys_state": f"5: {told['Physical state']}"}
        port |= {"rate": f"{rate} Gb/sec", "link_layer": layer, "sm_lid": told["SM lid"]}
        files |= {f"ports/1/{file}": value for file, value in port.items()}
        for file, value in files.items():
            machine.add(f"{RDMA}/{name}/{file}", value)
        machine.links[f"{RDMA}/{name}/device"] = f"../../../0000:{name[5:]:0>2}:00.0"
    return machine


def ports(path: str, beside: str = "") -> Seen:
    """Read an answer to ``ibstat``; of three nodes, two say what stands beside it."""
    said = text(path)
    *_, (_name, own) = _CA.findall(said)  # a device that has vanished was like the others
    gone = re.compile(r"^ibpanic: .* '(\w+)' failed.*", re.MULTILINE)
    whole = gone.sub(rf"CA '\1'\n{own}", text(beside or path))
    return _judged("rdma_port", _ported(said), *[_ported(whole)] * 2)


def bus(path: str) -> Seen:
    """Read the GPUs and RDMA cards of ``lspci``, with the links and the access control of the bridges above them."""
    machine = Machine()
    blocks = re.findall(r"^(?=\S+:\S\S\.\d )(\S+) (\S.*(?:\n[ \t]+\S.*)*)", text(path), re.MULTILINE)
    devices = {address if address.count(":") > 1 else f"0000:{address}": said for address, said in blocks}
    above = {
        f"{address[:4]}:{found.group(1)}": address
        for address, said in devices.items()
        if (found := re.search(r"secondary=(\w\w)", said))
    }
    for address, said in devices.items():
        _on_bus(machine, address, said, above)
    return _judged("gpu", machine)


def _on_bus(machine: Machine, address: str, said: str, above: dict[str, str]) -> None:
    way = [address]
    while (bridge := above.get(way[0][:7])) is not None:
        way.insert(0, bridge)
    folder = f"/sys/devices/pci0000:00/{'/'.join(way)}"
    machine.links[f"{_PCI}/{address}"] = f"../../../{folder.removeprefix('/sys/')}"
    machine.add(f"{folder}/uevent", f"PCI_SLOT_NAME={address}")
    kind, _, name = said.partition(": ")
    machine.add(f"{folder}/class", _CLASSES.get(kind.partition(" [")[0], "0x020000"))
    machine.add(f"{folder}/vendor", next((known for word, known in _VENDORS.items() if name.startswith(word)), "0x1"))
    for word, pattern in (("max", r"LnkCap:\s.*"), ("current", r"LnkSta:\s.*")):
        if found := re.search(pattern + r"Speed ([\d.]+)GT/s.*Width x(\d+)", said):
            machine.add(f"{folder}/{word}_link_speed", f"{float(found.group(1)):.1f} GT/s PCIe")
            machine.add(f"{folder}/{word}_link_width", found.group(2))
    if found := re.search(r"NUMA node: (\d+)", said):
        machine.add(f"{folder}/numa_node", found.group(1))
    if kind.startswith("PCI bridge"):
        control = re.search(r"ACSCtl:\s(.*)", said)
        machine.files[f"{folder}/config"] = gpu_parts.config(0x1D if control and "ReqRedir+" in control.group(1) else 0)
    if kind.startswith("3D controller: NVIDIA") or (kind == "3D controller" and name.startswith("NVIDIA")):
        machine.links[f"{folder}/driver"] = "../../../bus/pci/drivers/nvidia"
    if name.startswith("Mellanox") and kind.startswith(("Ethernet", "Infiniband")):
        number = sum(path.startswith(RDMA) for path in machine.links)
        machine.links[f"{RDMA}/mlx5_{number}/device"] = f"../../../{address}"


def arrays(path: str) -> Seen:
    """Read /proc/mdstat."""
    machine = Machine()
    machine.files["/proc/mdstat"] = text(path)
    return _judged("array", machine)


# --- readers of the checks, and of a job that stands still ------------------------------------------------------------


def _section(said: str, command: str) -> Iterator[str]:
    """Yield what a command printed, each time that a file of nvidia_gpu_exporter has it."""
    for part in re.split(r"^# \$ ", said, flags=re.MULTILINE)[1:]:
        line, _, rest = part.partition("\n")
        if line.startswith(command):
            yield rest.partition("\n")[2].partition("\n\n\n")[0]


def exported(path: str) -> Seen:
    """Read the state of a GPU at rest and under load, its NVLinks and its MIG instances, as several tools print them.

    The columns are those that the check asks for, without units.
    """
    said = text(path)
    seen = _judged("nvlink", _linked(next(_section(said, "nvidia-smi nvlink -s"))))
    (instances,) = [node_gpu.read_instance_list(one) for one in _section(said, "nvidia-smi -L")]
    names = sum(map(len, instances.values()))
    causes, looks = [*seen.causes], 0
    for table in _section(said, "nvidia-smi --query-gpu=timestamp"):
        head, row = (dict(enumerate(one)) for one in csv.reader(table.splitlines(), skipinitialspace=True))
        cells = {name.partition(" [")[0]: row[at] for at, name in head.items()}
        cells["clocks.sm"] = cells["clocks.current.sm"]  # the same column has two names
        wanted = [cells[name] for name in (*gpu_state.FIELDS, gpu_state.MASKS[-1])]
        (gpu,) = gpu_state.parsed(", ".join(re.sub(r" (MHz|W)$", "", one) for one in wanted))
        looks += None not in astuple(gpu)
        causes += [gpu.words] if gpu.mask & gpu_state.HARDWARE else []
    return Seen(seen.count + names + looks, tuple(causes))


def sizes(path: str) -> Seen:
    """Read the table of nccl-tests."""
    try:
        return Seen(len({one.size_bytes for one in parsers.parse_nccl_tests(text(path))}), ())
    except parsers.UnreadableError as error:
        return Seen(0, (str(error),))


def ras(path: str) -> Seen:
    """Read what RAS said of two nodes with eight processes each, of which it names one."""
    lines = text(path).splitlines()
    found = rank_evidence.behind_by_ras(lines, lambda _node, pid: {3534512: 3}.get(pid), 16)
    return Seen(16, (f"rank {found.ranks}: {found.words}",) if found else ())


def flights(path: str) -> Seen:
    """Read the flight records of all ranks of a job."""
    records = [(BESIDE / path / f"_dump_{rank}").read_bytes() for rank in range(16)]
    flown = {
        rank: [FlightGroup(**one) for one in flight_record.groups(flight_record.plain(data))]
        for rank, data in enumerate(records)
    }
    found = rank_evidence.behind(flown)
    return Seen(len(flown), (f"rank {found.ranks}: {found.words}",) if found else ())


def sparks(path: str) -> Seen:
    """Read the facts of two DGX Sparks with this netplan; their addresses are made up, and the LAN has 10 Gb/s."""
    names = list(yaml.safe_load(text(path))["network"]["ethernets"])
    nodes = {f"spark{number}": {"interfaces": list(_interfaces(number, names)), "routes": []} for number in (1, 2)}
    best = content.module_util("fabric_rules").candidates(nodes).networks[0]
    return Seen(len(names), () if best.key == "169.254.0.0/16" else (f"the best network is {best}",))


def _interfaces(number: int, names: Iterable[str]) -> Iterator[dict[str, object]]:
    up = {"kind": "physical", "up": True, "carrier": True, "mtu": 1500, "master": ""}
    for at, name in enumerate(("enP7s7", *names)):
        address, prefix, scope = (f"169.254.{at}.{number}", 16, "link") if at else (f"192.168.1.{number}", 24, "global")
        entry = {"family": 4, "address": address, "prefix": prefix, "scope": scope}
        yield {**up, "name": name, "speed_mbps": 200_000 if at else 10_000, "addresses": [entry]}


_GPUD, _SMI, _EXPORTER = "leptonai-gpud", "influxdata-telegraf", "utkuozdemir-nvidia_gpu_exporter"
_A100 = f"{_GPUD}/nvidia-smi.nvlink.status.a100"
_ACTIVE = f"{_GPUD}/ibstat.47.0.h100.all.active.1"
_RECORDS = "NVIDIA-nvidia-resiliency-ext"

CAPTURES = (
    Capture(f"{_SMI}/rtx-4000-sff-ada-v13.xml", "nvidia-smi -q -x", gpus, 1),
    Capture(f"{_SMI}/a100-sxm4-v12.xml", "nvidia-smi -q -x", gpus, 1),
    Capture(f"{_SMI}/tesla-t4.xml", "nvidia-smi -q -x", gpus, 1),
    Capture("NVIDIA-aicr/gpu.xml", "nvidia-smi -q -x", gpus, 8),
    Capture(f"{_EXPORTER}/linux-x86_64__nvidia-h100-mig__590.48.01.txt", "GPU at rest and under load", exported, 6),
    Capture(f"{_EXPORTER}/linux-x86_64__nvidia-l40s__595.80.txt", "GPU at rest and under load", exported, 2),
    Capture(f"{_EXPORTER}/linux-x86_64__nvidia-h200__590.48.01.txt", "GPU at rest and under load", exported, 3),
    Capture(_A100, "nvidia-smi nvlink -s", links, 8),
    Capture(
        "Azure-azurehpc-health-checks/bad_nvlink_status.txt",
        "nvidia-smi nvlink -s",
        partial(links, beside=_A100),
        1,
        ("node1: the GPU 0000:0d:00.0 has 0 NVLinks up, and most have 12",),
    ),
    Capture(
        f"{_GPUD}/dmesg-with-xid-119.log",
        "kernel's log",
        log,
        5,
        ("node1: the kernel's log has Xid 119 of GPU 0000:9b:00.0 5 times",),
    ),
    Capture(
        f"{_GPUD}/dmesg.0.log",
        "kernel's log",
        log,
        11,
        tuple(f"node1: the kernel's log has Xid {number} of GPU 0000:19:00.0" for number in (48, 63, 94)),
    ),
    Capture(f"{_GPUD}/dmesg.decode.iso.log.1", "kernel's log", log, 3),
    Capture(
        f"{_GPUD}/ibstat.47.0.h100.some.down.with.polling.1",
        "ibstat",
        partial(ports, beside=_ACTIVE),
        12,
        (
            "node1: RDMA mlx5_11/1 is DOWN (Polling), and ACTIVE on node[2-3]",
            "node1: RDMA mlx5_5/1 is DOWN (Disabled), and ACTIVE on node[2-3]",
        ),
    ),
    Capture(_ACTIVE, "ibstat", ports, 12),
    Capture(
        f"{_GPUD}/ibstat.39.0.a100.failed.ibpanic.exit-255.0",
        "ibstat",
        ports,
        8,
        ("node1: 8 RDMA devices, and 9 on most nodes; missing: mlx5_8",),
    ),
    Capture(f"{_GPUD}/lspci-vvv", "lspci", bus, 8),
    Capture(f"{_GPUD}/lspci.gb200", "lspci", bus, 4),
    Capture(
        "prometheus-procfs/mdstat",
        "mdstat",
        arrays,
        11,
        tuple(
            f"the array {one}"
            for one in ("md4 is inactive", "md6 has 1 of 2 m", "md7 has 3 of 4 m", "md42 has 2 of 3 m")
        ),
    ),
    Capture("microsoft-superbenchmark/nccl_allreduce.log", "nccl-tests", sizes, 33),
    Capture("ROCm-cvs/rccl_v2283_text_degraded_2node.txt", "RAS", ras, 16, ("rank (3,): does not answer",)),
    Capture("NVIDIA-dgx-spark-playbooks/cx7-netplan.yaml", "netplan", sparks, 2),
    Capture(
        f"{_RECORDS}/lock_gil_1st", "flight recorder", flights, 16, ("rank (9, 14): has not called all_to_all #45265",)
    ),
    Capture(
        f"{_RECORDS}/gpu_error_1st",
        "flight recorder",
        flights,
        16,
        ("rank (12, 14): is still in a call before all_to_all #20537",),
    ),
)
