"""Every node resolves every name to the cluster address, its own included, by whatever way a program asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

NAMES = {
    "node1": ["node1", "node1.example.test", "login"],
    "node2": ["node2", "node2.example.test"],
}
PAIRS = [(node, name) for node, names in NAMES.items() for name in names]


def cluster_address(host: Host, node: str) -> str:
    return str(host.backend.ansible_runner.get_variables(node)["ansible_host"])


@pytest.mark.parametrize(("node", "name"), PAIRS)
def test_every_name_resolves_to_the_cluster_address_alone(host: Host, node: str, name: str) -> None:
    answers = {line.split()[0] for line in host.check_output("getent ahostsv4 %s", name).splitlines()}
    assert answers == {cluster_address(host, node)}


@pytest.mark.parametrize(("node", "name"), PAIRS)
def test_a_program_that_takes_the_first_answer_gets_the_cluster_address(host: Host, node: str, name: str) -> None:
    program = "import socket, sys; print(socket.getaddrinfo(sys.argv[1], 22)[0][4][0])"
    assert host.check_output("python3 -c %s %s", program, name) == cluster_address(host, node)


def test_the_full_name_is_the_canonical_one(host: Host) -> None:
    name = host.check_output("hostname")
    assert host.check_output("hostname -f") == f"{name}.example.test"


def test_localhost_is_left_alone(host: Host) -> None:
    assert host.check_output("getent ahostsv4 localhost").split()[0] == "127.0.0.1"


def test_a_node_reaches_another_by_name(host: Host) -> None:
    other = "node2" if host.check_output("hostname") == "node1" else "node1"
    program = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(7).decode())"
    assert host.check_output("python3 -c %s %s", program, other) == "SSH-2.0"


def test_the_hostfile_has_every_node_with_its_slots(host: Host) -> None:
    lines = host.file("/etc/clusterctl/hostfile").content_string.splitlines()
    assert [line.split(" slots=")[0] for line in lines][:2] == ["node1", "node2"]
    assert all(int(line.split(" slots=")[1]) > 0 for line in lines)
