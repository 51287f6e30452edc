"""The cluster's Python on real nodes that reach no index: built, grown by a requirement, mended."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import playing
import pytest
from clusterctl.sandbox import Sandbox, container_engine
from clusterctl.state import paths
from clusterctl.support import content

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

LINK = "/usr/local/python_env"


def wheel(folder: Path, name: str, version: str, files: dict[str, str], *requires: str) -> None:
    """Write a package of our own."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path.replace("@INFO@", info), text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def greeting_wheel(folder: Path) -> None:
    """Write a package with a program."""
    program = {"@INFO@/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n"}
    wheel(folder, "greeting", "1.0", {"greeting.py": "def main():\n    print('hello from', __file__)\n", **program})


def framework_wheels(folder: Path) -> None:
    """Write what looks like PyTorch's common build for CUDA 13, and the packages that come with every framework."""
    wheel(folder, "torch", "2.13.0", {"torch.py": ""}, "nvidia-nccl-cu13==2.29.7")
    wheel(folder, "nvidia-nccl-cu13", "2.29.7", {"nvidia/nccl/lib/libnccl.so.2": "bundled", "nvidia/nccl/more": ""})
    for name in ("cloudpickle", "packaging", "psutil", "pyyaml"):
        wheel(folder, name, "1.0", {f"{name}.py": ""})


class Cluster:
    """Nodes, a cache of their own on the controller, and a folder of wheels in place of an index."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.cache, self.wheels = box, folder, folder / "cache", folder / "wheels"
        self.wheels.mkdir()

    def play(
        self, *requirements: str, wheel_dir: bool = True, options: tuple[str, ...] = (), **more: Any
    ) -> tuple[dict[str, int], str]:
        """Apply the role with more variables; return how much each host changed (-1 where it failed) and the text.

        ``members`` replaces what preflight says of the hosts.
        """
        members = more.pop("members", "{{ preflight_members }}")
        variables = {
            "python_env_requirements": list(requirements),
            "preflight_cache_dir": str(self.cache),
            "python_env_wheel_dir": str(self.wheels) if wheel_dir else "",
            **more,
        }
        tasks = [
            {"set_fact": {"preflight_members": members}},
            {"import_role": {"name": "clusterctl.hpc.python_env"}, "vars": variables},
        ]
        # one test makes a disk small, which preflight would see
        look = {"role": "clusterctl.hpc.preflight", "preflight_min_disk_bytes": {}}
        play = {"hosts": "all", "gather_facts": False, "roles": [look], "tasks": tasks}
        done = playing.play(self.box, self.folder, [play], None, *options, surroundings=playing.without_an_index())
        text = done.stdout + done.stderr
        return playing.changes(text), text

    def said(self, node: str, *argv: str) -> str:
        return playing.said(self.box, node, "sudo", *argv)

    def versions(self, node: str) -> set[str]:
        found = self.said(node, "find", "/usr/local", "-maxdepth", "1", "-type", "d", "-name", "python_env-*")
        return {Path(path).name for path in found.splitlines()}


@pytest.fixture(scope="module")
def cluster(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two nodes that resolve no name outside, so that they reach no index and no mirror."""
    sys.path.insert(0, str(content.collections_path()))
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import (  # noqa: PLC0415 - its path is known now
        Target,
        WheelStore,
        parse_requirements,
    )

    made = Cluster(sandbox("python", nodes=2), tmp_path_factory.mktemp("python"))
    store = WheelStore(paths.cache_dir().value)
    target = Target.of("debian-12-x86_64-glibc2.36-py3.11")
    wanted = parse_requirements(["numpy", "uv"], "test")
    for path in store.files(store.lock("test_python_env", target, wanted, "test"), target, "test"):
        shutil.copy(path, made.wheels)
    for node in made.box.nodes:
        made.said(node.name, "sh", "-c", "echo nameserver 127.0.0.1 > /etc/resolv.conf")
    return made


