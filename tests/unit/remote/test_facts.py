"""What a probe of the hosts brings: a record or a failure for each."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clusterctl.model.clock import Clock
from clusterctl.model.hardware import OF_FABRIC, Hardware
from clusterctl.model.hosts import Host
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import facts, one_trip, python, ssh_failure
from doctor_view import record_of


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``ssh`` that runs the remote command here: everything but the network is the real thing."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$*" in\n'
        "*192.0.2.9*) sleep 30;;\n*192.0.2.8*) echo motd; exit 0;;\n"
        "*192.0.2.7*) echo 'clusterctl reads names' >&2; echo 'clusterctl reads launch' >&2; sleep 30;;\n"
        "*127.0.0.7*) sleep 30;;\n"
        '*) echo "Welcome to the machine"; eval "$last";;\nesac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


@pytest.mark.usefixtures("stand_in")
def test_every_host_is_a_record_or_a_failure(tmp_path: Path) -> None:
    hosts = [Host("a", "192.0.2.1"), Host("b", "192.0.2.2"), Host("mute", "192.0.2.8"), Host("stuck", "192.0.2.9")]
    watch = {"a": [{"path": str(tmp_path), "kind": "dir", "mode": "0000"}]}
    libraries = [{"soname": "libc.so.6"}, {"soname": "libnone.so.1", "also": ["/etc/host*"]}]
    probe = facts.gather(hosts, watch=watch, libraries=libraries, timeout_s=5)
    assert set(probe.facts) == {"a", "b"}
    assert {name: failure.kind for name, failure in probe.failures.items()} == {"mute": "error", "stuck": "timeout"}
    assert [entry["kind"] for entry in probe.facts["a"].watch] == ["dir"]
    assert probe.facts["b"].watch == ()
    libc, none = probe.facts["b"].libraries
    assert libc.path.endswith("/libc.so.6")
    assert (none.soname, none.path, none.others) == ("libnone.so.1", "", ())


def test_the_clock_of_a_node_is_compared_with_that_of_this_machine() -> None:
    record = json.dumps({**record_of("node1"), "time": 1300.0}, separators=(",", ":"))
    found = facts.read(Host("a", "192.0.2.1"), python.Ending(0, record.encode(), "", began=1000.0, ended=1004.0))
    assert found.clock == Clock(offset_s=298.0, uncertainty_s=2.0)
    assert facts.read(Host("a", "192.0.2.1"), python.Ending(0, record.encode(), "")).clock is None


@pytest.mark.usefixtures("stand_in")
def test_a_probe_that_is_late_on_a_busy_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for load in (0.0, 1000.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        (late,) = facts.gather([Host("mute", "192.0.2.9")], timeout_s=1).failures.values()
        assert ("; this machine is busy (a load of 1000 on " in late.message) == (load > 0)
        assert late.message.endswith("so try again with less work on it.") == (load > 0)


@pytest.mark.usefixtures("stand_in")
def test_a_probe_that_is_late_says_what_it_reads() -> None:
    late = facts.gather([Host("late", "192.0.2.7"), Host("mute", "192.0.2.9")], timeout_s=1).failures
    assert {name: failure.kind for name, failure in late.items()} == {"late": "timeout", "mute": "timeout"}
    assert "did not answer within 1 s, while it read 'launch'; see whether" in late["late"].message
    assert "did not answer within 1 s; see whether" in late["mute"].message


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("greeting", "greets"), [(b"SSH-2.0-OpenSSH_9.2\r\n", True), (b"220 mail\r\n", False)])
def test_a_late_host_whose_sshd_greets_may_lose_large_packets(greeting: bytes, greets: bool) -> None:
    """A firewall that drops packets of more than 1,400 bytes lets the greeting through, and no exchange of keys."""
    with socket.create_server(("127.0.0.7", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as client:
                client.sendall(greeting)
                client.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        host = Host("late", "127.0.0.7", port=server.getsockname()[1])
        said = facts.gather([host], timeout_s=1).failures["late"].message
        thread.join()
    assert ("though its sshd greets; see whether large packets get lost" in said) is greets
    assert "ping -M do -s 1400 127.0.0.7" in said or not greets


@pytest.mark.usefixtures("stand_in")
def test_what_the_probe_says_of_its_way_is_no_error() -> None:
    argv = python.program(facts.NODE_PROBE).argv(sys.executable)
    request = json.dumps({"aloud": True}).encode()

    async def ask() -> tuple[python.Ending, str]:
        async with python.talk(argv) as talk:
            ending = await talk.finish(python.program(facts.NODE_PROBE).data + request)
            return ending, talk.reading

    ending, reading = asyncio.run(ask())
    assert ending.returncode == 0
    assert (ending.errors, reading) == ("", "watch")


@pytest.mark.usefixtures("stand_in")
def test_a_missing_interpreter_is_named() -> None:
    probe = facts.gather([Host("a", "192.0.2.1", python="/usr/bin/python9")])
    assert probe.failures["a"].kind == "no_python"
    assert "/usr/bin/python9" in probe.failures["a"].message


def test_without_an_ssh_client_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no ssh client" in facts.gather([Host("a", "192.0.2.1")]).failures["a"].message


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "ended with status 0, and printed nothing in its place; look for 'exit'"),
        ("echo maintenance; exit 0", "printed 'maintenance' in its place"),
        ("echo maintenance; exit 4", "ended with status 4, and printed 'maintenance' in its place"),
        ("echo broken >&2; exit 0", "printed nothing in its place and said 'broken'"),
    ],
)
def test_a_start_up_file_that_ends_the_login_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    """As a .bashrc does, which bash reads before the command of each login."""
    tmp_path.joinpath("ssh").write_text(f"#!/bin/sh\n{script}\n")
    tmp_path.joinpath("ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for failures in (
        facts.gather([Host("a", "192.0.2.1", user="mpi")]).failures,
        facts.gather_hardware([Host("a", "192.0.2.1", user="mpi")])[1],
    ):
        assert failures["a"].kind == "error"
        assert "a (192.0.2.1 port 22) gave no readable record: the login of user mpi ended" in failures["a"].message
        assert words in failures["a"].message
        assert "~/.bashrc" in failures["a"].message


@pytest.mark.parametrize(
    "host",
    [
        Host("a", "192.0.2.1", python="python3"),
        Host("a", "192.0.2.1", user="mpi", become=True),
        Host("a", "192.0.2.1", user="mpi", become=True).with_sudo_password("x"),
    ],
)
def test_a_path_that_lacks_the_folder_of_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    """A PATH="$PATH:/opt/x" in /etc/environment takes /usr/bin from each session, whose shell then finds no Python."""
    tmp_path.joinpath("ssh").write_text("#!/bin/sh\nfor last; do :; done\nPATH='$PATH:/opt/x'\neval \"$last\"\n")
    tmp_path.joinpath("ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    failure = facts.gather([host]).failures["a"]
    assert failure.kind == "error"
    assert "PATH of its sessions is '$PATH:/opt/x', and lacks /usr/bin, where Python" in failure.message


def test_the_line_of_a_path_is_named() -> None:
    shown = b'PATH=$PATH:/opt/x\nhas=/usr/bin\nhas=/bin\nline=1 PATH=/old\nline=4 PATH="$PATH:/opt/x"\n'
    assert ssh_failure.path_words(shown).endswith(
        'write all folders out in line 4 of /etc/environment (PATH="$PATH:/opt/x"), where nothing is expanded'
    )
    assert ssh_failure.path_words(b"PATH=/usr/bin:/bin\nhas=/usr/bin\n") == ""
    assert ssh_failure.path_words(b"welcome") == ""


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish"])
def test_every_login_shell_takes_the_commands_that_go_to_nodes(shell: str, tmp_path: Path) -> None:
    """csh ends a quoted text at a newline, and takes '!' in it for an event."""
    host = Host("a", "192.0.2.1", user="mpi", become=True).with_sudo_password("word")
    remote, first = one_trip.as_become_user(host, ["cat"])
    for words in (remote, one_trip.as_become_user(Host("a", "192.0.2.1", user="mpi", become=True), ["cat"])[0]):
        assert not {"\n", "!"} & set(shlex.join(words))
    assert not {"\n", "!"} & set(
        shlex.join([*ssh_failure.SHOW_PATH, *python.program(facts.NODE_PROBE).argv("python3")])
    )
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\ncase "$*" in *-n*) exit 1;; *" true") exit 0;; esac\nread -r word; echo "$word"; cat\n')
    sudo.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = [shell, "-c", shlex.join(remote)]
    done = subprocess.run(argv, input=first + b"rest\n", env=environment, capture_output=True, check=False)
    assert done.stdout == b"word\nrest\n"


def test_a_node_that_was_not_asked_tells_nothing_of_the_links_of_others() -> None:
    link = "node2 HCA-1 port 1 to switch port 3"
    told = {"schema_version": 1, "time": 1.0, "readings": [["fabric_link", link, "ends", "silent"]]}
    told["counters"] = [["fabric_port", "node2 HCA-1 port 1", "SymbolErrorCounter", 9]]
    ending = python.Ending(0, json.dumps(told).encode(), "")
    for sections in ((), ("interface_counters",)):
        found = facts._read_hardware(sections, Host("node1", "192.0.2.1"), ending)  # noqa: SLF001
        assert isinstance(found, Hardware)
        assert (found.readings, found.counters) == ((), ())
    reader = facts._read_hardware(OF_FABRIC, Host("node1", "192.0.2.1"), ending)  # noqa: SLF001
    assert isinstance(reader, Hardware)
    assert [one.device for one in reader.readings] == [link]


@pytest.mark.parametrize(
    ("name", "row", "count"),
    [
        ("readings", ["gpu", "d", "x", 1], 70_000),
        ("counters", ["gpu", "d", "x", 1], 70_000),
        ("events", [1.0, "xid", "d", "1", ""], 70_000),
        ("parts", ["gpu", "d", "m", "s", "f"], 5000),
        ("unseen", ["what", "why"], 70_000),
        ("readings", ["gpu", "d" * 20_000, "x", 1], 1),
        ("readings", ["gpu", "d", "x", "v" * 20_000], 1),
        ("events", [1.0, "xid", "d", "1", "t" * 20_000], 1),
    ],
)
def test_more_than_any_node_has_is_a_failure_of_this_node(name: str, row: list[object], count: int) -> None:
    told = {"schema_version": 1, "time": 1.0, "readings": [], "counters": [], name: [row] * count}
    ending = python.Ending(0, json.dumps(told).encode(), "")
    found = facts._read_hardware((), Host("node1", "192.0.2.1"), ending)  # noqa: SLF001
    assert isinstance(found, ProbeFailure)
    assert found.message.startswith("node1 (192.0.2.1 port 22) gave no readable record of its hardware")
