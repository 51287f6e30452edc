"""The list of nodes that a login did not reach: what a node answers holds no run, and names hosts of the play alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.support import content
from role_templates import rendered

TASK = "List the nodes that a login did not reach"
MANY = [{"a": number} for number in range(20_000)]


def listed(*answers: Any) -> Any:
    tasks = yaml.safe_load(Path(content.root(), "roles/ssh_mesh/tasks/main.yml").read_text(encoding="utf-8"))
    text = next(task for task in tasks if task["name"] == TASK)["ansible.builtin.set_fact"]["__ssh_mesh_refused"]
    hosts = [f"node{number}" for number, _unused in enumerate(answers, 1)]
    hostvars = {host: {"__ssh_mesh_logins": answer} for host, answer in zip(hosts, answers, strict=True)}
    expression = text.strip().removeprefix("{{").removesuffix("}}")
    return rendered(expression, {"ansible_play_hosts": hosts, "hostvars": hostvars}, [])


def test_the_hosts_that_a_login_did_not_reach_are_named_once() -> None:
    assert listed({"refused": ["node2"]}, {"refused": []}, {"refused": ["node2", "node1"]}, {}) == ["node2", "node1"]


@pytest.mark.parametrize("refused", [MANY, [MANY], ["elsewhere"], "node", 7, {"a": 1}, None])
def test_an_answer_of_another_form_holds_no_run(refused: Any) -> None:
    began = time.monotonic()
    assert listed({"refused": ["node1"]}, {"refused": refused}) == ["node1"]
    assert time.monotonic() - began < 60  # in place of hours
