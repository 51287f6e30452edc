"""The release of a framework follows from the node's Python, machine and glibc, by a table whose rows are held here."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from ansible_collections.clusterctl.hpc.plugins.filter import stack
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import framework_builds as fb
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w
from packaging.utils import parse_wheel_filename

EL9, DEBIAN11 = "rocky-9-x86_64-glibc2.34-py3.9", "debian-11-x86_64-glibc2.31-py3.9"
PACKAGES = {
    ("pytorch", "x86_64", "cpu"): "torch",
    ("pytorch", "aarch64", "cpu"): "torch",
    ("tensorflow", "x86_64", "cpu"): "tensorflow-cpu",
    ("tensorflow", "aarch64", "cpu"): "tensorflow",
    ("tensorflow", "x86_64", "cuda"): "tensorflow",
}


def chosen(framework: str, platform: str, build: str = "cpu", version: str = "") -> tuple[str, str]:
    found = stack.framework_release(framework, platform, build, version)
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
    assert problem == (
        "TensorFlow 2.12.0 has no build that brings CUDA, and its CPU build would leave the GPUs unused; name 2.14.0 or"
        " later (2.21.0 has a wheel for Python 3.11 on x86_64 with glibc 2.36) in python_env_framework_version, or set"
        " python_env_framework_build to cpu."
    )
    _, problem = chosen("tensorflow", "any-1-aarch64-glibc2.36-py3.11-cuda12", "cuda", "2.21.0")
    assert problem.startswith("TensorFlow has no build with CUDA for aarch64, and its CPU build would leave the GPUs")
    assert chosen("tensorflow", "any-1-aarch64-glibc2.36-py3.11-cuda12", "cpu", "2.12.0")[1] == ""
    assert chosen("tensorflow", "debian-12-x86_64-glibc2.36-py3.11", "cuda", "2.14.0")[1] == ""
