"""Where the software lies: all of it below one prefix, which hosts take from the inventory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.launch import submission_text
from clusterctl.launch.submission import Submission
from clusterctl.launch.submission_text import KINDS
from clusterctl.model import job_login
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host, InventoryOptions
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.remote import facts, python
from clusterctl.support.errors import ConfigError
from doctor_view import record_of

ELSEWHERE = Layout("/opt/cluster")


def test_everything_lies_below_the_prefix() -> None:
    assert DEFAULT_LAYOUT.mpirun == "/usr/local/openmpi/bin/mpirun"
    assert DEFAULT_LAYOUT.programs == "/usr/local/libexec/clusterctl"
    names = [name for name in dir(Layout) if isinstance(getattr(Layout, name), property)]
    for name in names:
        assert str(getattr(ELSEWHERE, name)) == str(getattr(DEFAULT_LAYOUT, name)).replace("/usr/local", "/opt/cluster")


def test_a_host_has_the_prefix_of_the_inventory() -> None:
    assert Host("node1", "10.0.0.1").layout == DEFAULT_LAYOUT
    assert Host("node1", "10.0.0.1", variables={"cluster_prefix": "/opt/cluster"}).layout == ELSEWHERE


def test_scripts_for_slurm_name_the_programs_below_the_prefix() -> None:
    text = submission_text.script(with_reason=True, deadline_s=10, layout=ELSEWHERE)
    assert "/opt/cluster/libexec/clusterctl/check_node.py" in text
    assert "/usr/local" not in text
    text = KINDS["slurm"](Submission("job", ("./hello",), nodes=2, nproc_per_node=1, by_srun=True, layout=ELSEWHERE))
    assert "/opt/cluster/openmpi/libexec/clusterctl-hello" in text
    assert "/usr/local" not in text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "node1\nnode2\n[all:vars]\ncluster_prefix=opt/cluster\n",
            "node1: cluster_prefix is 'opt/cluster', which is not",
        ),
        ("node1 cluster_prefix=/opt/a\nnode2\n", "cluster_prefix is /opt/a on node1 and /usr/local on node2"),
    ],
)
def test_an_inventory_with_another_value_is_refused(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text(lines)
    with pytest.raises(ConfigError) as refused:
        ansible_inventory.load(path)
    assert words in str(refused.value)


def test_the_prefix_of_a_template_and_of_an_extra_variable_is_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("node1\n[all:vars]\nbase=/opt\ncluster_prefix={{ base }}/cluster\n")
    assert ansible_inventory.load(path).host("node1").layout == ELSEWHERE
    given = InventoryOptions(extra_vars=("cluster_prefix=/srv/sw",))
    assert ansible_inventory.load(path, given).host("node1").layout == Layout("/srv/sw")


# --- hosts: what a typed password changes ---


def test_a_typed_password_stands_below_one_of_the_inventory() -> None:
    plain, own = Host("node1", "a"), Host("node2", "b", sudo_password="kept")  # noqa: S106 - of a test
    assert plain.with_sudo_password("hush").sudo_password == "hush"  # noqa: S105 - of a test
    assert own.with_sudo_password("hush") is own
    assert plain.with_sudo_password(None) is plain


# --- facts ---


def test_a_newer_probes_keys_are_passed_over() -> None:
    record = _record_of_this_machine()
    newer = {**record, "schema_version": 2, "quantum": [], "user": {**record["user"], "shoe_size": 43}}
    assert NodeFacts.model_validate(newer).hostname == record["hostname"]


def test_the_first_driver_branch_of_each_cuda_is_told_by_number() -> None:
    cuda = NodeFacts.model_validate(_record_of_this_machine()).cuda
    assert cuda.first_branches[13] == 580


def test_a_record_survives_being_written_and_read() -> None:
    known = NodeFacts.model_validate(_record_of_this_machine())
    assert NodeFacts.model_validate_json(known.model_dump_json()) == known


def _record_of_this_machine() -> dict[str, Any]:
    program = python.program(facts.NODE_PROBE)
    reply = python.ask(program.argv(sys.executable), program.data + b"{}", 30, {"schema_version"})
    assert reply.answer is not None, reply.problem
    return reply.answer


# --- the job's login: one user for every job, reached by ssh, or through sudo where the account is the user's own ---


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
