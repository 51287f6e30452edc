"""Healthy machines whose GPUs or tools show themselves in other ways, and tools that fail: no finding, no crash."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import captures
import gpu_parts
import pytest
import recorded_machine
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from gpu_faults import set_for, victim
from machine_kinds import MACHINES
from recorded_machine import Answer, Machine

KINDS = tuple(gpu_parts.MODELS)
CULPRIT = rehearsal.CULPRIT
NUMBER = rehearsal.NODES.index(CULPRIT) + 1
GPU_SECTIONS = ["kernel_log", "pci", "nvidia_smi", "nvlink"]


def changed(kind: str, change: Callable[[Machine], None], patience: float = rehearsal.PATIENCE) -> View:
    """Return four nodes, of which one was changed; its GPUs alone are looked at."""
    machine = MACHINES[kind](NUMBER)
    change(machine)
    with recorded_machine.folder() as folder:
        root, tools = machine.write(Path(folder))
        request = {"root": str(root), "tools": str(tools), "patience": patience}
        first = Hardware.model_validate(rehearsal.record.collect(request))
        later = Hardware.model_validate(rehearsal.record.collect({**request, "sections": GPU_SECTIONS}))
    later = later.model_copy(update={"time": first.time + rehearsal.BETWEEN_S})
    return rehearsal.view(kind, **{CULPRIT: HardwareLooks(first).read_again(later)})


def judged(seen: View) -> tuple[list[str], str]:
    """Return the causes of all findings, and the notes as one text."""
    return [finding.cause for finding in registry.diagnose(seen)], "\n".join(registry.notes(seen))


@pytest.mark.parametrize("form", ["v11", "v13"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_older_and_a_newer_driver_are_no_fault(kind: str, form: str) -> None:
    causes, notes = judged(changed(kind, lambda machine: gpu_parts.query(machine, NUMBER, kind, form)))
    assert causes == []
    assert "nvidia-smi" not in notes


@pytest.mark.parametrize("form", ["v11", "v12"])
def test_a_composed_answer_has_no_element_that_no_captured_one_has(form: str) -> None:
    def elements(text: str) -> set[str]:
        return set(re.findall(r"<(\w+)", text))

    real = [captures.text(one.path) for one in captures.CAPTURES if one.of == "nvidia-smi -q -x"]
    machine = MACHINES["h100-sxm"](1)
    gpu_parts.query(machine, 1, "h100-sxm", form)
    assert elements(machine.tools[gpu_parts.QUERY].text) <= set().union(*map(elements, real))


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_gpu_that_lowers_its_generation_is_no_fault(kind: str) -> None:
    def idle(machine: Machine) -> None:
        for device in gpu_parts.gpus(kind):
            machine.add(f"{gpu_parts.folder(machine, device)}/current_link_speed", "2.5 GT/s PCIe")

    assert judged(changed(kind, idle))[0] == []


def test_a_busy_healthy_machine_has_no_finding() -> None:
    """A GPU under load is at its power cap and holds memory; its process has a launcher."""

    def busy(machine: Machine) -> None:
        for number, device in enumerate(gpu_parts.gpus("h100-sxm")):
            process = f"<pid>{5000 + number}</pid><process_name>python & co</process_name><used_memory>70000 MiB"
            set_for(machine, device, "<gpu_util>0 %<", "<gpu_util>99 %<")
            set_for(machine, device, "sw_power_cap>Not Active", "sw_power_cap>Active")
            process = f"<process_info>{process}</used_memory></process_info>"
            set_for(machine, device, "<processes>", f"<processes>{process}")
            machine.add(f"/proc/{5000 + number}/stat", f"{5000 + number} (python) R 4999 1 1 0 -1 0")
            machine.add(f"/proc/{5000 + number}/cgroup", "0::/user.slice/user-1000.slice/session-3.scope")

    causes, notes = judged(changed("h100-sxm", busy))
    assert causes == []
    assert "nvidia-smi" not in notes


def test_an_idle_gpu_at_its_power_cap_is_no_finding() -> None:
    """Of a card that idles below its clocks, the driver may give that reason."""

    def idle(machine: Machine) -> None:
        for device in gpu_parts.gpus("h100-sxm")[1:]:
            set_for(machine, device, "<gpu_util>0 %<", "<gpu_util>98 %<")
        set_for(machine, gpu_parts.gpus("h100-sxm")[0], "sw_power_cap>Not Active", "sw_power_cap>Active")

    assert judged(changed("h100-sxm", idle))[0] == []


def test_faults_of_programs_and_corrected_errors_are_notes() -> None:
    def log(machine: Machine) -> None:
        bus = victim(machine).removesuffix(".0")
        for code in (13, 31, 43, 45, 68):
            machine.events.append((90.0, f"NVRM: Xid (PCI:{bus}): {code}, pid=99, name=python3, Ch 00000008"))
        changed = f"NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed"
        machine.events.append((88.0, f"{changed} from 0x0 (None) to 0x1 (GPU Reset Required)"))
        machine.events.append((85.0, f"{changed} from 0x1 (GPU Reset Required) to 0x0 (None)"))
        machine.events.append((84.0, f"NVRM: Xid (PCI:{bus}): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1)"))
        switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0)"
        machine.events.append((80.0, f"{switch}: 20009, Non-fatal, Link 28 RX Short Error Rate"))
        machine.events.append((80.0, f"{switch}: 11012, Non-fatal, Link 28 ingress header ECC"))
        machine.events.append((80.0, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)"))
        machine.events.append((80.0, "pcieport 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"))
        machine.events.append((80.0, "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010091"))
        machine.events.append((80.0, "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down"))
        machine.events.append((80.0, "pcieport 0000:3a:00.0: pciehp: Slot(1): Link Down"))
        machine.events.append((80.0, "ata3: SATA link down (SStatus 0 SControl 300)"))

    causes, notes = judged(changed("h100-sxm", log))
    assert causes == []
    codes = (13, 31, 43, 45, 68, 145, 154)
    for words in (*(f"Xid {code} of" for code in codes), "SXID 20009", "LINK Down eno1 once"):
        assert words in notes
    assert "the driver asks for nothing any more" in notes
    assert "('Link 28 RX Short Error Rate'): the driver calls it not fatal" in notes
    assert "('Link 28 ingress header ECC'): the switch corrected" in notes
    assert notes.count("ago: the hardware corrected it.") == 3
    assert "ago: once may be on purpose." in notes
    assert "passed by itself" not in notes
    assert "GPU Reset Required" not in notes
    assert "Slot" not in notes
    assert "ata3" not in notes


def test_a_flood_of_lines_hides_no_other_line() -> None:
    def log(machine: Machine) -> None:
        text = "pcieport 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
        machine.events += [(900.0 - number / 10, text) for number in range(5000)]
        machine.events.append((90.0, f"NVRM: Xid (PCI:{victim(machine).removesuffix('.0')}): 79, GPU has fallen off."))

    causes, notes = judged(changed("l40s-pcie", log))
    assert len(causes) == 1
    assert "Xid 79" in causes[0]
    assert "5000 times" in notes


def _answers(answer: Answer) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        for words in (gpu_parts.QUERY, gpu_parts.LINKS, gpu_parts.LINK_ERRORS):
            machine.tools[words] = answer

    return change


def _without_tool(machine: Machine) -> None:
    machine.tools = {words: answer for words, answer in machine.tools.items() if not words.startswith("nvidia-smi")}


@pytest.mark.parametrize(
    ("change", "note"),
    [
        pytest.param(_without_tool, "nvidia-smi: it is not installed", id="missing"),
        pytest.param(_answers(Answer("")), "nvidia-smi -q -x printed nothing", id="silent"),
        pytest.param(_answers(Answer("\0\x07 <<>& \ufffd" * 50)), "nvidia-smi: its answer", id="garbage"),
        pytest.param(_answers(Answer("<nvidia_smi_log><gpu></nvidia_smi_log>")), "nvidia-smi: its answer", id="cut"),
        pytest.param(_answers(Answer("<nvidia_smi_log><v2/></nvidia_smi_log>")), "nvidia-smi: its answer", id="other"),
        pytest.param(_answers(Answer("x" * 100_000_000)), "printed more than 16 MiB", id="100 MB"),
        pytest.param(_answers(Answer("Invalid combination of input arguments.\n", 1)), "ended with 1", id="refused"),
    ],
)
def test_a_tool_that_fails_is_a_note_and_no_claim(change: Callable[[Machine], None], note: str) -> None:
    causes, notes = judged(changed("h100-sxm", change))
    assert causes == []
    assert note in notes


_HEAD = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)"


@pytest.mark.parametrize("tool", [gpu_parts.LINKS, gpu_parts.LINK_ERRORS])
@pytest.mark.parametrize(
    "text", ["\0\x07 <<>& }{\n", "[1, 2]\n", f"{_HEAD}\n\t Link #0 = fast\n"], ids=("garbage", "list", "another form")
)
def test_links_in_another_form_are_a_note(tool: str, text: str) -> None:
    def change(machine: Machine) -> None:
        machine.tools[tool] = Answer(text)

    causes, notes = judged(changed("h100-sxm", change))
    assert causes == []
    assert f"Not looked at on node3: {'nvlink' if tool == gpu_parts.LINKS else 'nvlink errors'}: nvidia-smi" in notes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Device does not have or support Nvlink\n",
        "NVML: Unable to retrieve NVLink information as all links are inActive\n",
        "Nvlink queries are not supported for Devices in MIG mode\n",
    ],
    ids=("empty", "l40s", "older", "mig"),
)
def test_a_gpu_without_links_is_no_note(text: str) -> None:
    """The second is of an L40S with driver 595.80, the last of an H100 with driver 590.48.01."""

    def change(machine: Machine) -> None:
        machine.replace(gpu_parts.LINKS, "Device does not have or support Nvlink\n", text, 1)

    causes, notes = judged(changed("l40s-pcie", change))
    assert causes == []
    assert "nvlink" not in notes


def test_a_tool_that_hangs_is_a_note_and_no_claim() -> None:
    causes, notes = judged(changed("l40s-pcie", _answers(Answer("", seconds=600.0)), patience=0.3))
    assert causes == []
    assert "nvidia-smi -q -x did not end within" in notes


def test_values_that_the_driver_does_not_tell_are_no_claim() -> None:
    def unknown(machine: Machine) -> None:
        for element in ("<persistence_mode>Enabled", "<current_mig>Disabled", "<compute_mode>Default"):
            tag = element.partition(">")[0]
            set_for(machine, victim(machine), element, f"{tag}>[Unknown Error]")
        set_for(machine, victim(machine), "<dram_uncorrectable>0<", "<dram_uncorrectable>ERR!<")

    assert judged(changed("h100-sxm", unknown))[0] == []


@pytest.mark.parametrize("form", ["v11", "v12"])
def test_a_power_limit_below_the_default_on_all_nodes_is_a_note(form: str) -> None:
    def capped(machine: Machine, node: int) -> Machine:
        gpu_parts.query(machine, node, "l40s-pcie", form)
        element = "current_power_limit" if form == "v12" else "power_limit"
        machine.replace(gpu_parts.QUERY, f"<{element}>350.00 W<", f"<{element}>300.00 W<")
        return machine

    looks = {}
    for node, name in enumerate(rehearsal.NODES, 1):
        machine = capped(MACHINES["l40s-pcie"](node), node)
        looks[name] = rehearsal.looks(machine, machine)
    causes, notes = judged(rehearsal.view("l40s-pcie", **looks))
    assert causes == []
    assert "On node[1-4], the power limit of GPUs is 300 W, and the default of the card is 350 W" in notes
    causes, notes = judged(rehearsal.view("l40s-pcie", node2=looks["node2"]))
    assert len(causes) == 1
    assert "power limit" in causes[0]
    assert "default of the card" not in notes, "the finding tells it"


def test_a_gpu_that_this_login_may_not_open_is_a_note() -> None:
    def confined(machine: Machine) -> None:
        head, _, rest = machine.tools[gpu_parts.QUERY].text.partition(f'\t<gpu id="0000{victim(machine).upper()}">')
        machine.tools[gpu_parts.QUERY].text = head + rest.partition("</gpu>\n")[2]
        del machine.files["/dev/nvidia1"]

    causes, notes = judged(changed("a100-sxm", confined))
    assert causes == []
    assert "GPU 0000:0f:00.0: this login may not open it" in notes


def test_a_slot_that_is_slow_on_every_node_is_how_they_are_built() -> None:
    views = []
    for number in range(1, 5):
        machine = MACHINES["l40s-pcie"](number)
        machine.add(f"{gpu_parts.folder(machine, victim(machine)).rpartition('/')[0]}/max_link_speed", "8.0 GT/s PCIe")
        machine.add(f"{gpu_parts.folder(machine, victim(machine))}/current_link_width", 8)
        views.append(rehearsal.looks(machine, machine))
    seen = rehearsal.view("l40s-pcie", **dict(zip(rehearsal.NODES, views, strict=True)))
    assert judged(seen)[0] == []


def test_readings_of_another_type_end_nothing() -> None:
    names = {(one.kind, one.name) for one in rehearsal.healthy("h100-sxm", 3).now.readings}
    names |= {("kernel log", "xid 79"), ("gpu holder", "1"), ("gpu", "lost"), ("pci port", "ACS")}
    devices = gpu_parts.gpus("h100-sxm")
    readings = [HardwareReading(kind, device, name, "odd") for kind, name in names for device in ("", *devices)]
    now = rehearsal.healthy("h100-sxm", 3).now.model_copy(update={"readings": tuple(readings)})
    judged(rehearsal.view("h100-sxm", **{CULPRIT: HardwareLooks(now=now)}))


def test_a_link_that_cannot_be_read_is_a_note() -> None:
    def broken(machine: Machine) -> None:
        path = f"{gpu_parts.folder(machine, victim(machine))}/current_link_width"
        del machine.files[path]
        machine.links[path] = "/proc/self/mem"  # its first byte is read with EIO

    causes, notes = judged(changed("h100-sxm", broken))
    assert causes == []
    assert "current_link_width: Input/output error" in notes
