"""The release of a framework follows from the node's Python, machine and glibc, by a table whose rows are held here."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import framework_builds as fb
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import frameworks
from packaging.utils import parse_wheel_filename

EL9, DEBIAN11 = "rocky-9-x86_64-glibc2.34-py3.9", "debian-11-x86_64-glibc2.31-py3.9"
WITH_313 = "debian-11-x86_64-glibc2.31-py3.13"
PACKAGES = {
    ("pytorch", "x86_64", "cpu"): "torch",
    ("pytorch", "aarch64", "cpu"): "torch",
    ("tensorflow", "x86_64", "cpu"): "tensorflow-cpu",
    ("tensorflow", "aarch64", "cpu"): "tensorflow",
    ("tensorflow", "x86_64", "cuda"): "tensorflow",
}


def chosen(framework: str, platform: str, build: str = "cpu", version: str = "") -> tuple[str, str]:
    found = frameworks.framework_release(framework, platform, build, version)
    return found["version"], found["problem"]


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", fb.table(), ids=lambda row: f"{row.wheel}-{'-'.join(row.builds)}")
def test_each_row_says_what_its_wheel_says(row: fb.FrameworkBuild) -> None:
    name, version, _, tags = parse_wheel_filename(row.wheel)
    assert name == PACKAGES[row.framework, row.machine, row.builds[0]]
    assert str(version) == row.version
    assert {tag.interpreter for tag in tags} == {f"cp{row.python.replace('.', '')}"}
    target = w.Target.of(f"any-{row.machine}-glibc{row.glibc}-py{row.python}")
    assert {tag.platform for tag in tags} & set(target.tags()), "the wheel fits the oldest glibc of its row"
    assert row.source == f"https://pypi.org/project/{name}/{row.version}/#files"
    assert row.why
    assert set(row.builds) <= {"cpu", "cuda"}


def test_a_row_for_a_newer_glibc_stands_before_those_for_older_ones() -> None:
    for build in ("cpu", "cuda"):
        groups: dict[tuple[str, str, str], list[tuple[int, ...]]] = {}
        for row in fb.table():
            if build in row.builds:
                groups.setdefault((row.framework, row.python, row.machine), []).append(fb.numbers(row.glibc))
        assert groups
        for found in groups.values():
            assert all(before > after for before, after in pairwise(found)), "the first that fits decides"


def test_the_table_has_its_day_and_no_unknown_field() -> None:
    document = json.loads(fb.TABLE.read_bytes())
    assert set(document) == {"about", "looked_up", "rows"}
    with pytest.raises(TypeError):
        fb.FrameworkBuild.of({**document["rows"][0], "pyhton": "3.9"})


# --- the choice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "platform", "build", "expected"),
    [
        ("none", "nothing", "cpu", ""),
        # the last PyTorch with a cp39 wheel: Enterprise Linux 9 and Debian 11
        ("pytorch", EL9, "cpu", "2.8.0"),
        ("pytorch", EL9, "cuda", "2.8.0"),
        ("pytorch", DEBIAN11, "cuda", "2.8.0"),
        ("pytorch", "rocky-8-x86_64-glibc2.28-py3.9", "cpu", "2.8.0"),
        ("pytorch", "ubuntu-18-x86_64-glibc2.27-py3.9", "cpu", "2.6.0"),
        ("pytorch", "amazon-2-aarch64-glibc2.26-py3.9", "cpu", "2.5.1"),
        # what today's platforms get is what they got
        *(
            ("pytorch", platform, build, "2.13.0")
            for platform in (
                "ubuntu-22-x86_64-glibc2.35-py3.10",
                "debian-12-x86_64-glibc2.36-py3.11",
                "ubuntu-24-aarch64-glibc2.39-py3.12",
                "debian-13-x86_64-glibc2.41-py3.13",
                "debian-14-x86_64-glibc2.43-py3.14",
            )
            for build in ("cpu", "cuda")
        ),
        ("pytorch", "debian-12-x86_64-glibc2.36-py3.11-cuda12", "cuda", "2.13.0"),
        ("pytorch", "later-1-x86_64-glibc2.44-py3.15", "cpu", "2.15.0"),
        ("tensorflow", DEBIAN11, "cpu", "2.12.0"),
        ("tensorflow", "debian-12-x86_64-glibc2.36-py3.11", "cpu", "2.12.0"),
        ("tensorflow", "debian-12-aarch64-glibc2.36-py3.11", "cpu", "2.12.0"),
        ("tensorflow", "ubuntu-24-x86_64-glibc2.39-py3.12", "cpu", "2.21.0"),
        ("tensorflow", "debian-13-x86_64-glibc2.41-py3.13", "cpu", "2.21.0"),
        ("tensorflow", "older-1-x86_64-glibc2.26-py3.13", "cpu", "2.20.0"),
        ("tensorflow", EL9, "cuda", "2.20.0"),
        ("tensorflow", "debian-12-x86_64-glibc2.36-py3.11", "cuda", "2.21.0"),
    ],
)
def test_the_nodes_python_and_glibc_choose_the_release(
    framework: str, platform: str, build: str, expected: str
) -> None:
    assert chosen(framework, platform, build) == (expected, "")


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_a_release_that_is_named_is_the_indexs_to_judge(build: str) -> None:
    assert chosen("pytorch", "later-1-x86_64-glibc2.44-py3.99", build, "9.9") == ("9.9", "")
    assert chosen("tensorflow", "debian-14-x86_64-glibc2.43-py3.14", build, "2.22.0") == ("2.22.0", "")


@pytest.mark.parametrize(
    ("framework", "platform", "build", "parts"),
    [
        (
            "tensorflow",
            "debian-14-x86_64-glibc2.43-py3.14",
            "cpu",
            [
                "TensorFlow has no build for CPUs for Python 3.14 on x86_64 with glibc 2.43",
                "Python 3.12 to 3.13 on x86_64",
            ],
        ),
        (
            "pytorch",
            "old-1-aarch64-glibc2.26-py3.13",
            "cpu",
            ["Python 3.13 on aarch64 with glibc 2.28 or newer (2.13.0)"],
        ),
        ("pytorch", "old-1-aarch64-glibc2.34-py3.9", "cuda", ["no build with CUDA", "Python 3.10 to 3.14 on aarch64"]),
        ("tensorflow", "any-1-aarch64-glibc2.36-py3.11", "cuda", ["no build with CUDA", "on x86_64"]),
        ("pytorch", "any-1-s390x-glibc2.36-py3.11", "cpu", ["on s390x", "on x86_64", "on aarch64"]),
    ],
)
def test_a_node_without_a_build_is_told_what_exists_in_one_sentence(
    framework: str, platform: str, build: str, parts: list[str]
) -> None:
    version, problem = chosen(framework, platform, build)
    assert version == ""
    assert all(part in problem for part in [*parts, platform, "python_env_framework to none"]), problem
    assert "\n" not in problem


def test_a_tensorflow_without_cuda_is_refused_on_gpu_nodes() -> None:
    _, problem = chosen("tensorflow", "debian-12-x86_64-glibc2.36-py3.11-cuda12", "cuda", "2.12.0")
    assert problem.startswith("TensorFlow 2.12.0 has no build that brings CUDA")
    assert "name 2.14.0 or later (2.21.0 has a wheel for Python 3.11 on x86_64 with glibc 2.36)" in problem
    _, problem = chosen("tensorflow", "any-1-aarch64-glibc2.36-py3.11-cuda12", "cuda", "2.21.0")
    assert problem.startswith("TensorFlow has no build with CUDA for aarch64, and its CPU build would leave the GPUs")
    assert chosen("tensorflow", "any-1-aarch64-glibc2.36-py3.11-cuda12", "cpu", "2.12.0")[1] == ""
    assert chosen("tensorflow", "debian-12-x86_64-glibc2.36-py3.11", "cuda", "2.14.0")[1] == ""


# --- what follows from wheels and facts alone ---


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
    found = frameworks.framework_in_wheels(given)
    assert (found["name"], found["version"], found["cuda"], found["nccl"]) == (name, version, cuda, nccl)
    assert found["sha256"].startswith("sum of t") is bool(name)


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
    assert frameworks.framework_choice(*asked) == expected


def test_a_platform_is_known_by_its_weakest_host() -> None:
    members = [
        member("node1"),
        member("node2", GPU, gpus=8, driver=12, toolkit="12.8"),
        member("node3", GPU, gpus=8, driver=13, toolkit="13.0"),
        member("node4", GPU),
    ]
    assert frameworks.platform_cuda(members, CPU) == {"gpus": [], "driver": 0, "toolkit": 0}
    assert frameworks.platform_cuda(members, GPU) == {"gpus": ["node2", "node3"], "driver": 12, "toolkit": 12}


def test_a_driver_that_is_too_old_is_named_with_its_host() -> None:
    members = [member("node1", GPU, driver=12), member("node2", GPU, driver=13), member("node3", GPU), member("node4")]
    assert frameworks.drivers_below(members, GPU, "13") == [{"name": "node1", "driver": "12xx", "cuda": 12}]
    assert frameworks.drivers_below(members, GPU, "12") == []
    assert frameworks.drivers_below(members, GPU, "") == []


IDLE = "8 GPUs that jobs cannot use: the driver is in a container below /run/nvidia/driver, where only pods find it"


def test_a_framework_for_cpus_beside_gpus_that_jobs_cannot_use_is_refused_unless_it_is_asked_for() -> None:
    members = [member("node1", GPU), {**member("node2", GPU), "idle_gpus": IDLE}, member("node3")]
    for framework in ("pytorch", "tensorflow"):
        found = frameworks.gpus_left_idle(members, GPU, framework, "auto")
        assert found.startswith(f"node2 has {IDLE}; a framework for CPUs would leave them unused.")
        assert "python_env_framework_build to cpu" in found
    many = [{**member(f"node{number}", GPU), "idle_gpus": IDLE} for number in range(6)]
    assert "node0, node1, node2, node3 and 2 more have 8 GPUs" in frameworks.gpus_left_idle(
        many, GPU, "pytorch", "auto"
    )
    assert frameworks.gpus_left_idle(members, GPU, "pytorch", "cpu") == ""
    assert frameworks.gpus_left_idle(members, GPU, "pytorch", "cuda") == ""
    assert frameworks.gpus_left_idle(members, GPU, "none", "auto") == ""
    assert frameworks.gpus_left_idle(members, CPU, "pytorch", "auto") == ""
    usable = [*members, member("node4", GPU, gpus=8, driver=13)]
    assert frameworks.gpus_left_idle(usable, GPU, "pytorch", "auto") == "", "the platform gets a build with CUDA"


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        (DEBIAN11, "", DEBIAN11),
        (DEBIAN11, "3.13.5", WITH_313),
        (f"{DEBIAN11}-cuda12", "3.13.5", f"{WITH_313}-cuda12"),
        ("debian-forky-x86_64-glibc2.43-py3.14", "3.9", "debian-forky-x86_64-glibc2.43-py3.9"),
    ],
)
def test_a_platform_gets_another_python(platform: str, version: str, expected: str) -> None:
    assert frameworks.platform_with_python(platform, version) == expected
