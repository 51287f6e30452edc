"""Horovod with NCCL against a CUDA build of PyTorch: compiled and linked by the real command, not run.

A bare container gets this machine's CUDA toolkit and no driver, and is provisioned with CUDA asked for. What cannot be
known without a GPU (whether a collective runs on one) is not claimed; that every library is found, is the right file
and holds what was asked for, is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from clusterctl.state import paths

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
# The wheels of a CUDA framework, its environment on the builder, its pack, and its copy on the node.
NEEDS_BYTES = 40_000_000_000
VARIABLES = {
    "python_env_framework": "pytorch",
    "python_env_framework_build": "cuda",
    "nccl_install": "always",
    "horovod_install": "always",
    "horovod_gpu_operations": "NCCL",
    "horovod_cuda_cc_list": "90",
}


def toolkit() -> Path:
    """Return the folder of this machine's CUDA toolkit; where it or the disk is missing there is nothing to test."""
    on_path = shutil.which("nvcc")
    places = [
        os.environ.get("CUDA_HOME", ""),
        "/usr/local/cuda",
        *([str(Path(on_path).resolve().parents[1])] if on_path else []),
    ]
    # what is on PATH may be a wrapper that stands elsewhere
    found = next((Path(place) for place in places if place and Path(place, "include/cuda.h").is_file()), None)
    if found is None or not (found / "bin/nvcc").is_file():
        pytest.skip("no CUDA toolkit (12 or 13) in CUDA_HOME, in /usr/local/cuda or around the nvcc on PATH")
    free = shutil.disk_usage(paths.cache_dir().value.parent).free
    if free < NEEDS_BYTES:
        pytest.skip(f"{free / 1e9:.0f} GB are free and a CUDA framework needs {NEEDS_BYTES / 1e9:.0f} GB")
    return found.resolve()


@pytest.fixture(scope="module")
def node() -> Iterator[sandboxes.Sandbox]:
    home = toolkit()
    name = f"cuda-build-{os.getpid()}"
    engine = container_engine.find()
    try:
        box = sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=1))
        container = box.nodes[0].container
        engine.run("exec", container, "mkdir", "-p", "/usr/local/cuda")
        with subprocess.Popen(["tar", "-C", str(home), "-c", "."], stdout=subprocess.PIPE) as pack:
            unpack = sandboxes.ssh_command(box, box.nodes[0], ["sudo", "tar", "-C", "/usr/local/cuda", "-x"])
            subprocess.run(unpack, stdin=pack.stdout, check=True)
        variables = box.inventory.parent / "group_vars" / "all.yml"
        variables.parent.mkdir()
        variables.write_text(json.dumps(VARIABLES), encoding="utf-8")
        yield box
    finally:
        sandboxes.down(name)


def said(box: sandboxes.Sandbox, *argv: str) -> str:
    command = sandboxes.ssh_command(box, box.nodes[0], list(argv))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_horovod_with_nccl_is_built_and_linked(node: sandboxes.Sandbox, tmp_path: Path) -> None:
    done = subprocess.run(
        [CLUSTERCTL, "provision", "--yes", "--no-validate", str(node.inventory)],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    built = said(node, "/usr/local/horovod/bin/horovodrun", "--check-build")
    for line in ("[X] PyTorch", "[X] MPI", "[X] NCCL"):
        assert line in built
    program = "import horovod.torch.mpi_lib_v2 as library; print(library.__file__)"
    module = said(node, "/usr/local/python_env/bin/python", "-c", f"import torch; {program}").strip()
    linked = said(node, "ldd", module)
    print(built, linked)  # noqa: T201 - what was linked is what a reader of the log wants to see
    nccl = said(node, "readlink", "-f", "/usr/local/nccl").strip()
    found = {line.split()[0]: line.split()[2] for line in linked.splitlines() if "=> /" in line}
    assert "not found" not in linked.replace("libcuda.so.1 => not found", "")
    assert said(node, "readlink", "-f", found["libnccl.so.2"]).startswith(f"{nccl}/lib/")
    assert said(node, "readlink", "-f", found["libmpi.so.40"]).startswith("/usr/local/openmpi-")
