"""``validate --via mpijob`` with pods that are containers: the checks run under the launcher and are read back.

The API server is the real one of test_kubernetes.py. mpi-operator and the kubelets are stand-ins (mpi_pods.py); the
image has the distribution's Open MPI. CLUSTERCTL_MPI_IMAGE and CLUSTERCTL_MPI_PYTHON name another image and its Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpi_pods
import pytest
from clusterctl.sandbox import container_engine
from clusterctl.support.errors import ClusterctlError
from control_plane import ControlPlane
from kubernetes_commands import command, ran, wait

# Of the standard suite, those that run in an MPIJob's pods.
CHECKS = ("point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce", "node_speed", "pairs")
WORKERS = ("worker-0", "worker-1")
PYTHON = os.environ.get("CLUSTERCTL_MPI_PYTHON", "python3")
DAMAGE = f"""mv "$({PYTHON} -c 'import mpi4py; print(mpi4py.__path__[0])')" /aside"""


@pytest.fixture(scope="module")
def engine() -> container_engine.Podman:
    try:
        return container_engine.find()
    except ClusterctlError as error:
        pytest.skip(f"containers cannot be had here: {error}")


@pytest.fixture(scope="module")
def image(engine: container_engine.Podman) -> str:
    return os.environ.get("CLUSTERCTL_MPI_IMAGE") or mpi_pods.image(engine)


@pytest.fixture
def pods(
    plane: ControlPlane, tmp_path: Path, engine: container_engine.Podman, image: str
) -> Iterator[mpi_pods.MpiPods]:
    with mpi_pods.MpiPods(plane, tmp_path, engine, image) as found:
        yield found


def validate(plane: ControlPlane, *more: str) -> list[str]:
    """Return the command; a busy machine gets the time that it needs."""
    return command(plane, "--slots", "2", "--python", PYTHON, "--timeout", "300", *more, kind="mpijob")


def is_empty(plane: ControlPlane) -> bool:
    return not any(plane.names(name) for name in ("kubeflow.org/v2beta1/mpijobs", "v1/configmaps", "v1/pods"))


def named(record: dict[str, Any], check: str) -> dict[str, Any]:
    (found,) = [one for one in record["checks"] if one["check"] == check]
    return dict(found)


def test_the_checks_of_mpi_pass_in_pods_and_are_read_back(plane: ControlPlane, pods: mpi_pods.MpiPods) -> None:
    code, record, errors = ran(validate(plane))
    assert code == 0, errors + json.dumps(record.get("checks"))
    verdicts = {one["check"]: one["verdict"] for one in record["checks"]}
    assert {name for name, verdict in verdicts.items() if verdict == "PASS"} == {"reachable", *CHECKS}
    assert set(verdicts.values()) == {"PASS", "SKIP"}
    assert (record["via"], record["launch_node"]) == ("mpijob", "launcher")
    assert record["pods"] == {"worker-0": "node-a", "worker-1": "node-b"}
    assert record["openmpi_version"][:2] in {"4.", "5."}
    for name in ("allreduce", "broadcast"):
        assert [rank["host"] for rank in named(record, name)["ranks"]] == ["worker-0"] * 2 + ["worker-1"] * 2
    for name in ("pairs", "node_speed"):
        assert {node for one in named(record, name)["figures"] for node in one["nodes"]} == set(WORKERS)
    wait(lambda: is_empty(plane) and not pods.running)


def test_a_worker_without_sshd_is_an_error_that_says_so(plane: ControlPlane, pods: mpi_pods.MpiPods) -> None:
    pods.first = {"-worker-1": "sleep 1e6"}
    code, record, errors = ran(validate(plane, "--start-within", "60", "--checks", "allreduce"))
    assert code == 11, errors
    reason = named(record, "allreduce")["reason"]
    assert named(record, "allreduce")["verdict"] == "ERROR"
    assert "lacks an mpirun that starts a program on all 2 workers" in reason
    assert "worker-1" in reason
    wait(lambda: is_empty(plane) and not pods.running)


def test_a_worker_whose_image_is_damaged_is_named(plane: ControlPlane, pods: mpi_pods.MpiPods) -> None:
    """Its Python no longer finds mpi4py: ranks of this worker alone end, as on a node that lacks it."""
    pods.first = {"-worker-1": DAMAGE}
    code, record, _ = ran(validate(plane, "--checks", "allreduce"))
    check = named(record, "allreduce")
    assert (code, check["verdict"], check["hosts"]) == (10, "FAIL", ["worker-1"]), check
    assert "No module named 'mpi4py'" in check["reason"]
    wait(lambda: is_empty(plane) and not pods.running)


def test_a_worker_that_is_killed_in_a_check_is_no_pass(plane: ControlPlane, pods: mpi_pods.MpiPods) -> None:
    argv = [*validate(plane, "--checks", "collectives"), "--timeout", "60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        wait(lambda: any('"event": "started"' in text for text in pods.logs("-x7k2p")), 180)
        pods.kill("-worker-1")
        output, _ = process.communicate()
    check = named(json.loads(output), "collectives")
    assert process.returncode in {10, 11}
    assert check["verdict"] in {"FAIL", "ERROR"}, check
    wait(lambda: is_empty(plane) and not pods.running)
