"""Jobs, pods and log lines as kubectl prints them. The forms are those of Kubernetes' API reference."""

from __future__ import annotations

from typing import Any

import pytest
from clusterctl.remote import kubectl_text


def pod(name: str = "a-worker-0", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": "gpu7"}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def only(**status: Any) -> kubectl_text.Pod:
    (found,) = kubectl_text.pods({"items": [pod(**status)]})
    return found


def test_a_pod_that_runs_has_started_and_waits_for_nothing() -> None:
    found = only(phase="Running", containerStatuses=[{"state": {"running": {}}}])
    assert (found.name, found.node, found.phase, found.waits) == ("a-worker-0", "gpu7", "Running", "")
    assert found.has_started
    assert kubectl_text.waiting([found], 1) == ""


def test_a_pod_without_a_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n no GPU"}
    found = only(phase="Pending", conditions=[condition])
    assert found.waits == "Unschedulable: 0/3 nodes: no GPU"
    assert not found.is_hopeless
    assert kubectl_text.waiting([found], 1) == "pod a-worker-0: Unschedulable: 0/3 nodes: no GPU"


@pytest.mark.parametrize(
    "reason", ["ImagePullBackOff", "InvalidImageName", "RunContainerError", "CreateContainerError"]
)
def test_a_container_that_never_starts_is_hopeless(reason: str) -> None:
    found = only(phase="Pending", containerStatuses=[waiting(reason, "no such thing")])
    assert found.is_hopeless
    assert found.waits == f"{reason}: no such thing"


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_a_container_that_is_made_is_no_problem(reason: str) -> None:
    found = only(phase="Pending", containerStatuses=[waiting(reason)])
    assert (found.waits, found.is_hopeless) == ("", False)
    assert kubectl_text.waiting([found], 1) == "0 of 1 pods run"


def test_a_program_that_the_image_lacks_is_no_start() -> None:
    over = {"state": {"terminated": {"reason": "StartError", "exitCode": 128, "message": 'exec: "python3": not found'}}}
    found = only(phase="Failed", containerStatuses=[over])
    assert found.is_hopeless
    assert not found.has_started
    assert "python3" in found.waits


def test_a_program_that_was_killed_has_started_and_died() -> None:
    over = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    found = only(phase="Failed", containerStatuses=[over])
    assert found.has_started
    assert found.died == "OOMKilled (exit code 137)"
    assert only(phase="Failed", reason="Evicted", message="disk").died == "Evicted: disk"


def test_pods_that_do_not_exist_yet_are_waited_for() -> None:
    assert kubectl_text.waiting([], 3) == "0 of 3 pods exist"


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        ([], ""),
        ([{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}], ""),
        ([{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}], "Succeeded"),
        ([{"type": "Failed", "status": "True", "reason": "x", "message": "y"}], "Failed"),
        ([{"type": "Failed", "status": "False"}], ""),
    ],
)
def test_a_job_ends_by_a_condition_that_holds(conditions: list[dict[str, str]], ended: str) -> None:
    found = kubectl_text.job({"metadata": {"uid": "u-1"}, "status": {"conditions": conditions}})
    assert (found.uid, found.ended) == ("u-1", ended)


@pytest.mark.parametrize("odd", [{}, {"status": 3}, {"status": {"conditions": "x"}}, {"metadata": []}])
def test_an_answer_of_another_form_is_no_end(odd: dict[str, Any]) -> None:
    assert kubectl_text.job(odd).ended == ""
    assert kubectl_text.pods({"items": [odd, 4]})[0].phase in {"Pending", "Unknown"}


def test_a_line_of_a_log_has_its_pod() -> None:
    line = '[pod/clusterctl-1-launcher-x2x/launcher] {"clusterctl": 1}'
    assert kubectl_text.log_line(line) == ("clusterctl-1-launcher-x2x", '{"clusterctl": 1}')
    assert kubectl_text.log_line("[pod/a/b] ") == ("a", "")
    assert kubectl_text.log_line("error: a container is waiting") == ("", "error: a container is waiting")
