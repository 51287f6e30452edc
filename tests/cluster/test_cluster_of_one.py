"""``make provision-here`` in a fresh container without a network, from the bundle that ``make bundle`` makes.

Like a rented GPU machine, the container has a compiler, a Python environment with PyTorch and cmake, and neither sshd
nor ``ip``. It has no GPU, so the parts that need one skip. The environment holds NVIDIA's wheel of NCCL, as every CUDA
build of PyTorch does. UCX, Open MPI, mpi4py and Horovod are compiled there from the bundle's sources, whatever the
controller's cache has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import images
from clusterctl.state import paths
from clusterctl.support import content
from validated import engine

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ROOT = content.root()
ENVIRONMENT = "/opt/torch/.venv"
TORCH, NCCL = "2.13.0+cpu", "2.32.3"
PACKAGES = ("numpy", "cloudpickle", "packaging", "psutil", "pyyaml", "setuptools", "cmake")
LIMIT_S = 7200  # for two busy cores
OPTIONS = f"HERE_OPTIONS=--limit-s {LIMIT_S}"
COMPILED = ("ucx", "openmpi", "mpi4py", "horovod")
RECIPE = f"""
ARG BASE
FROM ${{BASE}}
RUN apt-get -q update && export DEBIAN_FRONTEND=noninteractive && \\
    apt-get -q -y install --no-install-recommends build-essential libpython3-dev python3-venv && \\
    apt-get -q -y purge openssh-server openssh-client iproute2 && rm -rf /var/lib/apt/lists/* /etc/ssh
RUN python3 -m venv {ENVIRONMENT} && {ENVIRONMENT}/bin/pip install --no-index --no-compile --find-links /wheels \\
    torch=={TORCH} nvidia-nccl-cu13=={NCCL} {" ".join(PACKAGES)}
"""
RANKS = "from mpi4py import MPI; import torch; print(torch.__version__, MPI.COMM_WORLD.allreduce(1))"


def wheels(folder: Path) -> None:
    """Fetch what the environment holds, from the index or the cache."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11"]
    argv += ["--find-links", str(paths.cache_dir().value / "wheels"), "--dest", str(folder)]
    wanted = [f"torch=={TORCH}", f"nvidia-nccl-cu13=={NCCL}", *PACKAGES]
    done = subprocess.run([*argv, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or f"pip ended with {done.returncode}"
        pytest.skip(f"the wheels of the environment cannot be had: {said}")


@dataclass(frozen=True)
class Machine:
    """A container, the folder of its outputs, and how the run in it ended."""

    container: str
    out: Path
    code: int
    said: str

    def on(self, script: str) -> str:
        return engine().run("exec", self.container, "sh", "-ec", script).decode()

    def has(self, name: str) -> Any:
        """Return a document, or the record that ends a file of events."""
        text = (self.out / name).read_bytes()
        return json.loads(text.splitlines()[-1] if name.endswith(".jsonl") else text)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder, podman = tmp_path_factory.mktemp("here"), engine()
    (folder / "wheels").mkdir()
    wheels(folder / "wheels")
    (folder / "Containerfile").write_text(RECIPE, encoding="utf-8")
    name = f"test-here-{os.getpid()}"
    base = images.ensure(podman, "debian12", lambda _text: None)
    podman.run(
        "build", "--network", "host", "--volume", f"{folder}/wheels:/wheels:ro", "--tag", f"localhost/{name}",
        "--build-arg", f"BASE={base}", "--file", str(folder / "Containerfile"), str(folder),
    )  # fmt: skip
    tree, out = folder / "tree", folder / "out"
    out.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for path in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / path).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes((ROOT / path).read_bytes())
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "bundle.py"), "--out", str(tree / "dist" / "bundle")],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    podman.run(
        "run", "--detach", "--name", name, "--network", "none", "--shm-size", "1g", "--volume", f"{tree}:/tree",
        "--volume", f"{out}:/out", f"localhost/{name}", "sleep", "infinity",
    )  # fmt: skip
    try:
        done = subprocess.run(
            podman.argv(
                "exec", "--env", f"PATH={ENVIRONMENT}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--env", "OUT=/out",
                "--workdir", "/tree", name, "make", "provision-here", OPTIONS,
            ),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        yield Machine(name, out, done.returncode, done.stdout + done.stderr)
    finally:
        podman.run("rm", "--force", "--time", "0", name)
        podman.run("rmi", f"localhost/{name}")


def test_every_step_passes_and_the_gpu_skips_with_its_reason(machine: Machine) -> None:
    assert machine.code == 0, machine.said
    steps = {one["name"]: one for one in machine.has("summary.json")["steps"]}
    assert {name: one["verdict"] for name, one in steps.items()} == {
        **dict.fromkeys(("packages", "sshd", "controller", "inventory", "provision", "validate"), "PASS"),
        "gpu": "SKIP",
    }
    assert steps["gpu"]["reason"].startswith("This machine has no GPU that can be used: ")
    (host,) = machine.has("provision.jsonl")["hosts"]
    assert host["outcome"] == "changed"


def test_everything_was_compiled_from_the_bundle_and_open_mpi_has_ucx(machine: Machine) -> None:
    with tarfile.open(machine.out / "packs.tar") as pack:
        assert {name.partition("-")[0] for name in pack.getnames()} >= set(COMPILED)
    assert "MCA pml: ucx" in machine.on("/usr/local/openmpi/bin/ompi_info")
    assert machine.has("summary.json")["bundle"]["bytes"] <= 50 << 20


def test_the_checks_ran_on_the_stack_and_those_of_gpus_say_why_not(machine: Machine) -> None:
    checks = {one["check"]: one for one in machine.has("validation.jsonl")["checks"]}
    assert {one["verdict"] for one in checks.values()} <= {"PASS", "SKIP"}
    assert {"hello", "allreduce", "horovod"} <= {name for name, one in checks.items() if one["verdict"] == "PASS"}
    assert "GPU" in json.dumps(checks["nccl"])


def test_ranks_run_in_the_environment_and_it_is_as_it_was(machine: Machine) -> None:
    ranks = f'mpirun --allow-run-as-root --host localhost:2 -np 2 /usr/local/python_env/bin/python -c "{RANKS}"'
    assert machine.on(f"/usr/local/openmpi/bin/{ranks}").splitlines() == [f"{TORCH} 2"] * 2
    # an interpreter of root writes byte code beside what it imports
    changed = f"find {ENVIRONMENT} -newer /var/lib/clusterctl-here/bundle -type f -not -name '*.pyc'"
    assert machine.on(changed) == ""


def test_nccl_is_the_copy_of_the_environment(machine: Machine) -> None:
    assert "/usr/local/lib/clusterctl/libnccl.so.2" in machine.on("/sbin/ldconfig -p")
    same = (
        f"cmp /usr/local/nccl/lib/libnccl.so.2 {ENVIRONMENT}/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
    )
    machine.on(f"{same} && test -s /usr/local/nccl/include/nccl.h")


def test_cmake_of_the_environment_stands_for_the_package(machine: Machine) -> None:
    assert "0~environment" in machine.on("dpkg-query -W cmake")
    assert machine.on("cmake --version").startswith("cmake version ")


def test_a_machine_without_a_compiler_is_refused_in_one_sentence(machine: Machine) -> None:
    machine.on("dpkg --force-depends --purge g++")
    again = f"cd /tree; PATH={ENVIRONMENT}/bin:$PATH python3 tools/provision_here.py --out /tmp/again 2>&1 || echo $?"
    sentence = (
        "This machine lacks g++, and the bundle does not bring such packages; install them from the distribution of"
        " this machine."
    )
    assert machine.on(again).splitlines() == [sentence, "3"]
    machine.on("test ! -e /tmp/again")
