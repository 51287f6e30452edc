"""The job's login: one user for every job, reached by ssh, or through sudo where the account is the user's own."""

from __future__ import annotations

from typing import Any

import pytest
from clusterctl.model import job_login
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host
from doctor_view import record_of


def host(**variables: Any) -> Host:
    return Host("node1", "10.0.0.1", user="ubuntu", become=True, variables=variables)


def node(user: str = "ubuntu") -> NodeFacts:
    record = record_of("node1")
    record["user"]["name"] = user
    return NodeFacts.model_validate(record)


@pytest.mark.parametrize("variables", [{}, {"cluster_user": ""}, {"cluster_user": None}])
def test_without_a_cluster_user_jobs_are_the_login_users(variables: dict[str, Any]) -> None:
    login = job_login.job_host(host(**variables))
    assert (login.user, login.become) == ("ubuntu", False)
    assert job_login.through_sudo(host(**variables), node()) is None
    assert job_login.job_user(host(**variables)) == ""


def test_the_cluster_user_logs_in_by_ssh_and_needs_no_sudo() -> None:
    given = host(cluster_user="mpi")
    login = job_login.job_host(given)
    assert (login.user, login.become, login.address) == ("mpi", False, "10.0.0.1")
    assert job_login.through_sudo(given, node("mpi")) is None
    assert job_login.job_user(given) == "mpi"
    assert job_login.has_own_account(given)


def test_an_account_of_the_users_own_is_reached_through_sudo() -> None:
    given = host(ssh_mesh_user="user1")
    assert job_login.job_host(given).user == "ubuntu"
    assert job_login.through_sudo(given, node()) == "user1"
    assert job_login.through_sudo(given, node("user1")) is None
    assert job_login.job_user(given) == "user1"
    assert not job_login.has_own_account(given)


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIALi599DvvDwMySq11LrlGoa5zscn2pIVvFVI3NuVmul"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"cluster_user": "root"}, "without privileges"),
        ({"cluster_user": "a b"}, "not a valid user name"),
        ({"cluster_user": "-oProxyCommand"}, "not a valid user name"),
        ({"cluster_user": "Mpi"}, "not a valid user name"),
        ({"cluster_user": "x" * 33}, "not a valid user name"),
        ({"cluster_user": 7}, "not a valid user name"),
        ({"cluster_user": "mpi", "ssh_mesh_user": "user1"}, "remove one of them"),
        ({"cluster_user": "mpi", "cluster_user_keys": ["/root/key.pub"]}, "'/root/key.pub', which is not a public key"),
        ({"cluster_user": "mpi", "cluster_user_keys": [f"{KEY}\n{KEY}"]}, "not a public key"),
        ({"cluster_user": "mpi", "cluster_user_keys": {"user1": KEY}}, "not a public key"),
    ],
)
def test_values_that_no_node_could_use_are_told_in_one_clause(variables: dict[str, Any], says: str) -> None:
    assert says in job_login.problem(variables)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"cluster_user": "mpi"},
        {"cluster_user": "mpi", "ssh_mesh_user": "mpi"},
        {"cluster_user": "mpi", "cluster_user_keys": KEY},
        {"cluster_user": "mpi", "cluster_user_keys": [f'from="10.0.0.0/8",no-pty {KEY} user1@home', KEY]},
    ],
)
def test_sound_values_pass(variables: dict[str, Any]) -> None:
    assert job_login.problem(variables) == ""
