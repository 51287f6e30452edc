"""Facts of hosts with GPUs: drivers in containers, GPUs without a driver, two versions of a driver, MIG instances."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import gpu_trees
import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import preflight_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import gpu, libraries, record
from ansible_collections.clusterctl.hpc.plugins.modules import node_facts
from clusterctl.model.facts import Gpu
from clusterctl.model.hosts import Host
from clusterctl.remote import facts
from clusterctl.support import content

gate = content.module_util("node_record_gate")
RUNNING = "580.95.05"  # the driver of tests/data/node_probe/nvidia-version.open.txt


@pytest.fixture(autouse=True)
def _without_libraries_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "content", lambda: b"")
    monkeypatch.setattr(
        "ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.libraries._default_folders", tuple
    )


def seen(root: Path, library_path: str = "") -> list[Gpu]:
    return [Gpu.model_validate(one) for one in gpu.gpus(library_path, str(root))["gpus"]]


def as_member(root: Path, library_path: str = "", *installed: str) -> dict[str, Any]:
    artifacts = [{"name": one} for one in installed]
    look = gpu.gpus(library_path, str(root), nvlink=True)
    node = {**look, "cores": 64, "artifacts": artifacts}
    settings = rules.Settings(name="node1", reached_at="10.0.0.1", resolved=["10.0.0.1"])
    return rules.member(settings, node)[0]


def slots(root: Path, library_path: str = "") -> int:
    return int(as_member(root, library_path)["slots"])


def test_a_host_without_gpus_has_none(tmp_path: Path) -> None:
    assert seen(tmp_path) == []


def test_gpus_of_a_whole_driver_are_slots(tmp_path: Path) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    found = seen(gpu_trees.with_modules(tmp_path), path)
    assert [(one.bus, one.name, one.usable, one.devices) for one in found] == [
        (gpu_trees.bus_of(number), "NVIDIA L4", True, (gpu_trees.UUIDS[number],)) for number in range(2)
    ]
    entry = as_member(tmp_path, path)
    assert (entry["slots"], entry["gpus"], entry["idle_gpus"]) == (2, 2, "")


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("/run/nvidia/driver", "usr/lib/x86_64-linux-gnu"),
        ("/run/nvidia/driver", "usr/lib64"),
        ("/home/kubernetes/bin/nvidia", "lib64"),
        ("/var/lib/nvidia", "lib64"),
    ],
)
def test_a_driver_in_a_container_leaves_the_cores_as_slots(tmp_path: Path, place: str, folder: str) -> None:
    gpu_trees.library(tmp_path / place[1:] / folder, RUNNING)
    found = seen(gpu_trees.with_modules(tmp_path))
    assert [(one.driver, one.unusable) for one in found] == [("nvidia", "container")] * 2
    assert f"below {place}" in found[0].problem
    entry = as_member(tmp_path)
    assert (entry["slots"], entry["gpus"]) == (64, 0)
    assert entry["idle_gpus"].startswith("2 GPUs that jobs cannot use: the driver is in a container")


def test_a_session_whose_loader_reaches_the_container_s_driver_can_use_it(tmp_path: Path) -> None:
    path = gpu_trees.library(tmp_path / "home" / "kubernetes" / "bin" / "nvidia" / "lib64", RUNNING)
    assert [one.usable for one in seen(gpu_trees.with_modules(tmp_path), path)] == [True, True]


def test_a_host_whose_driver_lost_its_library_is_told_from_a_container_without_devices(tmp_path: Path) -> None:
    found = seen(gpu_trees.with_modules(tmp_path))
    assert {one.unusable for one in found} == {"library"}
    (tmp_path / "dev" / "nvidiactl").unlink()
    assert {one.unusable for one in seen(tmp_path)} == {"device"}
    assert as_member(tmp_path)["idle_gpus"] == "", "the GPUs of the machine below are not this container's"


def test_two_versions_of_a_driver_are_named(tmp_path: Path) -> None:
    path = gpu_trees.library(tmp_path / "lib", "580.105.08")
    found = seen(gpu_trees.with_modules(tmp_path), path)
    assert {one.unusable for one in found} == {"versions"}
    assert found[0].problem == f"the kernel runs driver {RUNNING}, and {path}/libcuda.so.1 is of driver 580.105.08"
    assert slots(tmp_path, path) == 64


def test_the_library_of_the_compatibility_package_may_be_newer(tmp_path: Path) -> None:
    path = gpu_trees.library(tmp_path / "usr" / "local" / "cuda-13.0" / "compat", "590.44.01")
    assert [one.usable for one in seen(gpu_trees.with_modules(tmp_path), path)] == [True, True]


@pytest.mark.parametrize(
    ("driver", "words"),
    [("", "NVIDIA's driver is missing"), ("nouveau", "the driver nouveau is in use and not NVIDIA's")],
)
def test_gpus_without_the_driver_are_seen_and_are_no_slots(tmp_path: Path, driver: str, words: str) -> None:
    found = seen(gpu_trees.on_the_bus(tmp_path, 8, driver))
    assert [(one.unusable, one.problem, one.display) for one in found] == [("driver", words, False)] * 8
    entry = as_member(tmp_path)
    assert (entry["slots"], entry["gpus"], entry["idle_gpus"]) == (64, 0, f"8 GPUs that jobs cannot use: {words}")


def test_a_screen_s_card_and_a_virtual_machine_s_gpu_are_not_missed_by_provision(tmp_path: Path) -> None:
    screen = gpu_trees.on_the_bus(tmp_path / "screen", 1, "nouveau", gpu_trees.DISPLAY)
    assert [one.display for one in seen(screen)] == [True]
    lent = gpu_trees.on_the_bus(tmp_path / "lent", 4, "vfio-pci")
    assert [as_member(root)["idle_gpus"] for root in (screen, lent)] == ["", ""]
    assert [slots(root) for root in (screen, lent)] == [64, 64]


# --- MIG ---


def mig_host(root: Path) -> str:
    gpu_trees.with_modules(root)
    gpu_trees.with_instances(root, 0, (1, 0), (2, 0))
    gpu_trees.with_instances(root, 1, (1, 0), (2, 0))
    return gpu_trees.library(root / "lib", RUNNING)


def test_mig_instances_are_slots_by_the_uuids_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mig_host(tmp_path)
    listed = gpu.read_instance_list((gpu_trees.DATA / "gpu_hosts" / "nvidia-smi-L.mig.txt").read_text())
    monkeypatch.setattr(gpu, "ask_nvidia_smi", lambda _version: listed)
    found = seen(tmp_path, path)
    assert [one.devices for one in found] == [
        ("MIG-1503b9a7-3336-58e3-b589-bb25ef1e39f1", "MIG-9dcf6483-16e6-5a0f-8db3-8a8d4969cd59"),
        ("MIG-1854de69-a51b-5fbd-8654-82ab2c663383", "MIG-cb9fd9f0-618e-5961-be9f-6d6fae2cddbd"),
    ]
    assert slots(tmp_path, path) == 4


def test_mig_instances_without_nvidia_smi_have_the_older_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mig_host(tmp_path)
    monkeypatch.setattr(gpu, "find_program", lambda _name: "")
    assert seen(tmp_path, path)[0].devices == tuple(f"MIG-{gpu_trees.UUIDS[0]}/{number}/0" for number in (1, 2))


def test_a_gpu_of_two_compute_instances_in_one_gpu_instance(tmp_path: Path) -> None:
    gpu_trees.with_instances(tmp_path, 3, (5, 0), (5, 1))
    assert gpu.compute_instances("3", str(tmp_path)) == [(5, 0), (5, 1)]
    assert gpu.compute_instances("0", str(tmp_path)) == []


def test_an_instance_that_a_container_was_not_given_is_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mig_host(tmp_path)
    monkeypatch.setattr(gpu, "ask_nvidia_smi", lambda _version: {gpu_trees.UUIDS[0]: ["MIG-one"]})
    monkeypatch.setattr(gpu, "ask_modes", lambda _version: [gpu_trees.UUIDS[0]])
    assert [one.instances for one in seen(tmp_path, path)] == [("MIG-one",), ()]


def test_a_gpu_in_mig_mode_without_an_instance_is_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not in MIG mode has the same folders, so that only nvidia-smi tells them apart."""
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    for minor in range(2):
        (tmp_path / "proc" / "driver" / "nvidia" / "capabilities" / f"gpu{minor}" / "mig").mkdir(parents=True)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{gpu_trees.UUIDS[0]}, Enabled'\necho '{gpu_trees.UUIDS[1]}, Disabled'\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu, "find_program", lambda _name: str(program))
    empty, whole = seen(tmp_path, path)
    assert (empty.usable, empty.unusable, empty.devices, whole.usable) == (False, "mig", (), True)
    entry = as_member(tmp_path, path)
    assert entry["slots"] == 1
    assert entry["idle_gpus"] == "1 GPU that jobs cannot use: MIG mode is on, and the GPU has no instance"
    program.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    assert [one.usable for one in seen(tmp_path, path)] == [True, True], "without an answer, GPUs stay what they were"


