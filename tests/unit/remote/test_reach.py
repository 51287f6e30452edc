"""The command that reaches a node: ssh, or a step of a Slurm job, here or on a submit host."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host, SlurmStep
from clusterctl.remote import one_trip, python, reach
from clusterctl.remote.supervised_job import JobLogin

PLAIN = Host("node2", "192.0.2.12", user="cluster")
LOGIN_NODE = Host("login", "192.0.2.1", port=2222, user="mpi")
STEP = SlurmStep(42, "n2")
IN_JOB = Host("node2", "192.0.2.12", step=STEP)
THROUGH = Host("node2", "192.0.2.12", step=SlurmStep(42, "n2", LOGIN_NODE))
STEP_HOST = Host("node2", "192.0.2.12", python="/usr/bin/python9", step=STEP)
SRUN_FAILURES = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "slurm" / "srun-failures.json").read_text("utf-8")
)
REMOTE = ["/usr/bin/python3", "-c", "print('a b')", ""]


def test_an_ordinary_host_is_reached_by_ssh_as_before() -> None:
    for user in (None, "cluster", "mpi"):
        wanted = reach.ssh_command(PLAIN, REMOTE, as_user=user, control_dir=Path("/c"), connect_timeout_s=5)
        assert reach.command(PLAIN, REMOTE, as_user=user, control_dir=Path("/c"), connect_timeout_s=5) == wanted


def test_settings_for_people_change_no_call_of_ssh(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n  RequestTTY force\n  RemoteCommand tmux\n  PermitLocalCommand yes\n  LocalCommand echo here\n"
    )
    host = replace(PLAIN, ssh_args=("-F", str(config)))
    asked = [reach.arguments(host)[0], "-G", *reach.arguments(host)[1:]]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"requesttty false", "clearallforwardings yes", "permitlocalcommand no"} <= set(said)
    assert not [line for line in said if line.startswith("remotecommand")]


def test_a_host_in_an_allocation_is_reached_by_a_step_on_its_slurm_node() -> None:
    argv = reach.command(IN_JOB, REMOTE, control_dir=Path("/c"))
    assert argv[0] == "srun"
    assert argv[-len(REMOTE) :] == REMOTE
    options = argv[1 : -len(REMOTE)]
    assert set(options) >= {"--jobid=42", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2", "--mpi=none"}
    assert "--cpu-bind=none" in options
    assert all(option.startswith("--") for option in options)
    assert not [option for option in options if option.startswith(("--unbuffered", "--pty", "--label"))]


def test_only_named_variables_of_this_machine_reach_the_node() -> None:
    (exported,) = [word for word in reach.command(IN_JOB, ["true"]) if word.startswith("--export=")]
    assert not {"ALL", "NONE"} & set(exported.removeprefix("--export=").split(","))
    assert "PATH" in exported


def test_with_a_submit_host_srun_runs_there_and_every_token_arrives_as_it_was() -> None:
    argv = reach.command(THROUGH, REMOTE, control_dir=Path("/c"), connect_timeout_s=7)
    *ssh_words, line = argv
    assert ssh_words == reach.arguments(LOGIN_NODE, connect_timeout_s=7)
    assert shlex.split(line) == reach.command(IN_JOB, REMOTE)
    assert not [word for word in argv if "ControlPath" in word]


def test_few_begin_at_once_where_all_log_in_to_one_machine_first(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host 192.0.2.9?\n  ProxyJump gate\n", encoding="utf-8")
    plain = [
        replace(PLAIN, address=f"192.0.2.{number}", ssh_args=("-F", str(tmp_path / "config"))) for number in range(9)
    ]
    named = [replace(host, ssh_args=("-o", "ProxyJump=gate")) for host in plain]
    configured = [*plain, replace(plain[0], address="192.0.2.99")]
    asked = [plain, named, configured, [*plain, THROUGH], named[:8]]
    assert [reach.at_once(hosts) for hosts in asked] == [64, 8, 8, 8, 64]


def test_another_user_of_a_step_is_reached_through_sudo() -> None:
    argv = reach.command(IN_JOB, ["true"], as_user="mpi")
    assert argv[-7:] == ["sudo", "-n", "-H", "-u", "mpi", "--", "true"]


def test_jobs_use_the_same_way() -> None:
    assert JobLogin(THROUGH).command(["true"]) == reach.command(THROUGH, ["true"])
    assert IN_JOB.by_ssh
    assert Host("n", "n", connection="local", step=STEP).by_ssh


def test_few_logins_go_to_one_submit_host_at_a_time() -> None:
    assert reach.at_once([PLAIN, IN_JOB]) == 64
    assert reach.at_once([PLAIN, THROUGH]) < 10


def test_messages_name_the_job_and_the_step_by_hand() -> None:
    assert reach.where(PLAIN) == "node2 (192.0.2.12 port 22)"
    assert reach.where(IN_JOB) == "node2 (n2 in Slurm job 42)"
    assert "srun --jobid=42" in reach.by_hand(IN_JOB)
    assert (reach.client(PLAIN), reach.client(THROUGH)) == ("ssh", "srun")
    assert "--submit-host" in reach.without_client(IN_JOB)
    assert "openssh-client" in reach.without_client(THROUGH)


def test_a_trip_into_an_allocation_needs_srun_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of nodes, sent through a stand-in for srun that drops its options and runs the rest here."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nwhile case $1 in --*) true;; *) false;; esac; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def read(_host: Host, ending: python.Ending) -> bytes:
        return ending.output

    request = b'{"targets": [], "timeout_s": 1, "budget_s": 1, "clock": 0}\n'
    answers, failures = asyncio.run(one_trip.ask({IN_JOB: request}, "login_probe", read, timeout_s=20))
    assert not failures
    assert b'"event":"logins"' in answers["node2"]


def test_a_machine_without_srun_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    asking = one_trip.ask({IN_JOB: b""}, "login_probe", lambda _host, ending: ending, timeout_s=5)
    answers, failures = asyncio.run(asking)
    assert not answers
    assert "srun is missing" in failures["node2"].message


@pytest.mark.parametrize("case", SRUN_FAILURES, ids=[case["case"] for case in SRUN_FAILURES])
def test_a_failed_srun_is_told_in_one_sentence(case: dict[str, Any]) -> None:
    failure = reach.classify(STEP_HOST, case["returncode"], case["stderr"])
    assert (failure.host, failure.kind) == ("node2", case["kind"])
    for word in case["words"]:
        assert word in failure.message
    assert "\n" not in failure.message


def test_a_submit_host_that_is_gone_is_named_itself() -> None:
    said = "ssh: connect to host 192.0.2.1 port 2222: Connection refused\n"
    failure = reach.classify(THROUGH, 255, said)
    assert failure.kind == "unreachable"
    assert "login (192.0.2.1 port 2222) refuses connections" in failure.message
    assert failure.message.startswith("node2")


def test_a_submit_host_without_srun_is_named() -> None:
    failure = reach.classify(THROUGH, 127, "bash: line 1: srun: command not found\n")
    assert "login (192.0.2.1 port 2222) has no srun" in failure.message


def test_the_exit_code_of_the_program_is_no_failure_of_slurm() -> None:
    failure = reach.classify(STEP_HOST, 255, "srun: error: n2: task 0: Exited with exit code 255\n")
    assert "status 255" in failure.message


def test_a_shared_connection_is_told_to_end_in_the_words_of_ssh(tmp_path: Path) -> None:
    heard = bytearray()

    def master(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            while len(heard) < 24:
                heard.extend(connection.recv(24))
            connection.sendall(b"\0\0\0\x08\0\0\0\x01\0\0\0\x04")

    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as left:
        listening.bind(str(tmp_path / "alive"))
        listening.listen()
        left.bind(str(tmp_path / "killed"))  # nobody listens
        thread = threading.Thread(target=master, args=(listening,))
        thread.start()
        reach.close_connections(tmp_path)
        thread.join(5)
    hello, terminate = bytes(heard[:12]), bytes(heard[12:])
    assert hello == b"\0\0\0\x08\0\0\0\x01\0\0\0\x04", "MUX_MSG_HELLO of version 4"
    assert terminate == b"\0\0\0\x08\x10\0\0\x05\0\0\0\0", "MUX_C_TERMINATE"
