"""From bare nodes to a verdict: several platforms in one cluster, and another series of Open MPI and back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox.images import NoImageError
from validated import engine
from wheel_files import make_wheel

pytestmark = pytest.mark.cluster

RELEASES = ("debian11", "debian12", "debian13", "testing")
OTHERS = ("ubuntu22.04", "ubuntu24.04", "rocky9", "leap15")
EMULATED = "debian12-arm64"
PROGRAM = str(Path(sys.executable).with_name("clusterctl"))


class User:
    """Somebody who types commands, with a state folder of this test's own and the user's cache of artifacts."""

    def __init__(self, state: Path, cluster: sandboxes.Sandbox) -> None:
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.cluster = cluster

    def types(self, verb: str, *options: str) -> dict[str, Any]:
        command = [PROGRAM, verb, str(self.cluster.inventory), "--format", "json", *options]
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        record: dict[str, Any] = json.loads(done.stdout)
        return record


def with_images(
    sandbox: Callable[..., sandboxes.Sandbox], label: str, nodes: int, images: tuple[str, ...]
) -> sandboxes.Sandbox:
    """Start a sandbox; skip with the sentence that the user reads where nothing gives an image of another vendor.

    Where ``CLUSTERCTL_IMAGES`` is ``required``, as on the public CI, the test fails instead.
    """
    try:
        return sandbox(label, nodes=nodes, images=images)
    except NoImageError as error:
        if set(images) <= {*OTHERS, "debian12", EMULATED} and os.environ.get("CLUSTERCTL_IMAGES") != "required":
            pytest.skip(str(error))
        raise


def libraries(validation: dict[str, Any]) -> set[tuple[str, str]]:
    """The version and the path of the libmpi that each rank of the hello check really has mapped."""
    (hello,) = (check for check in validation["checks"] if check["check"] == "hello")
    return {(rank["library_version"], rank["library_path"]) for rank in hello["ranks"]}


@pytest.mark.parametrize(
    ("label", "nodes", "images"),
    [
        pytest.param("mixed", 3, ("debian12", "debian13"), id="debian"),
        # long: without a cache, it makes two more images (3 minutes) and compiles Open MPI for two more platforms
        pytest.param("releases", 4, RELEASES, id="four", marks=pytest.mark.long),
        # long: an emulator runs the nodes' programs at a tenth of the speed, and configure of Open MPI among them
        pytest.param("arm", 3, ("debian12", EMULATED), id="arm64", marks=pytest.mark.long),
        # long: where a registry or a mirror has the image, it compiles Open MPI for one more platform
        *(pytest.param(image.replace(".", ""), 2, (image,), id=image, marks=pytest.mark.long) for image in OTHERS),
    ],
)
def test_platforms_are_one_cluster(
    sandbox: Callable[..., sandboxes.Sandbox], tmp_path: Path, label: str, nodes: int, images: tuple[str, ...]
) -> None:
    user = User(tmp_path, with_images(sandbox, label, nodes, images))
    user.types("provision", "--no-validate")
    report = tmp_path / "junit.xml"
    validation = user.types("validate", "--junit", str(report))
    assert validation["verdict"] == "PASS"
    assert len({path for _, path in libraries(validation)}) == len(images), "one build for each platform"
    assert {host["outcome"] for host in user.types("provision", "--no-validate")["hosts"]} == {"ok"}
    suite = ET.parse(report).getroot()  # noqa: S314 - our own file
    assert len(list(suite.iter("testcase"))) == len(validation["checks"])
    assert not list(suite.iter("failure"))


OF_PROJECT = """\
import os, sys
import two_platforms_probe
rank = os.environ.get("NODE_RANK")
if rank is None:
    from mpi4py import MPI
    rank = str(MPI.COMM_WORLD.allreduce(1))