@pytest.fixture(scope="module")
def numpy_alone(cluster: Cluster) -> str:
    """Install the environment with numpy alone; returns its folder's name."""
    recap, text = cluster.play()
    assert set(recap) == {"node1", "node2"}, text
    assert -1 not in recap.values(), text
    return Path(cluster.said("node2", "readlink", LINK)).name


@pytest.fixture
def plain(cluster: Cluster, numpy_alone: str) -> str:
    """The environment with numpy alone, switched on whatever the test before left."""
    if any(cluster.said(node, "readlink", LINK) != numpy_alone for node in ("node1", "node2")):
        cluster.play()
    return numpy_alone


def test_a_second_run_asks_nobody_and_changes_nothing(cluster: Cluster, plain: str) -> None:
    recap, text = cluster.play(wheel_dir=False)
    assert recap == {"node1": 0, "node2": 0}, text
    assert cluster.said("node2", "readlink", LINK) == plain


@pytest.mark.long
def test_a_new_requirement_is_a_new_environment_beside_the_old(cluster: Cluster, plain: str) -> None:
    greeting_wheel(cluster.wheels)
    recap, text = cluster.play("greeting")
    assert -1 not in recap.values(), text
    for node in ("node1", "node2"):
        new = cluster.said(node, "readlink", LINK)
        assert new != plain
        assert cluster.versions(node) >= {plain, new}
        # a program stays in the version it was started in, whatever the link says later
        assert cluster.said(node, f"{LINK}/bin/greet").startswith(f"hello from /usr/local/{new}/lib/")
        assert cluster.said(node, f"/usr/local/{plain}/bin/python", "-c", "import numpy; print(numpy.ones(3).sum())")
    recap, text = cluster.play()
    assert cluster.said("node1", "readlink", LINK) == plain, "the way back is the same switch"


def test_a_half_installed_environment_is_never_used(cluster: Cluster, plain: str) -> None:
    numpy = f"/usr/local/{plain}/lib/python3.11/site-packages/numpy/__init__.py"
    cluster.said("node2", "rm", f"/usr/local/{plain}/.clusterctl.json", numpy)
    recap, text = cluster.play()
    assert recap["node1"] == 0, text
    assert recap["node2"] == 1, text
    assert cluster.said("node2", f"{LINK}/bin/python", "-c", "import numpy; print(int(numpy.ones(3).sum()))") == "3"


@pytest.mark.parametrize(
    ("requirement", "sentence"),
    [
        ("absent-package", "no wheel for Python 3.11 on x86_64 with glibc 2.36"),
        ("numpy<1", "The user requested numpy<1"),
    ],
)
def test_what_cannot_be_had_is_named_and_nothing_is_changed(
    cluster: Cluster, plain: str, requirement: str, sentence: str
) -> None:
    before = cluster.versions("node1")
    recap, text = cluster.play(requirement)
    assert -1 in recap.values()
    assert sentence in text
    assert "Traceback" not in text
    assert cluster.said("node1", "readlink", LINK) == plain
    assert cluster.versions("node1") == before


def test_an_index_that_does_not_answer_is_named_with_the_cure(cluster: Cluster, plain: str) -> None:
    _, text = cluster.play("never-fetched", wheel_dir=False)
    assert "did not answer while looking for" in text
    assert "python_env_wheel_dir" in text
    assert cluster.said("node1", "readlink", LINK) == plain


