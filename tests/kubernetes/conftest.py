"""A real API server for the tests in this folder, with a login that has the documented role."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import api_server_build
import crds
import pytest
from control_plane import NAMESPACE, USER, ControlPlane, started
from kubernetes_commands import ROLE, wait


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if os.geteuid() != 0 or shutil.which("kubectl") is None:
        pytest.skip("it needs root, for namespaces of pods, and kubectl")
    try:
        api_server_build.build()
    except api_server_build.CannotBuildError as error:
        pytest.skip(f"an API server cannot be had here: {error}")
    with started(tmp_path_factory.mktemp("plane"), api_server_build.programs()) as found:
        for kind in crds.KINDS:
            found.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crds.definition(kind))
        rules = {"metadata": {"name": "validate"}, "rules": ROLE}
        top = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        found.ask("POST", f"{top}/roles", rules)
        binding = {
            "metadata": {"name": "validate"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "validate"},
            "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        found.ask("POST", f"{top}/rolebindings", binding)
        wait(lambda: found.ask("GET", f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"))
        wait(lambda: found.ask("GET", f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"))
        yield found


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
