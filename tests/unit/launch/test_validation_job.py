"""The manifests of a validation in pods, held against the published schemas; what ends them and takes them away."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from clusterctl.launch import validation_job
from clusterctl.launch.validation_job import PROGRAMS, PlannedCheck
from clusterctl.model.scheduler_options import PodsOptions
from clusterctl.support.errors import ConfigError
from kubeflow_schemas import MPIJOB, PYTORCHJOB

CHECKS = (PlannedCheck("allreduce", ("python3", f"{PROGRAMS}/mpi_checks.py", "--check", "allreduce"), 45.0),)
FULL = {
    "slots": 4,
    "gpus_per_node": 8,
    "cpus": "64",
    "memory": "512Gi",
    "rdma": {"rdma/hca_shared_devices_a": 1},
    "networks": ("default/roce-a",),
    "namespace": "ml",
}
SMALL: dict[str, Any] = {}


def built(kind: Any, nodes: int = 2, **more: Any) -> validation_job.ValidationJob:
    return validation_job.build("clusterctl-1a2b", PodsOptions(kind, "registry.example/train:1", nodes, **more), CHECKS)


def templates(job: validation_job.ValidationJob) -> dict[str, Any]:
    replicas = next(value for name, value in job.job["spec"].items() if name.endswith("ReplicaSpecs"))
    return {kind: replica["template"] for kind, replica in replicas.items()}


@pytest.mark.parametrize("more", [SMALL, FULL], ids=["small", "full"])
@pytest.mark.parametrize(("kind", "schema"), [("mpijob", MPIJOB), ("pytorchjob", PYTORCHJOB), ("runai", PYTORCHJOB)])
def test_the_manifest_is_what_the_operator_takes(kind: str, schema: Any, more: dict[str, Any]) -> None:
    given = {**more, **({"project": "vision"} if kind == "runai" else {})}
    job = built(kind, **given)
    schema.validate(json.loads(json.dumps(job.job)))
    programs, written = yaml.safe_load_all(job.text)
    assert (programs["kind"], written) == ("ConfigMap", json.loads(json.dumps(job.job)))
    assert programs["metadata"]["name"] == written["metadata"]["name"] == job.name


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_kubernetes_ends_the_job_and_takes_it_away_by_itself(kind: str) -> None:
    policy = built(kind, time_s=600.0, start_within_s=90.5).job["spec"]["runPolicy"]
    assert policy["activeDeadlineSeconds"] == 691
    assert policy["ttlSecondsAfterFinished"] == 600
    for template in templates(built(kind)).values():
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["metadata"]["labels"]["clusterctl.io/run"] == "clusterctl-1a2b"


def test_the_programs_belong_to_the_job() -> None:
    job = built("mpijob")
    (owner,) = job.owned("u-1")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("MPIJob", "clusterctl-1a2b", "u-1")
    assert owner["apiVersion"] == "kubeflow.org/v2beta1"
    assert "ownerReferences" not in job.programs["metadata"]


def test_the_programs_lie_where_they_lie_on_nodes_and_fit() -> None:
    job = built("pytorchjob")
    data = job.programs["data"]
    assert {"pod_runner.py", "rank_program.py", "torch_checks.py", "plan.json"} <= set(data)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", name) for name in data)
    assert sum(len(text.encode()) for text in data.values()) < 1_000_000
    for template in templates(job).values():
        (container,) = template["spec"]["containers"]
        assert {"name": "clusterctl", "mountPath": PROGRAMS, "readOnly": True} in container["volumeMounts"]
        assert {"name": "clusterctl", "configMap": {"name": job.name}} in template["spec"]["volumes"]
        assert container["command"] == ["python3", f"{PROGRAMS}/pod_runner.py", f"{PROGRAMS}/plan.json"]


def test_an_mpijobs_launcher_has_no_ranks_and_asks_for_no_device() -> None:
    job = built("mpijob", **FULL)
    (launcher,) = templates(job)["Launcher"]["spec"]["containers"]
    (worker,) = templates(job)["Worker"]["spec"]["containers"]
    assert "resources" not in launcher
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "command" not in worker  # the operator starts sshd there
    assert job.job["spec"]["slotsPerWorker"] == 4
    assert (job.ranks, job.pod_count, job.speakers) == (("worker-0", "worker-1"), 3, 1)


def test_a_pytorchjobs_master_is_the_first_of_its_pods() -> None:
    job = built("pytorchjob", nodes=3)
    assert (job.ranks, job.pod_count, job.speakers) == (("master-0", "worker-0", "worker-1"), 3, 3)
    assert set(templates(built("pytorchjob", nodes=1))) == {"Master"}


def test_runai_schedules_in_the_namespace_of_its_project() -> None:
    job = built("runai", project="vision")
    assert job.job["metadata"]["namespace"] == "runai-vision"
    assert {template["spec"]["schedulerName"] for template in templates(job).values()} == {"runai-scheduler"}
    assert all("schedulerName" not in template["spec"] for template in templates(built("pytorchjob")).values())


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("runai", {}, "--via runai needs Run:AI's project"),
        ("mpijob", {"project": "vision"}, "--project does not apply to mpijob"),
        ("mpijob", {"namespace": "Not One"}, "is not a valid namespace"),
        ("pytorchjob", {"memory": "lots"}, "is not a valid amount of memory"),
        ("pytorchjob", {"rdma": {"rdma": 1}}, "is not a valid extended resource"),
    ],
)
def test_what_no_cluster_takes_is_refused_here(kind: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        built(kind, **more)


def test_the_words_ask_for_the_same_again() -> None:
    wish = PodsOptions("runai", "a:1", 2, project="vision", **{**FULL, "namespace": ""}, time_s=900.0)
    words = wish.words
    assert words[:6] == ["--via", "runai", "--image", "a:1", "--nodes", "2"]
    assert words[words.index("--time") + 1] == "15"
    assert words[words.index("--rdma-resource") + 1] == "rdma/hca_shared_devices_a=1"
    assert words[words.index("--network-attachment") + 1] == "default/roce-a"
    assert "--start-within" not in words