def test_gpus_of_a_driver_before_mig_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_program", lambda _name: pytest.fail("it was asked"))
    assert gpu.ask_modes("440.33.01") == []
    assert gpu.ask_modes("") == []


def test_a_driver_before_uuids_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_program", lambda _name: "/bin/false")
    assert gpu.ask_nvidia_smi("450.80.02") == {}
    assert gpu.ask_nvidia_smi(RUNNING) == {}, "a program that lists nothing"


# --- nvlink ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "up"),
    [("a100", [True] * 8), ("a100-inactive", [False]), ("h200", [True]), ("l40s", []), ("h100-mig", [False])],
)
def test_links_that_are_up_join_a_gpu_in_captures(capture: str, up: list[bool]) -> None:
    printed = (gpu_trees.DATA / "gpu_hosts" / "nvlink-s" / f"{capture}.txt").read_text()
    assert list(gpu.read_linked(printed).values()) == up


def test_a_machine_whose_one_h200_has_no_links_prints_nothing() -> None:
    assert gpu.read_linked((gpu_trees.DATA / "gpu_h200" / "nvlink-s.txt").read_text()) == {}


def asked(monkeypatch: pytest.MonkeyPatch, root: Path, script: str) -> None:
    program = root / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    monkeypatch.setattr(gpu, "find_program", lambda _name: str(program))


