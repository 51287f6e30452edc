"""What a node remembers of another machine reaches its own files alone, and no answer of nodes is a vote."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_plan, ssh_mesh_sign
from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_rules as rules

TRUE_HOST_KEY, FORGED_HOST_KEY = "ssh-ed25519 AAAAtrueHost", "ssh-ed25519 AAAAforgedHost"
TRUE_KEY, FORGED_KEY = "ssh-ed25519 AAAAtrueUser", "ssh-ed25519 AAAAforgedUser"
INVENTORY: dict[str, list[str]] = {f"node{number}": [f"node{number}"] for number in range(1, 6)}
FILES = ("authorized_keys", "known_hosts", "client_config")


def member(number: int, **changes: Any) -> dict[str, Any]:
    its = {"port": 22, "host_keys": [f"ssh-ed25519 AAAAhost{number}"], "aliases": [], "addresses": []}
    return {"name": f"node{number}", "address": f"10.0.0.{number}", **its, **changes}


def lines_of(*members: dict[str, Any]) -> list[str]:
    return (rules.authorized_keys(members, rules.Options()) + rules.known_hosts(members)).splitlines()


def look(number: int, *remembered: str, **changes: Any) -> dict[str, Any]:
    key = f"ssh-ed25519 AAAAuser{number}"
    its = {"user": "mpi", "public_key": key, "successor_key": "", "obstacles": [], "reaches_root": ""}
    return {**its, "remembered": list(remembered), **changes}


TRUE = member(3, host_keys=[TRUE_HOST_KEY], user_key=TRUE_KEY)
FORGED = member(3, host_keys=[FORGED_HOST_KEY], user_key=FORGED_KEY, address="10.0.0.66", addresses=["10.0.0.67"])


def planned(looks: dict[str, dict[str, Any]], *more: dict[str, Any], trust: str = "keys") -> dict[str, Any]:
    members = [member(int(name.removeprefix("node"))) for name in looks]
    return ssh_mesh_plan.plan([*members, *more], looks, INVENTORY, rules.Options(trust=trust))


def files_of(plan: dict[str, Any], host: str) -> dict[str, str]:
    """The texts that a host gets, as the role picks them."""
    its = plan["own"].get(host, plan)
    return {name: its[name] for name in FILES}


@pytest.mark.parametrize("liars", [["node1"], ["node1", "node2"], ["node1", "node2", "node5"]])
def test_a_forged_memory_of_a_third_node_stays_with_the_one_that_says_it(liars: list[str]) -> None:
    looks = {
        name: look(int(name[-1]), *lines_of(FORGED if name in liars else TRUE))
        for name in ("node1", "node2", "node4", "node5")
    }
    plan = planned(looks)
    for name in looks:
        text = "".join(files_of(plan, name).values())
        assert ("forged" in text) is (name in liars), "one answer or many, none is a vote"
        assert ("AAAAtrue" in text) is (name not in liars)
    assert "forged" not in "".join(str(plan[name]) for name in (*FILES, "members"))


def test_what_the_controller_has_on_record_is_told_to_all() -> None:
    looks = {name: look(int(name[-1]), *lines_of(FORGED)) for name in ("node1", "node2")}
    plan = planned(looks, TRUE)
    assert plan["own"] == {}
    assert TRUE_HOST_KEY in plan["known_hosts"]
    assert TRUE_KEY in plan["authorized_keys"]
    assert "forged" not in str(plan)


def test_a_record_without_a_key_gets_none_from_another_node() -> None:
    looks = {"node1": look(1, *lines_of(FORGED)), "node2": look(2, *lines_of(TRUE))}
    on_record = {key: value for key, value in TRUE.items() if key != "user_key"}
    plan = planned(looks, on_record)
    assert "forged" not in "".join(files_of(plan, "node2").values())
    assert "AAAAforgedHost" not in "".join(files_of(plan, "node1").values()), "its host key is on record"
    assert TRUE_KEY in files_of(plan, "node2")["authorized_keys"]
    assert all("user_key" not in one for one in plan["members"] if one["name"] == "node3")


def test_a_whole_run_needs_no_memory() -> None:
    looks = {name: look(int(name[-1]), *lines_of(FORGED)) for name in INVENTORY}
    plan = planned(looks)
    assert plan["own"] == {}
    assert "forged" not in str(plan)


def test_a_malformed_memory_stops_no_run() -> None:
    plan = planned({"node1": look(1, "node3,10.0.0.3 ssh-ed25519 !", 'from="x" y'), "node2": look(2)})
    assert plan["own"] == {}


def test_with_certificates_too_each_node_keeps_its_own_lines() -> None:
    looks = {"node1": look(1, *lines_of(FORGED)), "node2": look(2, *lines_of(TRUE))}
    plan = planned(looks, trust="ca")
    keys = {"user": "ssh-ed25519 AAAAca", "host": "ssh-ed25519 AAAAca"}
    files = ssh_mesh_sign.all_files(plan, [], list(INVENTORY), keys, rules.Options())
    for name, told, other in (("node1", "forged", "AAAAtrue"), ("node2", "AAAAtrue", "forged")):
        its = files["own"][name]
        for text in ("".join(its[one] for one in FILES), "".join(its["both"].values())):
            assert told in text
            assert other not in text
    assert "forged" not in "".join(str(files[one]) for one in (*FILES, "both"))


def test_with_certificates_a_node_that_remembers_no_key_gets_no_line_of_one() -> None:
    plan = planned({"node1": look(1, *lines_of(TRUE)), "node2": look(2)}, TRUE, trust="ca")
    keys = {"user": "ssh-ed25519 AAAAca", "host": "ssh-ed25519 AAAAca"}
    files = ssh_mesh_sign.all_files(plan, [], list(INVENTORY), keys, rules.Options())
    assert TRUE_KEY in files["own"]["node1"]["authorized_keys"]
    assert "node2" not in files["own"]
    assert TRUE_KEY not in files["authorized_keys"]


def test_a_preview_on_fresh_nodes_has_a_line_for_each_key_that_the_run_will_make() -> None:
    looks = {"node1": look(1), "node2": look(2, public_key=""), "node4": look(4, public_key="")}
    members = [member(int(name[-1])) for name in looks]
    inventory = {name: INVENTORY[name] for name in looks}
    plan = ssh_mesh_plan.plan(members, looks, inventory, rules.Options(), check=True)
    lines = plan["authorized_keys"].splitlines()
    assert [line.split()[-1] for line in lines] == ["clusterctl:node1", "clusterctl:node2", "clusterctl:node4"]
    assert ["made/by/the/run" in line for line in lines] == [False, True, True]
    assert [line.count("10.0.0.") for line in lines] == [1, 1, 1], "no node shares the key of another"
    assert "made/by" not in str(plan["members"])
    assert "made/by" not in ssh_mesh_plan.plan(members, looks, inventory, rules.Options())["authorized_keys"]
