"""The mpirun line that run and validate share: the names, the transport and the user."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterctl.launch import compose, mpirun_job
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.mpirun_job import Member
from factory import provisioned

VERSIONS = ("4.1.4", "5.0.7")


def members(called: dict[str, str], version: str = "5.0.7") -> dict[str, Member]:
    return {
        name: Member(provisioned(name, number, hostname=own), 2, version, address=f"10.0.0.{number}")
        for number, (name, own) in enumerate(called.items(), 1)
    }


@pytest.mark.parametrize(
    ("called", "names"),
    [
        ({"10.0.0.1": "node1", "10.0.0.2": "node2"}, ["node1", "10.0.0.2"]),
        ({"alpha": "node1", "beta": "node2"}, ["node1", "10.0.0.2"]),
        ({"node1": "node1.example.org", "node2": "node2.example.org"}, ["node1", "node2"]),
        ({"alpha": "node1.example.org", "beta": "node2"}, ["node1", "10.0.0.2"]),
        ({"alpha": "a.example.org", "beta": "a.example.net"}, ["a.example.org", "10.0.0.2"]),  # one short name
        ({"node1.example.org": "node1", "node2.example.org": "node2"}, ["node1", "node2"]),
        ({"a.b": "a.b", "c.d": "c.d"}, ["a.b", "c.d"]),
        ({"node1": "node1", "node2": "pypi", "node3": "node3"}, ["node1", "10.0.0.2", "node3"]),
        ({"pypi": "node1", "node2": "pypi"}, ["node1", "node2"]),
        ({"alpha": "localhost", "beta": "localhost.localdomain"}, ["alpha", "beta"]),  # names that others share
        ({"alpha": "image", "beta": "image", "gamma": "node3"}, ["alpha", "beta", "10.0.0.3"]),
        ({"node1": "node2", "node2": "node1"}, ["node1", "node2"]),  # names of other nodes in the inventory
        ({"alpha": "-H", "beta": "a:9,evil", "gamma": ""}, ["alpha", "beta", "gamma"]),
    ],
)
def test_only_the_launch_node_may_have_a_name_that_it_gave_itself(called: dict[str, str], names: list[str]) -> None:
    assert list(mpirun_job.node_names(members(called), next(iter(called))).values()) == names


def test_a_node_that_only_launches_gets_no_name() -> None:
    nodes = members({"alpha": "one", "beta": "two"})
    assert mpirun_job.node_names(nodes, "outside") == {"alpha": "10.0.0.1", "beta": "10.0.0.2"}


def test_an_address_that_mpirun_cannot_read_leaves_the_name() -> None:
    nodes = {name: replace(one, address="fd00::2") for name, one in members({"alpha": "one", "beta": "two"}).items()}
    assert mpirun_job.node_names(nodes, "alpha") == {"alpha": "one", "beta": "beta"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_on_bare_addresses_names_the_nodes_by_their_host_names(version: str) -> None:
    nodes = members({"10.0.0.1": "one", "10.0.0.2": "two"}, version)
    plan = compose.compose(nodes, "10.0.0.2", JobOptions(("hostname",), ranks=2))
    assert plan.argv[plan.argv.index("-H") + 1] == "two:2,10.0.0.1:2"
    assert plan.hosts == ("10.0.0.2", "10.0.0.2", "10.0.0.1", "10.0.0.1")  # what the user sees is the inventory's


@pytest.mark.parametrize(("version", "option"), list(zip(VERSIONS, ("--mca orte", "--prtemca prte"), strict=True)))
def test_names_with_a_domain_stay_whole(version: str, option: str) -> None:
    nodes = members({"a.example.org": "a.example.org", "b.example.org": "b.example.org"}, version)
    line = mpirun_job.line(nodes, {"a.example.org": 1, "b.example.org": 1}, mpirun_job.MpirunJob(("true",)))
    assert "-H a.example.org:1,b.example.org:1" in " ".join(line.argv)
    assert f"{option}_keep_fqdn_hostnames 1" in " ".join(line.argv)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_check_and_a_run_differ_in_nothing_but_what_they_ask_for(version: str) -> None:
    nodes = members({"alpha": "node1", "beta": "node2"}, version)
    ran = compose.compose(nodes, "alpha", JobOptions(("true",))).argv
    checked = mpirun_job.line(nodes, {"alpha": 2, "beta": 2}, mpirun_job.MpirunJob(("true",)))
    exports = ["-x", "PATH", "-x", "LD_LIBRARY_PATH"]
    assert [word for word in ran if word not in exports] == [word for word in checked.argv if word not in exports]
