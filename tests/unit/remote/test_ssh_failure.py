"""A failed ssh becomes one sentence with its cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import ssh_failure

DATA = Path(__file__).resolve().parents[2] / "data" / "node_probe"
CAPTURED = json.loads((DATA / "ssh-failures.json").read_text(encoding="utf-8"))
THROUGH_A_BASTION = json.loads((DATA / "bastion-failures.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CAPTURED, ids=[case["case"] for case in CAPTURED])
def test_a_failed_ssh_is_told_in_one_sentence(case: dict[str, str]) -> None:
    host = Host(
        "node1", "192.0.2.11", port=2222, user="cluster", python="/usr/bin/python9", become=case["kind"] == "no_sudo"
    )
    failure = ssh_failure.classify(host, int(case["returncode"]), case["stderr"])
    assert failure.kind == case["kind"]
    for word in ("node1", "192.0.2.11", "2222"):
        assert word in failure.message
    assert "\n" not in failure.message
    assert failure.message.endswith(".")


def test_a_node_is_silent_where_ssh_tells_that_nobody_answers_there() -> None:
    """A refusal is an answer, and what a bastion does is no sign of the node."""
    silent = {case["case"] for case in (*CAPTURED, *THROUGH_A_BASTION) if ssh_failure.is_silent(255, case["stderr"])}
    assert silent == {"nobody at the address", "timed out", "nobody at the node's address"}
    assert not ssh_failure.is_silent(1, CAPTURED[1]["stderr"]), "the words of a program"


@pytest.mark.parametrize("case", THROUGH_A_BASTION, ids=[case["case"] for case in THROUGH_A_BASTION])
def test_the_way_through_a_bastion_names_who_ended_it(case: dict[str, str]) -> None:
    host = Host("node1", "192.0.2.11", ssh_args=("-o", "ProxyJump=gate"))
    failure = ssh_failure.classify(host, 255, case["stderr"])
    assert (failure.kind, failure.message.startswith("node1 (192.0.2.11 port 22) ")) == (case["kind"], True)
    assert case["words"] in failure.message
    first = case["stderr"].splitlines()[0]
    assert ssh_failure.hides_the_bastion(case["stderr"]) == first.startswith("kex_exchange_identification")
    assert first in failure.message, "the bastion's own words are the evidence"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-J", "me@gate:2222"], "me@gate:2222"),
        (["-Jgate,inner"], "gate,inner"),
        (["-o", "User=x", "-o", "proxyjump gate", "-J", "late"], "gate"),
        (["-oProxyCommand=ssh -q -W %h:%p -l me gate"], "gate"),
        (["-o", "ProxyCommand = /usr/bin/ssh gate -W '[%h]:%p'"], "gate"),
        (["-o", "ProxyCommand=nc -X connect -x proxy:3128 %h %p"], ""),
        (["-o", "ProxyCommand='"], ""),
        (["-F", "config", "-o", "StrictHostKeyChecking=yes"], ""),
        (["-?", "-J", "gate"], ""),
        ([], ""),
    ],
)
def test_the_bastion_is_named_from_the_options_of_ssh(options: list[str], expected: str) -> None:
    assert ssh_failure.bastion(options) == expected


def test_a_bastion_that_the_inventory_does_not_name_is_the_nodes_own() -> None:
    failure = ssh_failure.classify(Host("node1", "192.0.2.11"), 255, THROUGH_A_BASTION[0]["stderr"])
    assert "goes through its bastion, which does not answer" in failure.message


@pytest.mark.parametrize(
    ("returncode", "said", "kind", "words"),
    [
        (
            255,
            "Access denied by pam_slurm_adopt: you have no active jobs on this node",
            "refused",
            "user hpc has none; ",
        ),
        (255, "kex_exchange_identification: read: Connection reset by peer", "unreachable", "ends the connection"),
        (255, "ssh: connect to host 192.0.2.1 port 22: Connection refused", "unreachable", "refuses connections"),
        (1, "This account is currently not available.", "refused", "gives user hpc no shell; "),
        (
            1,
            "Fatal Python error: init_fs_encoding: no codec",
            "no_python",
            "cannot start /usr/bin/python3 (no codec); ",
        ),
        (127, "python3: error while loading shared libraries: libz.so.1: cannot open", "no_python", "find libz.so.1"),
        (254, "bash: fork: Resource temporarily unavailable", "error", "no further process for user hpc; raise nproc"),
    ],
)
def test_a_node_that_answers_is_not_said_to_be_silent(returncode: int, said: str, kind: str, words: str) -> None:
    failure = ssh_failure.classify(Host("n", "192.0.2.1", user="hpc", python="/usr/bin/python3"), returncode, said)
    assert (failure.kind, words in failure.message) == (kind, True), failure.message
    assert "does not answer" not in failure.message


def test_what_nologin_prints_in_place_of_an_answer_tells_the_shell() -> None:
    found = ssh_failure.classify(
        Host("n", "192.0.2.1", user="mpi"), 1, "", b"This account is currently not available.\n"
    )
    assert (found.kind, "gives user mpi no shell; set the user's login shell" in found.message) == ("refused", True)


def test_anything_else_shows_what_was_said() -> None:
    failure = ssh_failure.classify(Host("n", "192.0.2.1"), 1, "Traceback\nMemoryError\n")
    assert failure.kind == "error"
    assert "MemoryError" in failure.message


def test_a_refused_cluster_user_is_told_how_to_get_its_keys() -> None:
    host = Host("n", "192.0.2.1", user="mpi", variables={"cluster_user": "mpi"})
    failure = ssh_failure.classify(host, 255, "mpi@192.0.2.1: Permission denied (publickey).\n")
    assert failure.kind == "refused"
    for words in ("user mpi", "run 'clusterctl provision'", "list your public key in cluster_user_keys"):
        assert words in failure.message


def test_what_ansible_is_told_and_plain_ssh_does_not_do_stands_with_the_failure() -> None:
    clause = "become_method = su in /etc/ansible/ansible.cfg line 9 does not count here: clusterctl itself takes sudo"
    host = Host("node1", "192.0.2.11", become=True, unheeded=(clause,))
    message = ssh_failure.classify(host, 1, "sudo: a password is required\n").message
    assert "cannot use sudo without a password" in message
    assert message.endswith(f" {clause}.")


@pytest.mark.parametrize("given", [None, "secret"])
def test_sudo_that_wants_a_terminal_gets_its_own_cure(given: str | None) -> None:
    host = Host("node1", "192.0.2.11", user="mpi", become=True).with_sudo_password(given)
    # The words of sudo 1.8 and 1.9 (plugins/sudoers/policy.c).
    failure = ssh_failure.classify(host, 1, "sudo: sorry, you must have a tty to run sudo\n")
    assert failure.kind == "no_sudo"
    assert "'Defaults:mpi !requiretty' into a file of /etc/sudoers.d" in failure.message
    assert "-K" not in failure.message
