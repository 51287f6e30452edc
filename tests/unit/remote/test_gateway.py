"""Questions through gateways: the real relay behind a stand-in for ssh that runs the remote command here."""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from clusterctl.model.gateways import GatewayWish
from clusterctl.model.hosts import Host
from clusterctl.remote import facts, gateway, one_trip, python

if TYPE_CHECKING:
    from pathlib import Path

# The controller's ssh ends in an address, the gateway's in a name; each writes its own line of the log.
SSH = """#!/bin/sh
for last; do to=$word; word=$last; done
echo "$PPID $to" >> LOG
case "$to:$(cat FAULT)" in
node2:refuses) echo 'node2: Permission denied (publickey).' >&2; exit 255;;
node3:dies) kill -9 $PPID; exit 255;;
node3:stops) kill -STOP $PPID; exit 255;;
node2:hangs) echo 'clusterctl reads launch' >&2; sleep 60;;
node2:fails) echo 'Traceback' >&2; exit 3;;
node2:floods) yes | head -c 9000000;;
10.0.0.1:lies) read -r line; echo '{"relayed":0,"end":"done","code":0,"out":"%","err":""}'; cat > /dev/null; exit;;
*) exec sh -c "$last";;
esac
"""


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what goes wrong."""
    program, found = tmp_path / "ssh", tmp_path / "fault"
    program.write_text(SSH.replace("LOG", str(tmp_path / "log")).replace("FAULT", str(found)))
    program.chmod(0o755)
    found.write_text("none")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return found


FIRST = GatewayWish(names=("node1",))


def nodes(wish: GatewayWish | None = FIRST) -> list[Host]:
    return [Host(f"node{number}", f"10.0.0.{number}", gateways=wish) for number in (1, 2, 3)]


def logins(fault: Path) -> list[str]:
    return sorted(line.split()[1] for line in (fault.parent / "log").read_text().splitlines())


def test_a_gateway_asks_its_hosts_and_each_gets_its_own_request(fault: Path, tmp_path: Path) -> None:
    watch = {host.name: [{"path": str(tmp_path / host.name), "kind": "file"}] for host in nodes()}
    counts: list[int] = []
    probe = facts.gather(nodes(), watch=watch, timeout_s=30, ended=counts.append)
    assert (probe.failures, probe.notes) == ({}, ())
    assert counts[-1] == 3
    assert {name: node.watch[0]["path"] for name, node in probe.facts.items()} == {
        name: str(tmp_path / name) for name in ("node1", "node2", "node3")
    }
    assert logins(fault) == ["10.0.0.1", "10.0.0.1", "node2", "node3"], "one login for its own answer, one as gateway"


def test_without_gateways_and_for_questions_that_change_a_node_every_host_is_asked_directly(fault: Path) -> None:
    counts: list[int] = []
    facts.gather(nodes(None), timeout_s=30, ended=counts.append)
    assert counts == [1, 2, 3]
    request = b'{"targets": [], "timeout_s": 1, "budget_s": 1, "clock": 0}\n'
    answers, _ = one_trip.ask(
        dict.fromkeys(nodes(), request), "login_probe", lambda _host, ending: ending.output, timeout_s=20
    )
    assert len(answers) == 3
    assert set(logins(fault)) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


@pytest.mark.parametrize(
    ("what", "asked", "words"),
    [
        ("refuses", "node2:", "could not ask them (node2: Permission denied (publickey).)"),
        ("dies", "node", "ended before that"),
        ("floods", "node2:", "could not ask them (more than an answer has)"),
        ("lies", "node[2-3]:", "gave an answer that is not readable"),
    ],
)
def test_hosts_without_an_answer_of_their_gateway_are_asked_directly(
    fault: Path, what: str, asked: str, words: str
) -> None:
    fault.write_text(what)
    probe = facts.gather(nodes(), timeout_s=30)
    assert set(probe.failures) == ({"node1"} if what == "lies" else set()), "a liar lies about itself, too"
    assert {"node2", "node3"} <= probe.facts.keys()
    (note,) = probe.notes
    assert note.startswith(asked)
    assert f": asked directly, because the gateway node1 {words}" in note


def test_a_gateway_that_stands_still_is_left_after_a_while(fault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_SILENT_S", 6.0)
    fault.write_text("stops")
    probe = facts.gather(nodes(), timeout_s=30)
    assert probe.failures == {}
    assert "the gateway node1 did not answer in time." in probe.notes[0]


def test_the_failure_of_a_host_itself_is_told_as_without_a_gateway(fault: Path) -> None:
    for what, seconds, kind, words in (
        ("hangs", 3.0, "timeout", "did not answer within 3 s, while it read 'launch'"),
        ("fails", 30.0, "error", "the probe ended with status 3. Traceback"),
    ):
        fault.write_text(what)
        probe = facts.gather(nodes(), timeout_s=seconds)
        assert set(probe.facts) >= {"node3"}
        assert (probe.failures["node2"].kind, probe.notes) == (kind, ())
        assert words in probe.failures["node2"].message
    assert "10.0.0.2" not in logins(fault)


def test_a_gateway_ends_its_logins_when_the_controller_is_gone(fault: Path) -> None:
    fault.write_text("hangs")
    relay = python.program("gateway_relay")
    order = gateway.order({nodes()[1]: b"{}"}, "node_probe.__main__", timeout_s=50, connect_timeout_s=5)
    with subprocess.Popen(relay.argv("/usr/bin/python3"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(relay.data + order)
        process.stdin.flush()
        end = time.monotonic() + 20
        while not (fault.parent / "log").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.stdin.close()
        assert process.wait(timeout=10) == 1


def test_a_hop_is_strict_and_every_word_of_it_arrives_as_it_was() -> None:
    program = python.program("login_probe")
    argv = gateway.hop(replace(nodes()[1], user="mpi", ssh_args=("-J", "gate"), private_key="/k"), program, 7)
    *words, line = argv
    assert words[-4:] == ["-l", "mpi", "--", "node2"]
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes", "ConnectTimeout=7"} <= set(words)
    assert not {"-J", "/k"} & set(words), "the controller's own way to the host"
    assert shlex.split(line) == program.argv("/usr/bin/python3")


def test_equal_requests_travel_once() -> None:
    first, second, third = nodes()
    requests = {first: b"a", second: b"a", third: b"b"}
    order = gateway.order(requests, "login_probe", timeout_s=1, connect_timeout_s=1)
    line = json.loads(order.partition(b"\n")[0])
    assert [base64.b64decode(one) for one in line["requests"]] == [b"a", b"b"]
    assert [one["request"] for one in line["hosts"]] == [0, 0, 1]


def test_a_password_goes_to_its_own_host_alone(fault: Path) -> None:
    hosts = [replace(host, become=True).with_sudo_password(secrets.token_hex(8)) for host in nodes()]
    facts.gather([nodes()[0], nodes()[1], hosts[2]], timeout_s=30)
    assert logins(fault) == ["10.0.0.1", "10.0.0.1", "10.0.0.3", "node2"]