def joined(root: Path, path: str) -> list[bool]:
    return [one["nvlink"] for one in gpu.gpus(path, str(root), nvlink=True)["gpus"]]


def provided(root: Path, path: str, *installed: str) -> list[str]:
    return [one for one in as_member(root, path, *installed)["provides"] if one == "nvlink"]


def test_gpus_with_a_link_that_is_up_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    names = [f"GPU {number}: NVIDIA A100-SXM4-80GB (UUID: {gpu_trees.UUIDS[number]})" for number in range(2)]
    said = "\n".join([names[0], "\t Link 0: 25 GB/s", "\t Link 1: <inactive>", names[1], "\t Link 0: <inactive>"])
    asked(monkeypatch, tmp_path, f"[ \"$*\" = 'nvlink -s' ] && echo '{said}'\n")
    assert joined(tmp_path, path) == [True, False]
    assert provided(tmp_path, path) == ["nvlink"]
    asked(monkeypatch, tmp_path, f"echo '{said.replace('25 GB/s', '<inactive>')}'\n")
    assert joined(tmp_path, path) == [False, False], "a card without its bridge tells the same"
    assert provided(tmp_path, path) == []
    assert provided(tmp_path, path, "openmpi", "ucx") == ["nvlink"], "links that go down replace no Open MPI"
    down = "\n".join([names[0], "NVML: Unable to retrieve NVLink information as all links are inactive", names[1]])
    asked(monkeypatch, tmp_path, f"echo '{down}'\n")
    assert (provided(tmp_path, path), provided(tmp_path, path, "ucx")) == ([], ["nvlink"])
    without = "\n".join([names[0], "Device does not have or support Nvlink", names[1]])
    asked(monkeypatch, tmp_path, f"echo '{without}'\n")
    assert provided(tmp_path, path, "ucx") == []
    asked(monkeypatch, tmp_path, "echo No devices were found\nexit 6\n")
    assert joined(tmp_path, path) == [False, False]
    assert (provided(tmp_path, path), provided(tmp_path, path, "ucx")) == ([], ["nvlink"]), "not known"


@pytest.mark.parametrize("script", ["", "sleep 60\n", "exit 9\n", "echo Failed to initialize NVML\nexit 18\n"])
def test_links_of_which_nvidia_smi_tells_nothing_replace_no_open_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    monkeypatch.setattr(gpu, "_LIMIT_S", 1)
    asked(monkeypatch, tmp_path, script)
    assert (provided(tmp_path, path), provided(tmp_path, path, "openmpi", "ucx")) == ([], ["nvlink"])


