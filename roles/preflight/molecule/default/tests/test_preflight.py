"""What preflight says of the nodes is what the nodes are, and every node was told the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testinfra.host import Host


def told(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file("/root/preflight.json").content_string)
    return found


def addresses(host: Host) -> dict[str, str]:
    runner = host.backend.ansible_runner
    return {name: str(runner.get_variables(name)["ansible_host"]) for name in runner.get_hosts()}


def test_the_node_is_described_as_it_is(host: Host) -> None:
    node = told(host)["node"]
    assert node["hostname"] == host.check_output("hostname")
    assert node["distribution"]["version_id"] == host.system_info.release.partition(".")[0]
    assert node["user"]["name"] == "cluster"


def test_the_members_are_all_nodes_at_their_addresses(host: Host) -> None:
    members = told(host)["members"]
    assert {member["name"]: member["address"] for member in members} == addresses(host)
    assert {member["port"] for member in members} == {22}
    assert {member["slots"] for member in members} == {2}


def test_a_member_is_of_the_platform_that_its_node_has(host: Host) -> None:
    (platform,) = (one["platform"] for one in told(host)["members"] if one["name"] == host.check_output("hostname"))
    assert host.system_info.release.partition(".")[0] in platform, platform


def test_a_members_host_key_is_the_one_that_its_sshd_shows(host: Host) -> None:
    for member in told(host)["members"]:
        scanned = host.check_output("ssh-keyscan -T 10 -t ed25519 %s 2>/dev/null", member["address"]).splitlines()
        shown = [" ".join(line.split()[1:3]) for line in scanned if not line.startswith("#")]
        assert len(shown) == 1
        assert shown[0] in member["host_keys"]
