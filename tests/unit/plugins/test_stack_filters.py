"""What the filters about the training stack decide, from wheels and facts alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import role_plays
from ansible_collections.clusterctl.hpc.plugins.filter import stack
from role_templates import rendered, variables_of

if TYPE_CHECKING:
    from pathlib import Path

CPU, GPU = "debian-12-x86_64-glibc2.36-py3.11", "debian-12-x86_64-glibc2.36-py3.11-cuda12"


def wheels(**versions: str) -> list[dict[str, str]]:
    return [
        {"name": name.replace("_", "-"), "version": version, "sha256": f"sum of {name}"}
        for name, version in versions.items()
    ]


def member(name: str, platform: str = CPU, gpus: int = 0, driver: int = 0, toolkit: str = "") -> dict[str, Any]:
    cuda = {"driver_major": driver, "driver_version": f"{driver}xx" if driver else "", "toolkit_version": toolkit}
    return {"name": name, "platform": platform, "gpus": gpus, "cuda": cuda}


@pytest.mark.parametrize(
    ("given", "name", "version", "cuda", "nccl"),
    [
        (wheels(numpy="2.4"), "", "", "", ""),
        (wheels(torch="2.13.0+cpu"), "pytorch", "2.13.0+cpu", "", ""),
        (wheels(torch="2.13.0", nvidia_nccl_cu13="2.29.7"), "pytorch", "2.13.0", "13", "2.29.7"),
        (wheels(torch="2.7.1+cu126", nvidia_nccl_cu12="2.26.2"), "pytorch", "2.7.1+cu126", "12", "2.26.2"),
        (wheels(torch="2.7.1+cu118"), "pytorch", "2.7.1+cu118", "11", ""),
        (wheels(tensorflow_cpu="2.12.0"), "tensorflow", "2.12.0", "", ""),
        (wheels(tensorflow="2.21.0", nvidia_nccl_cu12="2.28.3"), "tensorflow", "2.21.0", "12", "2.28.3"),
        # a user's own NCCL wheel is nothing that a CPU build loads
        (wheels(torch="2.13.0+cpu", nvidia_nccl_cu13="2.32.3"), "pytorch", "2.13.0+cpu", "", ""),
    ],
)
def test_the_framework_is_read_from_the_wheels(
    given: list[dict[str, str]], name: str, version: str, cuda: str, nccl: str
) -> None:
    found = stack.framework_in_wheels(given)
    assert (found["name"], found["version"], found["cuda"], found["nccl"]) == (name, version, cuda, nccl)
    assert found["sha256"].startswith("sum of t") is bool(name)
    assert stack.frameworks_by_platform({"one": given, "bare": []}) == {
        "one": found,
        "bare": stack.framework_in_wheels([]),
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("none", "", "cpu"), []),
        (("pytorch", "2.13.0", "cpu"), [["torch==2.13.0+cpu"], ["torch==2.13.0"]]),
        (("pytorch", "2.13.0", "cuda"), [["torch==2.13.0,!=2.13.0+cpu"]]),
        (("pytorch", "2.7.1+cu126", "cpu"), [["torch==2.7.1+cu126"]]),
        (("tensorflow", "2.12.0", "cpu"), [["tensorflow-cpu==2.12.0"], ["tensorflow==2.12.0"]]),
        (("tensorflow", "2.21.0", "cuda"), [["tensorflow[and-cuda]==2.21.0"]]),
    ],
)
def test_a_build_is_asked_for_in_the_words_of_its_index(asked: tuple[str, str, str], expected: list[list[str]]) -> None:
    assert stack.framework_choice(*asked) == expected


def test_a_platform_is_known_by_its_weakest_host() -> None:
    members = [
        member("node1"),
        member("node2", GPU, gpus=8, driver=12, toolkit="12.8"),
        member("node3", GPU, gpus=8, driver=13, toolkit="13.0"),
        member("node4", GPU),
    ]
    assert stack.platform_cuda(members, CPU) == {"gpus": [], "driver": 0, "toolkit": 0}
    assert stack.platform_cuda(members, GPU) == {"gpus": ["node2", "node3"], "driver": 12, "toolkit": 12}


def test_a_driver_that_is_too_old_is_named_with_its_host() -> None:
    members = [member("node1", GPU, driver=12), member("node2", GPU, driver=13), member("node3", GPU), member("node4")]
    assert stack.drivers_below(members, GPU, "13") == [{"name": "node1", "driver": "12xx", "cuda": 12}]
    assert stack.drivers_below(members, GPU, "12") == []
    assert stack.drivers_below(members, GPU, "") == []


IDLE = "8 GPUs that jobs cannot use: the driver is in a container below /run/nvidia/driver, where only pods find it"


def test_a_framework_for_cpus_beside_gpus_that_jobs_cannot_use_is_refused_unless_it_is_asked_for() -> None:
    members = [member("node1", GPU), {**member("node2", GPU), "idle_gpus": IDLE}, member("node3")]
    for framework in ("pytorch", "tensorflow"):
        found = stack.gpus_left_idle(members, GPU, framework, "auto")
        assert found.startswith(f"node2 has {IDLE}; a framework for CPUs would leave them unused.")
        assert "python_env_framework_build to cpu" in found
    many = [{**member(f"node{number}", GPU), "idle_gpus": IDLE} for number in range(6)]
    assert "node0, node1, node2, node3 and 2 more have 8 GPUs" in stack.gpus_left_idle(many, GPU, "pytorch", "auto")
    assert stack.gpus_left_idle(members, GPU, "pytorch", "cpu") == ""
    assert stack.gpus_left_idle(members, GPU, "pytorch", "cuda") == ""
    assert stack.gpus_left_idle(members, GPU, "none", "auto") == ""
    assert stack.gpus_left_idle(members, CPU, "pytorch", "auto") == ""
    usable = [*members, member("node4", GPU, gpus=8, driver=13)]
    assert stack.gpus_left_idle(usable, GPU, "pytorch", "auto") == "", "the platform gets a build with CUDA"


def test_the_role_refuses_before_it_asks_an_index(tmp_path: Path) -> None:
    given = {
        "python_env_framework": "tensorflow",
        "python_env_members": [{**member("localhost"), "idle_gpus": IDLE}],
        "python_env_node": {"platform": CPU},
        "python_env_cache_dir": str(tmp_path / "cache"),
    }
    tasks = {"include_role": {"name": "clusterctl.hpc.python_env", "tasks_from": "preflight.yml"}}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": given, "tasks": [tasks]}
    done = role_plays.play(json.dumps([play]), tmp_path)
    assert done.returncode != 0
    assert f"localhost has {IDLE}" in " ".join(done.stdout.replace('"', " ").split()), done.stdout + done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("asked", "chosen", "name", "cuda", "refused"),
    [
        ("auto", "cuda", "tensorflow", "", True),
        ("auto", "cuda", "pytorch", "", True),
        ("auto", "cuda", "pytorch", "13", False),
        ("auto", "cpu", "pytorch", "", False),
        ("cpu", "cpu", "tensorflow", "", False),
        ("auto", "cuda", "", "", False),
    ],
)
def test_auto_takes_no_framework_without_cuda_for_gpus(
    asked: str, chosen: str, name: str, cuda: str, refused: bool
) -> None:
    variables = variables_of("python_env") | {
        "python_env_framework_build": asked,
        "__python_env_build": chosen,
        "__python_env_platform": GPU,
        "__python_env_framework": {"name": name, "version": "2.12.0", "cuda": cuda},
        "__python_env_old_drivers": [],
    }
    said = rendered("__python_env_pinned_refusal", variables, (stack,))
    assert bool(said) is refused, said
    assert said.endswith("or set python_env_framework_build to cpu.") is refused


def test_wishes_are_gathered_by_platform() -> None:
    members = [member("node1"), member("node2"), member("node3", GPU), member("away")]
    same = {"node1": {"requirements": ["a"]}, "node2": {"requirements": ["a"]}, "node3": {"requirements": ["b"]}}
    assert stack.platform_wishes(members, same) == [
        {"platform": CPU, "hosts": ["node1", "node2"], "wish": {"requirements": ["a"]}},
        {"platform": GPU, "hosts": ["node3"], "wish": {"requirements": ["b"]}},
    ]
    split = stack.platform_wishes(members, {**same, "node2": {"requirements": []}})
    assert [(entry["platform"], entry["hosts"]) for entry in split] == [
        (CPU, ["node1"]),
        (CPU, ["node2"]),
        (GPU, ["node3"]),
    ]
