"""``validate --via pytorchjob`` against a real API server: rights, dry runs, a job from its creation to its deletion.

The API server is compiled from the distribution's sources (seven minutes, once). The operator and the kubelets
are stand-ins (nodes.py); the programs of the pods are the real ones. ``make test-kubernetes`` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from control_plane import NAMESPACE, USER, ControlPlane
from kubernetes_commands import CLUSTERCTL, ROLE, command, ran, wait
from nodes import Nodes


@pytest.fixture
def nodes(plane: ControlPlane, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(plane, tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter with PyTorch, as an image has it."""
    named = os.environ.get("CLUSTERCTL_TORCH_PYTHON", "")
    if not named:
        pytest.skip("CLUSTERCTL_TORCH_PYTHON names no interpreter with PyTorch")
    return named


# Run:AI's namespace is that of its project; the tests have one namespace.
PLACE = {"mpijob": (), "pytorchjob": (), "runai": ("--project", "vision", "--namespace", NAMESPACE)}


def is_empty(plane: ControlPlane) -> bool:
    left = [plane.names(name) for name in ("kubeflow.org/v1/pytorchjobs", "v1/configmaps", "v1/pods")]
    return not any(left)


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob", "runai"])
def test_the_api_server_takes_the_manifests_and_the_documented_role_suffices(plane: ControlPlane, kind: str) -> None:
    code, _, errors = ran(command(plane, "--dry-run", *PLACE[kind], kind=kind))
    assert code == 0, errors
    assert is_empty(plane)


def rendered(plane: ControlPlane, kind: str, *more: str) -> subprocess.CompletedProcess[str]:
    given = (
        "--name",
        "bert",
        "--image",
        "a:1",
        "--nodes",
        "2",
        "--dry-run",
        "--kubeconfig",
        str(plane.kubeconfig(USER)),
    )
    argv = [*CLUSTERCTL, "render", kind, *given, *more, "--", "train.py"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_the_api_server_checks_what_render_prints(plane: ControlPlane, kind: str) -> None:
    done = rendered(plane, kind)
    assert done.returncode == 0, done.stderr
    assert "accepts the manifest" in done.stderr
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "bert"
    assert is_empty(plane)


def test_a_manifest_that_the_api_server_refuses_is_one_sentence_and_is_not_printed(plane: ControlPlane) -> None:
    done = rendered(plane, "pytorchjob", "--namespace", "nowhere")
    assert (done.returncode, done.stdout) == (11, "")
    assert "may not create" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("missing", range(len(ROLE)))
def test_a_right_that_is_missing_is_told_before_anything_is_created(plane: ControlPlane, missing: int) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/validate"
    plane.ask("PATCH", path, {"rules": [rule for number, rule in enumerate(ROLE) if number != missing]})
    try:
        wait(lambda: ran(command(plane, "--dry-run"))[0] == 11)
        code, _, errors = ran(command(plane))
    finally:
        plane.ask("PATCH", path, {"rules": ROLE})
        wait(lambda: ran(command(plane, "--dry-run"))[0] == 0)
    assert code == 11
    assert " may not " in errors
    assert str(ROLE[missing]["resources"][-1]) in errors
    assert is_empty(plane)


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"server": "https://127.0.0.1:1"}, 11, "The API server does not answer"),
        ({"token": "another"}, 11, "does not accept the login"),
        ({"namespace": "nowhere"}, 11, "may not create"),
    ],
)
def test_a_cluster_that_refuses_is_one_sentence(
    plane: ControlPlane, changed: dict[str, str], code: int, words: str
) -> None:
    config = plane.kubeconfig(USER, **changed)
    found, _, errors = ran([*command(plane), "--kubeconfig", str(config)])
    assert found == code
    assert words in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_namespace_that_does_not_exist_is_a_mistake_of_the_command_line(plane: ControlPlane) -> None:
    code, _, errors = ran(command(plane, "--namespace", "nowhere", user="admin"))
    assert code == 1
    assert "The namespace does not exist" in errors