print(os.uname().nodename, sys.prefix, rank, flush=True)
"""


# long: it installs an environment for two platforms
@pytest.mark.long
def test_a_project_has_an_environment_of_each_platform(
    sandbox: Callable[..., sandboxes.Sandbox], tmp_path: Path
) -> None:
    user = User(tmp_path, sandbox("two-platforms", nodes=2, images=("debian12", "debian13")))
    user.types("provision", "--no-validate", "-e", "python_env_framework=none", "-e", "nccl_install=never")
    project, wheel = tmp_path / "simulation", make_wheel(tmp_path / "packages", "two_platforms_probe", "1.0")
    project.mkdir()
    (project / "main.py").write_text(OF_PROJECT, encoding="utf-8")
    lock = f"two_platforms_probe==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    (project / "requirements.txt").write_text(lock, encoding="utf-8")
    user.environment["PIP_FIND_LINKS"] = str(wheel.parent)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, "run", str(user.cluster.inventory), "--project", str(project), *words]
        return subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=300)

    def trees(*words: str) -> dict[tuple[str, str], str]:
        done = run(*words, "--", "python", "main.py")
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        return {(node, rank): tree for node, tree, rank in lines}

    of_mpi = trees()
    assert set(of_mpi) == {("node1", "4"), ("node2", "4")}
    assert [of_mpi[node, "4"].split("-")[1] for node in ("node1", "node2")] == ["3.11", "3.13"]
    by_node = trees("--launcher", "none")
    assert by_node == {("node1", "0"): of_mpi["node1", "4"], ("node2", "1"): of_mpi["node2", "4"]}
    done = run("-x", "PATH=/usr/bin", "--", "python", "main.py")
    assert done.returncode == 1
    assert "-x PATH hides the environment of the project" in done.stderr
    box = user.cluster
    engine().run("exec", box.node("node2").container, "rm", "-rf", of_mpi["node2", "4"])
    assert trees() == of_mpi, "it is installed again"
    listed = [PROGRAM, "env", "list", str(box.inventory), "--format", "json"]
    found = subprocess.run(listed, env=user.environment, capture_output=True, text=True, check=True)
    assert [one["python"] for one in json.loads(found.stdout)["environments"]] == ["3.11, 3.13"]


@pytest.mark.long
def test_another_series_and_back(sandbox: Callable[..., sandboxes.Sandbox], tmp_path: Path) -> None:
    user = User(tmp_path, sandbox("series", nodes=2))
    user.types("provision", "--no-validate")
    new = libraries(user.types("validate", "--checks", "hello"))
    user.types("provision", "--no-validate", "-e", "openmpi_version=4.1.4")
    old = libraries(user.types("validate"))
    assert len(new) == len(old) == 1
    assert "v5.0.7" in next(iter(new))[0]
    assert "v4.1.4" in next(iter(old))[0]
    program = "from mpi4py import MPI; print(MPI.Get_library_version()[:15], MPI.COMM_WORLD.allreduce(1))"
    command = [PROGRAM, "run", str(user.cluster.inventory), "--prefix", "rank", "--", "python", "-c", program]
    done = subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        [f"[{rank}] Open MPI v4.1.4 4" for rank in range(4)],
    ), done.stderr
    hosts_in_addresses(user, tmp_path / "addresses.ini")
    user.types("provision", "--no-validate")
    assert libraries(user.types("validate", "--checks", "hello")) == new


def hosts_in_addresses(user: User, inventory: Path) -> None:
    """Run a program and a check by an inventory of bare addresses: mpirun then needs the names of the nodes."""
    box = user.cluster
    _, _, variables = box.inventory.read_text(encoding="utf-8").partition("[nodes:vars]")
    lines = [f"{node.address} slots=2" for node in box.nodes]
    inventory.write_text("\n".join(["[nodes]", *lines, "", f"[nodes:vars]{variables}"]), encoding="utf-8")
    for words in (["--", "hostname"], ["-np", "2", "--launch-node", box.nodes[1].address, "--", "hostname"]):
        command = [PROGRAM, "run", str(inventory), *words]
        done = subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=120)
        expected = ["node1"] * 2 + ["node2"] * 2 if len(words) == 2 else ["node2"] * 2
        assert (done.returncode, sorted(done.stdout.split())) == (0, expected), done.stderr
    command = [PROGRAM, "validate", str(inventory), "--checks", "hello", "--no-history", "--format", "json"]
    done = subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    ((version, _),) = libraries(json.loads(done.stdout))
    assert "v4.1.4" in version
