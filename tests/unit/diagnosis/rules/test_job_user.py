from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import pytest
from clusterctl.diagnosis.rules import registry
from clusterctl.model.hosts import Host
from clusterctl.remote import ssh_failure
from clusterctl.support import content
from doctor_view import NODES, seen, told

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import job_user_rules

if TYPE_CHECKING:
    from doctor_view import Change


def account(**given: object) -> Change:
    user = {"name": "mpi", "uid": 51620, "home": "/home/mpi", "shell": "/bin/bash", "sudo": False, **given}

    def change(record: dict[str, object]) -> None:
        record["job_user"] = user

    return change


def everywhere(**given: object) -> dict[str, Change]:
    return dict.fromkeys(NODES, account(**given))


def test_an_account_without_privileges_is_worth_no_word() -> None:
    view = seen(**everywhere())
    assert told(view) == []
    assert registry.notes(view) == ()


def test_a_job_that_can_become_root_is_told_in_one_line_for_the_whole_cluster() -> None:
    (note,) = registry.notes(seen(**everywhere(name="ubuntu", sudo=True)))
    assert note.startswith("Jobs run as user ubuntu, who may use sudo without a password: root on one node")
    assert "Set cluster_user" in note
    (note,) = registry.notes(seen(**{**everywhere(), "node2": account(sudo=True)}))
    assert "without a password on node2: " in note
    (note,) = registry.notes(seen(**everywhere(name="root", uid=0, sudo=True)))
    assert note.startswith("Jobs run as root: root on one node")


@pytest.mark.parametrize("uid", [0, 51620])
@pytest.mark.parametrize("others_too", [True, False])
def test_doctor_says_the_sentence_of_provision_about_a_way_to_root(uid: int, *, others_too: bool) -> None:
    nodes = NODES if others_too else ("node2",)
    view = seen(**{**everywhere(uid=uid), **dict.fromkeys(nodes, account(uid=uid, sudo=True))})
    reaching = dict.fromkeys(nodes, "sudo" if uid else "root")
    assert registry.notes(view) == (job_user_rules.root_reach("mpi", reaching, len(NODES)),)


def test_sudo_that_does_not_answer_is_no_claim() -> None:
    assert registry.notes(seen(**everywhere(sudo=None))) == ()


def test_different_uids_are_a_note() -> None:
    (note,) = registry.notes(seen(**{**everywhere(), "node4": account(uid=1001)}))
    assert "uid of user mpi differs: 1001 on node4, 51620 on node[1-3]" in note


def test_a_provisioned_node_without_the_account_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(uid=-1)})
    assert told(view) == [("job_user", "error", ("node3",))]
    (found,) = registry.diagnose(view)
    assert "user mpi" in found.cause
    assert "provision" in found.cure


def test_an_account_without_its_home_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(has_home=False)})
    (found,) = registry.diagnose(view)
    assert (found.hosts, found.severity) == (("node3",), "error")
    assert found.cause == "the home /home/mpi of user mpi is missing"
    assert "su - mpi -c true" in found.cure


def test_an_account_whose_home_hangs_is_an_error() -> None:
    view = seen(**{**everywhere(), "node3": account(has_home=False, home_answers=False)})
    (found,) = registry.diagnose(view)
    assert (found.hosts, found.severity) == (("node3",), "error")
    assert found.cause == "the home /home/mpi of user mpi is on a file system that does not answer"


def test_a_node_that_refuses_the_account_is_named_with_the_way_to_its_keys() -> None:
    host = Host("node2", "10.0.0.2", user="mpi", variables={"cluster_user": "mpi"})
    failure = ssh_failure.classify(host, 255, "mpi@10.0.0.2: Permission denied (publickey).\n")
    view = dataclasses.replace(seen(**everywhere()), closed_to_jobs={"node2": failure})
    assert told(view) == [("job_user", "error", ("node2",))]
    (found,) = registry.diagnose(view)
    assert "refuses the login of user mpi" in found.cause
    assert "cluster_user_keys" in found.cure
