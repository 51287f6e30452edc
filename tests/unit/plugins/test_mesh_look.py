"""What a node says of its key has a form, and one of another form stops the run by the node's name."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_plan
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError, Options

HOSTS = ("node1", "node2")
GIVEN = {
    "looks": "key",
    "key_name": "id_clusterctl",
    "key_options": [],
    "from_members_only": True,
    "strict_host_keys": True,
    "client_options": {},
    "verify": "ring",
}


def look(number: int, **changed: Any) -> dict[str, Any]:
    key = f"ssh-ed25519 AAAA{number}"
    good = {"user": "mpi", "public_key": key, "successor_key": "", "reaches_root": "", "obstacles": []}
    return {**good, "remembered": [], "trust": {}, **changed}


def planned(**changed: Any) -> dict[str, Any]:
    members = [
        {"name": name, "address": f"10.0.0.{n}", "addresses": [], "host_keys": []} for n, name in enumerate(HOSTS, 1)
    ]
    task = MagicMock(args={**GIVEN, "members": members, "inventory": list(HOSTS)}, async_val=0, check_mode=False)
    action = ssh_mesh_plan.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
    looks = {"node1": {"key": look(1)}, "node2": {"key": look(2, **changed)}}
    result: dict[str, Any] = action.run(None, {"ansible_play_hosts": list(HOSTS), "hostvars": looks})
    return result


def test_the_plan_takes_what_the_module_says() -> None:
    assert [one["user_key"] for one in planned()["members"]] == ["ssh-ed25519 AAAA1", "ssh-ed25519 AAAA2"]


@pytest.mark.parametrize(
    "changed",
    [
        {"user": ["mpi"]},
        {"public_key": 5},
        {"public_key": "ssh-ed25519 AAAA\nssh-ed25519 BBBB"},
        {"public_key": "ssh-ed25519 " + "A" * 30000},
        {"successor_key": {"a": 1}},
        {"reaches_root": []},
        {"reaches_root": "node1"},
        {"obstacles": 5},
        {"obstacles": [{}]},
        {"obstacles": ["x"] * 1000},
        {"remembered": 5},
        {"remembered": [5]},
        {"trust": 5},
        {"trust": {"host_keys": 5}},
        {"trust": {"host_keys": [{"key": []}], "revoked_keys": "", "user": "", "host": ""}},
        {"trust": {"host_keys": [], "revoked_keys": "", "user": {}, "host": ""}},
    ],
)
def test_an_answer_of_another_form_stops_the_run_by_the_name_of_its_node(changed: dict[str, Any]) -> None:
    found = planned(**changed)
    assert found["failed"]
    assert [(one["host"], one["kind"]) for one in found["problems"]] == [("node2", "host")]
    assert "node2" in found["msg"]


def test_a_node_that_would_use_another_user_than_most_is_named() -> None:
    with pytest.raises(AnsibleActionFail, match="root on node2"):
        planned(user="root")
    looks = {host: look(number) for number, host in enumerate(("node1", *HOSTS[1:], "node3"))}
    members = [{"name": host, "address": f"10.0.0.{number}"} for number, host in enumerate(looks, 1)]
    looks["node3"]["user"] = "root"
    with pytest.raises(MeshError) as refused:
        ssh_mesh_plan.plan(members, looks, {host: [] for host in looks}, Options())
    assert refused.value.hosts == ("node3",)


def test_what_refuses_a_login_is_one_line() -> None:
    (target,) = planned(obstacles=["sshd has\n\x1b[2J" + "x" * 9000])["logins"]["node1"]
    assert target["obstacles"][0].isprintable()
    assert len(target["obstacles"][0]) <= 500
