"""Jobs, pods and log lines as kubectl prints them. The forms are those of Kubernetes' API reference."""

from __future__ import annotations

from typing import Any

import pytest
from clusterctl.remote import kubectl_output


def pod(name: str = "a-worker-0", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": "gpu7"}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def only(**status: Any) -> kubectl_output.Pod:
    (found,) = kubectl_output.pods({"items": [pod(**status)]})
    return found


def test_a_pod_that_runs_has_started_and_waits_for_nothing() -> None:
    found = only(phase="Running", containerStatuses=[{"state": {"running": {}}}])
    assert (found.name, found.node, found.phase, found.waits) == ("a-worker-0", "gpu7", "Running", "")
    assert found.has_started
    assert kubectl_output.waiting([found], 1) == ""


def test_a_pod_without_a_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes:\n no GPU"}
    found = only(phase="Pending", conditions=[condition])
    assert found.waits == "Unschedulable: 0/3 nodes: no GPU"
    assert not found.is_hopeless
    assert kubectl_output.waiting([found], 1) == "pod a-worker-0: Unschedulable: 0/3 nodes: no GPU"


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
    assert kubectl_output.waiting([found], 1) == "0 of 1 pods run"


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
    assert kubectl_output.waiting([], 3) == "0 of 3 pods exist"


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
    found = kubectl_output.job({"metadata": {"uid": "u-1"}, "status": {"conditions": conditions}})
    assert (found.uid, found.ended) == ("u-1", ended)


@pytest.mark.parametrize("odd", [{}, {"status": 3}, {"status": {"conditions": "x"}}, {"metadata": []}])
def test_an_answer_of_another_form_is_no_end(odd: dict[str, Any]) -> None:
    assert kubectl_output.job(odd).ended == ""
    assert kubectl_output.pods({"items": [odd, 4]})[0].phase in {"Pending", "Unknown"}


def test_a_line_of_a_log_has_its_pod() -> None:
    line = '[pod/clusterctl-1-launcher-x2x/launcher] {"clusterctl": 1}'
    assert kubectl_output.log_line(line) == ("clusterctl-1-launcher-x2x", '{"clusterctl": 1}')
    assert kubectl_output.log_line("[pod/a/b] ") == ("a", "")
    assert kubectl_output.log_line("error: a container is waiting") == ("", "error: a container is waiting")


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (
            (
                'error: error validating "STDIN": error validating data: failed to download openapi: the server has '
                "asked for the client to provide credentials; if you choose to ignore these errors, turn validation "
                "off with --validate=false"
            ),
            11,
            (
                "The cluster does not accept the login of the kubeconfig; log in anew, or give another --context (the "
                "server has asked for the client to provide credentials)."
            ),
        ),
        (
            "error: cannot locate context nope",
            1,
            (
                "The kubeconfig has no such context; name one of 'kubectl config get-contexts' with --context (cannot "
                "locate context nope)."
            ),
        ),
        (
            (
                'Error from server (Forbidden): pods is forbidden: User "me" cannot list resource "pods" in API group '
                '"" in the namespace "ml"'
            ),
            11,
            (
                "The user 'me' may not list pods in the namespace 'ml'; have a role with the rights of "
                "docs/how-to/pods.md bound to it, or choose another --namespace or --context."
            ),
        ),
        (
            'mpijobs.kubeflow.org is forbidden: User "me" cannot create resource "mpijobs" in API group "kubeflow.org"',
            11,
            (
                "The user 'me' may not create mpijobs.kubeflow.org in the cluster; have a role with the rights of "
                "docs/how-to/pods.md bound to it, or choose another --namespace or --context."
            ),
        ),
        (
            "E1123 10:03:32.406805 1 x.go:2] y\nerror: the moon",
            11,
            "kubectl failed (the moon); try it by hand.",
        ),
        ("", 11, "kubectl failed (without a word); try it by hand."),
    ],
)
def test_a_refusal_is_one_sentence_with_the_exit_code_of_whose_fault_it_is(said: str, code: int, told: str) -> None:
    error = kubectl_output.refusal(said)
    assert (str(error), int(error.exit_code)) == (told, code)


def test_what_does_not_exist_is_told_from_what_is_refused() -> None:
    assert kubectl_output.is_missing('Error from server (NotFound): configmaps "none" not found')
    assert not kubectl_output.is_missing("error: You must be logged in to the server (Unauthorized)")