@pytest.fixture
def full_disk(cluster: Cluster) -> Iterator[str]:
    """Give node2 a /usr/local that holds one environment and not two."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk for a node")
    inspect = ("inspect", "--format", "{{.State.Pid}}", cluster.box.node("node2").container)
    inside = ["nsenter", "--mount", "--target", container_engine.find().run(*inspect).decode().strip()]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=100m", "none", "/usr/local"], check=True)
    try:
        yield "/usr/local"
    finally:
        subprocess.run([*inside, "umount", "/usr/local"], check=True)


def test_a_full_disk_is_named_and_the_former_environment_still_works(
    cluster: Cluster, plain: str, full_disk: str
) -> None:
    recap, text = cluster.play()
    assert -1 not in recap.values(), text
    greeting_wheel(cluster.wheels)
    recap, text = cluster.play("greeting")
    assert recap["node2"] == -1
    sentence = (
        rf"node2: the disk is full: {full_disk} has \d+ bytes free and python_env-3\.11-\w+ did not fit; make room"
    )
    assert re.search(sentence, " ".join(text.split())), text
    assert "Traceback" not in text
    assert cluster.said("node2", "readlink", LINK) == plain
    assert cluster.said("node2", f"{LINK}/bin/python", "-c", "import numpy; print(int(numpy.ones(3).sum()))") == "3"
    assert cluster.said("node2", "ls", "-A", full_disk).split() == ["python_env", plain], "nothing is left half-done"


GPU = {"gpus": 1, "cuda": {"driver_major": 12, "driver_version": "550.54.15", "toolkit_version": ""}}


@pytest.mark.parametrize(
    ("variables", "sentences"),
    [
        (
            {"members": f"{{{{ preflight_members | map('combine', {GPU}) }}}}"},
            [
                f"pytorch 2.13.0 was built for CUDA 13, and the NVIDIA driver 550.54.15 of {node} runs CUDA up to 12;"
                for node in ("node1", "node2")
            ],
        ),
        (
            {"python_env_framework_build": "cuda", "python_env_framework_version": "2.13.0+cpu"},
            ["python_env_framework_version is 2.13.0+cpu, a build without CUDA, but python_env_framework_build"],
        ),
        (
            {"python_env_framework": "{{ 'none' if inventory_hostname == 'node1' else 'pytorch' }}"},
            ["must be the same on all hosts of one platform", "they differ between node1, node2."],
        ),
    ],
)
def test_a_framework_that_cannot_be_had_is_refused_before_anything_is_changed(
    cluster: Cluster, variables: dict[str, str], sentences: list[str]
) -> None:
    framework_wheels(cluster.wheels)
    _, text = cluster.play(**{"python_env_framework": "pytorch", **variables})
    for sentence in sentences:
        assert sentence in " ".join(text.split()), text
    assert "kind: configuration" in text, "no host has failed"
    assert "Traceback" not in text


def test_the_common_build_is_taken_with_a_word_where_there_is_no_cpu_build(cluster: Cluster) -> None:
    framework_wheels(cluster.wheels)
    recap, text = cluster.play(options=("--check",), python_env_framework="pytorch")
    assert -1 not in recap.values(), text
    assert "the package index has no CPU build of pytorch 2.13.0, so the common one is taken" in text


def test_the_cluster_s_nccl_takes_the_place_of_the_bundled_one(cluster: Cluster, plain: str) -> None:
    framework_wheels(cluster.wheels)
    for wanted in ("bundled", "cluster"):
        recap, text = cluster.play(python_env_nccl=wanted, python_env_framework="pytorch")
        # this PyTorch is none, which the proof says in one sentence; one whose NCCL is still to come is not loaded
        assert recap["node2"] == (-1 if wanted == "bundled" else 2), text
        assert ("pytorch 2.13.0 does not work here: AttributeError: module 'torch'" in text) == (wanted == "bundled")
        assert "Traceback" not in text
        # the link leads back where the proof failed, and the folder stays
        of_this = f'grep -l pytorch {LINK}-*/.clusterctl.json | xargs grep -lE \'"nccl_align": ?"{wanted}"\''
        marker_path = cluster.said("node2", "sh", "-c", of_this)
        library = f"{Path(marker_path).parent}/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
        found = cluster.said("node2", "sh", "-c", f"readlink {library} || cat {library}")
        assert found == {"bundled": "bundled", "cluster": "/usr/local/nccl/lib/libnccl.so.2"}[wanted]
        marker = json.loads(cluster.said("node2", "cat", marker_path))
        assert marker["inputs"]["framework"] == {
            "name": "pytorch",
            "version": "2.13.0",
            "cuda": "13",
            "nccl": "2.29.7",
        }
        assert marker["inputs"]["nccl_align"] == wanted
    assert cluster.said("node2", "readlink", LINK) != plain
