"""A healthy machine with one H200, as it told of itself: every reader takes it, and no rule finds a fault."""

from __future__ import annotations

import json
from collections.abc import Iterable

import captured_machine
import pytest
import rehearsal
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks
from clusterctl.model.hosts import Host

GPU = captured_machine.GPU
SECTIONS = ("pci", "nvidia_smi", "nvlink")
OF_A_LOAD = {"pstate", "power W", "temperature C", "utilization", "memory used MiB", "throttled by"}


def node(looks: HardwareLooks, count: int = 1) -> View:
    """Return so many nodes that all look like this one."""
    names = [f"node{number}" for number in range(1, count + 1)]
    hosts = tuple(Host(name, "10.0.0.1") for name in names)
    return View(hosts=hosts, nodes={}, hardware=dict.fromkeys(names, looks))


def of_the_gpu(found: Iterable[tuple[str, str, str, object]]) -> dict[str, object]:
    """Return the readings or the counters of the GPU, by name."""
    return {name: value for kind, device, name, value in found if (kind, device) == ("gpu", GPU)}


def kept() -> Hardware:
    """Return the record that the node's own program wrote on that machine."""
    text = (captured_machine.DATA / "node_hardware.json").read_text(encoding="utf-8")
    return Hardware.model_validate(json.loads(text))


def test_the_readers_of_today_read_the_files_as_those_of_that_day_did() -> None:
    looks = rehearsal.looks(captured_machine.captured(), captured_machine.captured())
    now, then = looks.now, kept()
    for one in ("readings", "counters"):
        read, known = (of_the_gpu(getattr(record, one)) for record in (now, then))
        changing = OF_A_LOAD if one == "readings" else set()
        assert {name: read.get(name) for name in known if name not in changing} == {
            name: value for name, value in known.items() if name not in changing
        }
    assert [tuple(part) for part in now.parts if part[0] == "gpu"] == [tuple(part) for part in then.parts]
    assert of_the_gpu(now.readings)["model"] == "NVIDIA H200"


@pytest.mark.parametrize("count", [1, 4])
def test_no_rule_finds_a_fault_in_the_record_of_that_machine(count: int) -> None:
    assert registry.diagnose(node(HardwareLooks(kept()), count)) == ()


def test_no_rule_finds_a_fault_in_the_files_and_none_is_called_unread() -> None:
    looks = rehearsal.looks(captured_machine.captured(), captured_machine.captured())
    assert registry.diagnose(node(looks)) == ()
    assert [one for one in looks.now.unseen if one[0] in {*SECTIONS, "nvlink errors", "nvidia-smi"}] == []
    assert "nvlink" not in "\n".join(registry.notes(node(looks))), (
        "one GPU without links prints nothing, and lacks none"
    )


def test_a_gpu_that_works_at_its_power_limit_is_no_fault() -> None:
    machine = captured_machine.captured(loaded=True)
    looks = rehearsal.looks(machine, machine)
    found = of_the_gpu(looks.now.readings)
    assert (found["utilization"], found["power W"], found["throttled by"]) == (100.0, 690.88, "software power cap")
    assert registry.diagnose(node(looks)) == ()
