"""The cluster's Python on real nodes that reach no index: built, grown by a requirement, mended."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl import content, settings
from clusterctl import sandbox as sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.sandbox import Sandbox

    Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

LINK = "/usr/local/python_env"
_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


def greeting_wheel(folder: Path) -> None:
    """Write a package of our own, with a program."""
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / "greeting-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("greeting.py", "def main():\n    print('hello from', __file__)\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ngreet = greeting:main\n")
        archive.writestr(f"{info}/RECORD", "")


class Cluster:
    """Nodes, a cache of their own on the controller, and a folder of wheels in place of an index."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.cache, self.wheels = box, folder, folder / "cache", folder / "wheels"
        self.wheels.mkdir()

    def play(self, *requirements: str, wheel_dir: bool = True) -> tuple[dict[str, int], str]:
        """Apply the role; return how much each host changed (-1 where it failed) and the text."""
        role = {
            "role": "clusterctl.hpc.python_env",
            "python_env_members": "{{ preflight_members }}",
            "python_env_node": "{{ preflight_node }}",
            "python_env_requirements": list(requirements),
            "python_env_cache_dir": str(self.cache),
            "python_env_wheel_dir": str(self.wheels) if wheel_dir else "",
        }
        book = self.folder / "play.json"
        play = {"hosts": "all", "gather_facts": False, "roles": ["clusterctl.hpc.preflight", role]}
        book.write_text(json.dumps([play]), encoding="utf-8")
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(self.box.inventory), str(book)],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
                "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
                "ANSIBLE_NOCOLOR": "1",
                # whoever asks an index in these tests gets no answer
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
                "PIP_RETRIES": "1",
            },
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        text = done.stdout + done.stderr
        recap = {host: int(changed) if failed == "0" else -1 for host, changed, _, failed in _RECAP.findall(text)}
        return recap, text

    def said(self, node: str, *argv: str) -> str:
        command = sandboxes.ssh_command(self.box, self.box.node(node), ["sudo", *argv])
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

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
    store = WheelStore(settings.cache_dir().value)
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
        ("-r /etc/passwd", "python_env_requirements: '-r /etc/passwd' is no requirement"),
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