def test_an_operator_that_is_not_there_is_told_and_nothing_stays(plane: ControlPlane) -> None:
    code, _, errors = ran(command(plane, "--start-within", "5"))
    assert code == 11
    assert "did not start within 5 s and is deleted (no pod was made)" in errors
    wait(lambda: is_empty(plane))


def test_an_image_that_cannot_be_pulled_is_told_and_nothing_stays(plane: ControlPlane, nodes: Nodes) -> None:
    nodes.waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "a:1"'}
    code, _, errors = ran(command(plane))
    assert code == 11
    assert 'cannot start (ImagePullBackOff: Back-off pulling image "a:1")' in errors
    wait(lambda: is_empty(plane))


def test_an_image_without_pytorch_is_an_error_that_names_what_is_missing(plane: ControlPlane, nodes: Nodes) -> None:
    code, record, errors = ran(command(plane, "--python", "/usr/bin/python3"))
    assert code == 11, errors
    (check,) = [one for one in record["checks"] if one["check"] == "torchrun"]
    assert check["verdict"] == "ERROR"
    assert (
        "lacks /usr/bin/python3 with torch and numpy (ModuleNotFoundError: No module named 'torch')" in check["reason"]
    )
    wait(lambda: is_empty(plane) and not nodes.running)


@pytest.mark.parametrize("kind", ["pytorchjob", "runai"])
def test_torchrun_is_proved_in_pods_and_read_back(plane: ControlPlane, nodes: Nodes, python: str, kind: str) -> None:
    given = (*PLACE[kind], "--python", python, "--slots", "2", "--timeout", "600")
    code, record, errors = ran(command(plane, *given, kind=kind))
    assert code == 0, errors + json.dumps(record.get("checks"))
    assert (record["via"], record["verdict"]) == (kind, "PASS")
    assert record["pods"] == {"master-0": "node-a", "worker-0": "node-b"}
    assert record["slots"] == {"master-0": 2, "worker-0": 2}
    (check,) = [one for one in record["checks"] if one["check"] == "torchrun"]
    assert [rank["host"] for rank in check["ranks"]] == ["master-0", "master-0", "worker-0", "worker-0"]
    assert {figure["quantity"] for figure in check["figures"]} >= {"efficiency", "throughput"}
    wait(lambda: is_empty(plane) and not nodes.running)


def test_a_pod_that_is_killed_in_a_check_fails_it(plane: ControlPlane, nodes: Nodes, python: str) -> None:
    with subprocess.Popen(command(plane, "--python", python, "--timeout", "600"), stdout=subprocess.PIPE) as process:
        wait(lambda: len(nodes.running) == 2, 120)
        nodes.kill("-worker-0")
        output, _ = process.communicate()
    assert process.returncode in {10, 11}
    (check,) = [one for one in json.loads(output)["checks"] if one["check"] == "torchrun"]
    assert check["verdict"] in {"FAIL", "ERROR"}
    wait(lambda: is_empty(plane) and not nodes.running)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_deletes_the_job(plane: ControlPlane, nodes: Nodes, python: str, number: int) -> None:
    argv = command(plane, "--python", python, "--timeout", "600")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait(lambda: len(nodes.running) == 2, 120)
        process.send_signal(number)
        process.wait()
    assert process.returncode == 130
    wait(lambda: is_empty(plane) and not nodes.running)


def test_what_a_killed_run_leaves_goes_with_its_job(plane: ControlPlane, nodes: Nodes) -> None:
    """Its operator deletes the job after ``ttlSecondsAfterFinished``; the ConfigMap and the pods belong to it."""
    nodes.makes_pods = False
    with subprocess.Popen(command(plane), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait(lambda: plane.names("v1/configmaps"), 120)
        process.kill()
    (job,) = plane.names("kubeflow.org/v1/pytorchjobs")
    top = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs/{job}"
    policy = plane.ask("GET", top)["spec"]["runPolicy"]
    assert policy["activeDeadlineSeconds"] == 3900
    assert policy["ttlSecondsAfterFinished"] == 600
    plane.ask("DELETE", top)
    wait(lambda: is_empty(plane))
