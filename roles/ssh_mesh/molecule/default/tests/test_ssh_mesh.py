"""Each node lets the cluster's user in from each node, and believes nobody whom the controller has not vouched for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

NODES = ("node1", "node2")
# testinfra takes status 255 for a broken connection of its own.
REFUSED = 9
SSH = "ssh -n -o BatchMode=yes -o ConnectTimeout=10"


@pytest.mark.parametrize("target", NODES)
def test_a_shell_without_a_prompt(host: Host, target: str) -> None:
    done = host.run(f"sudo -u cluster {SSH} {target} hostname")
    assert (done.stdout, done.stderr) == (f"{target}\n", "")


@pytest.mark.parametrize("target", NODES)
def test_a_host_key_that_nobody_vouched_for_ends_the_login(host: Host, target: str) -> None:
    done = host.run(f"sudo -u cluster {SSH} -o GlobalKnownHostsFile=/dev/null {target} true || exit {REFUSED}")
    assert done.rc == REFUSED
    assert "Host key verification failed" in done.stderr


@pytest.mark.parametrize("target", NODES)
def test_another_user_does_not_get_in(host: Host, target: str) -> None:
    address = host.backend.ansible_runner.get_variables(target)["ansible_host"]  # the names are the cluster user's
    done = host.run(f"{SSH} -l cluster {address} true || exit {REFUSED}")
    assert done.rc == REFUSED
    assert "Permission denied" in done.stderr


def test_the_private_half_is_its_owners_alone_and_nowhere_else(host: Host) -> None:
    key = host.file("/home/cluster/.ssh/id_clusterctl")
    assert (key.user, key.mode) == ("cluster", 0o600)
    assert host.run("sudo -u cluster ssh-keygen -y -f /home/cluster/.ssh/id_clusterctl").rc == 0


def test_a_key_is_restricted_and_bound_to_its_own_nodes_addresses(host: Host) -> None:
    lines = {
        line.rpartition(" clusterctl:")[2]: line
        for line in host.file("/home/cluster/.ssh/authorized_keys").content_string.splitlines()
        if " clusterctl:" in line
    }
    nodes = host.backend.ansible_runner.get_hosts()
    assert sorted(lines) == sorted(nodes)
    for node, line in lines.items():
        options, key = line.split(" ", 1)
        assert options.startswith('restrict,pty,no-agent-forwarding,no-X11-forwarding,from="')
        assert key.startswith("ssh-ed25519 ")
        accepted = options.partition('from="')[2].rstrip('"').split(",")
        addresses = {str(host.backend.ansible_runner.get_variables(one)["ansible_host"]): one for one in nodes}
        assert [addresses[word] for word in accepted if word in addresses] == [node]