def test_a_gpu_that_nvidia_smi_has_lost_replaces_no_open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    lost = "Unable to determine the device handle for GPU0: 0000:34:00.0: Unknown Error"
    names = [f"GPU {number}: NVIDIA A100-SXM4-80GB (UUID: {gpu_trees.UUIDS[number]})" for number in range(2)]
    asked(monkeypatch, tmp_path, f"printf '{lost}\\n{names[1]}\\nDevice does not have or support Nvlink\\n'\n")
    assert (provided(tmp_path, path), provided(tmp_path, path, "ucx")) == ([], ["nvlink"])


@pytest.mark.parametrize("instances", [True, False])
def test_mig_mode_replaces_no_open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instances: bool) -> None:
    path = mig_host(tmp_path)
    if not instances:
        for place in (tmp_path / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*"):
            shutil.rmtree(place)
    names = [f"GPU {number}: NVIDIA H100 NVL (UUID: {gpu_trees.UUIDS[number]})" for number in range(2)]
    modes = "\n".join(f"{gpu_trees.UUIDS[number]}, Enabled" for number in range(2))
    said = "\n".join(f"{name}\nNvlink queries are not supported for Devices in MIG mode" for name in names)
    asked(monkeypatch, tmp_path, f"case $1 in nvlink) echo '{said}';; -L) ;; *) echo '{modes}';; esac\n")
    assert [one.unusable for one in seen(tmp_path, path)] == ["" if instances else "mig"] * 2
    assert (provided(tmp_path, path), provided(tmp_path, path, "openmpi", "ucx")) == ([], ["nvlink"])


def test_an_nvswitch_joins_all_gpus_and_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    monkeypatch.setattr(gpu, "find_program", lambda _name: pytest.fail("it was asked"))
    place = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:c7:00.0"
    gpu_trees.written(place / "vendor", "0x10de\n")
    gpu_trees.written(place / "class", "0x068000\n")
    assert joined(tmp_path, path) == [True, True]
    assert provided(tmp_path, path) == ["nvlink"]


def test_a_gpu_that_is_alone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path, 1)
    monkeypatch.setattr(gpu, "find_program", lambda _name: pytest.fail("it was asked"))
    assert joined(tmp_path, path) == [False]


def test_a_look_that_does_not_ask_for_nvlink_starts_no_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gpu_trees.library(tmp_path / "lib", RUNNING)
    gpu_trees.with_modules(tmp_path)
    monkeypatch.setattr(gpu, "find_program", lambda _name: pytest.fail("it was asked"))
    found = gpu.gpus(path, str(tmp_path))["gpus"]
    assert [(one["nvlink"], one["nvlink_down"]) for one in found] == [(False, False)] * 2


class _Module:
    """Ansible's module, with options that name nothing more to look at."""

    params: ClassVar[dict[str, Any]] = {"watch": [], "artifacts": [], "libraries": []}

    def __init__(self, **_own: Any) -> None:
        self.answer: dict[str, Any] = {}

    def exit_json(self, **answer: Any) -> None:
        self.answer = answer


def test_only_node_facts_asks_for_nvlink(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[bool] = []

    def look(_library_path: str, *, nvlink: bool) -> dict[str, Any]:
        asked_for.append(nvlink)
        return {"gpus": []}

    monkeypatch.setattr(gpu, "gpus", look)
    monkeypatch.setattr(node_facts, "AnsibleModule", _Module)
    (request,) = facts.requests([Host("node1", "192.0.2.1")], artifacts=()).values()
    assert record.collect(json.loads(request))["problems"] == []
    assert asked_for == [False]
    node_facts.main()
    assert asked_for == [False, True]


def test_joined_gpus_pass_the_gate() -> None:
    look = {"gpus": [{"bus": gpu_trees.bus_of(0), "uuid": gpu_trees.UUIDS[0], "driver": "nvidia", "nvlink": True}]}
    assert gate.FORMS["gpus"](look["gpus"])[0]["nvlink"] is True


@pytest.mark.parametrize(
    ("name", "version"),
    [("libcuda.so.580.95.05", RUNNING), ("libcuda.so.515.76", "515.76"), ("libcuda.so.1", ""), ("libcuda.so.1.1b", "")],
)
def test_the_version_in_a_library_s_name(name: str, version: str) -> None:
    assert gpu.file_version(f"/usr/lib/{name}") == version
