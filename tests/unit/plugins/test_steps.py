"""Several modules on a host as one task, and which hosts build."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.clusterctl.hpc.plugins.action import steps
from ansible_collections.clusterctl.hpc.plugins.filter import software
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned

FILES = {"module": "clusterctl.hpc.file_set", "options": {"files": []}}
LIMITS = {"module": "clusterctl.hpc.session_settings", "options": {"open_files": 1}}
PROOF = {"module": "ansible.builtin.command", "options": {"argv": ["true"]}, "proves": True}
ANSWERS: dict[str, dict[str, Any]] = {
    "clusterctl.hpc.file_set": {"changed": True, "changes": ["made it"], "watch": [{"path": "/a"}]},
    "clusterctl.hpc.session_settings": {"changed": False, "changes": [], "watch": [{"path": "/b"}], "warnings": ["w"]},
    "ansible.builtin.command": {"changed": True, "rc": 0, "stdout": "usage", "cmd": ["true"]},
}


def run(*given: Any, check: bool = False, **answers: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    called: list[str] = []

    def execute(*, module_name: str, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert isinstance(module_args, dict)
        called.append(module_name)
        return {**ANSWERS[module_name], **answers.get(module_name.rpartition(".")[2], {})}

    task = MagicMock(args={"steps": list(given)}, async_val=0, check_mode=check, diff=False, delegate_to=None)
    action = steps.ActionModule(task, MagicMock(), MagicMock(check_mode=check), MagicMock(), MagicMock(), MagicMock())
    action._execute_module = execute  # noqa: SLF001 - what Ansible brings
    return action.run(None, {}), called


def test_modules_run_in_their_order_and_their_results_are_one() -> None:
    result, called = run(FILES, LIMITS)
    assert called == ["clusterctl.hpc.file_set", "clusterctl.hpc.session_settings"]
    assert result["changed"] is True
    assert [one["path"] for one in result["watch"]] == ["/a", "/b"]
    assert result["warnings"] == ["w"]


@pytest.mark.parametrize("no", [False, "False", "no"])
def test_a_step_is_left_out(no: object) -> None:
    assert run(FILES, {**LIMITS, "when": no})[1] == ["clusterctl.hpc.file_set"]


def test_the_first_step_that_fails_is_the_last_one() -> None:
    result, called = run(FILES, LIMITS, file_set={"failed": True, "msg": "the disk is full"})
    assert called == ["clusterctl.hpc.file_set"]
    assert (result["failed"], result["msg"]) == (True, "the disk is full")


def test_a_proof_counts_where_it_fails_alone() -> None:
    result, called = run({**FILES, "when": False}, PROOF)
    assert called == ["ansible.builtin.command"]
    assert (result["changed"], "stdout" in result, "failed" in result) == (False, False, False)
    failure = {"failed": True, "msg": "non-zero return code", "stderr": "no module named gpu_state"}
    result, _ = run(FILES, PROOF, command=failure)
    assert failure.items() <= result.items()
    assert result["changes"] == ["made it"]
    assert run(FILES, PROOF, check=True)[1] == ["clusterctl.hpc.file_set"]


@pytest.mark.parametrize("step", ["file_set", {"module": "file_set"}, {**FILES, "if": True}])
def test_a_step_of_another_form_is_refused(step: object) -> None:
    with pytest.raises(AnsibleActionFail, match="A step has a module and options"):
        run(step)


def test_the_first_living_builder_of_each_artifact_builds_it() -> None:
    artifacts = [{"builders": ["node1", "node2"]}, {"builders": ["node3", "node1"]}, {"builders": []}]
    assert software.builders(artifacts, ["node1", "node2", "node3"]) == ["node1", "node3"]
    assert software.builders(artifacts, ["node2"]) == ["node2"]
    living = {"ansible_play_hosts": ["node2", "node3"]}
    assert [planned.builds("node2", one, living) for one in artifacts] == [True, False, False]
