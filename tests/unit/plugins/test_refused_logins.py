"""The list of nodes that a login did not reach: what a node answers holds no run, and names hosts of the play alone."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_review
from ansible_collections.clusterctl.hpc.plugins.module_utils.job_account import missing

MANY = [{"a": number} for number in range(20_000)]


def reviewed(*answers: Any) -> dict[str, Any]:
    hosts = [f"node{number}" for number, _unused in enumerate(answers, 1)]
    hostvars = {host: {"key": missing("mpi", []), "login": answer} for host, answer in zip(hosts, answers, strict=True)}
    given = {"looks": "key", "logins": "login", "plan": "plan", "trust": "keys"}
    task = MagicMock(args=given, async_val=0, check_mode=False)
    action = ssh_mesh_review.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
    variables = {"ansible_play_hosts": hosts, "hostvars": hostvars, "plan": {"inventory": hosts}}
    result: dict[str, Any] = action.run(None, variables)
    return result


def test_the_hosts_that_a_login_did_not_reach_are_named_once() -> None:
    found = reviewed({"refused": ["node2"]}, {"refused": []}, {"refused": ["node2", "node1"]}, {})
    assert found["refused"] == ["node2", "node1"]
    assert found["unfinished"]
    assert not reviewed({"refused": []}, {})["unfinished"]


@pytest.mark.parametrize("refused", [MANY, [MANY], ["elsewhere"], "node1", 7, {"a": 1}, None])
def test_an_answer_of_another_form_holds_no_run(refused: Any) -> None:
    began = time.monotonic()
    assert reviewed({"refused": ["node1"]}, {"refused": refused})["refused"] == ["node1"]
    assert reviewed({"refused": ["node1"]}, refused)["refused"] == ["node1"]
    assert time.monotonic() - began < 60  # in place of hours
