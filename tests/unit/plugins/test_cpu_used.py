"""What a module says of the processor time of its connection, on made-up processes and on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import cpu_used

if TYPE_CHECKING:
    from pathlib import Path

SECOND = os.sysconf("SC_CLK_TCK")
OWN = os.getpid()


def _process(proc: Path, pid: int, parent: int, words: str, seconds: int = 0, of_children: int = 0) -> None:
    """Write a process that used so many seconds of user time, and whose ended children used others."""
    fields = ["S", str(parent), *["0"] * 9, str(seconds * SECOND), "0", str(of_children * SECOND), "0", *["0"] * 4]
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a) b) {' '.join([*fields, str(pid * 7), '0'])}\n")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_used, "PROC", str(tmp_path))
    _process(tmp_path, OWN, 51, "/usr/bin/python3 module", seconds=2, of_children=3)
    return tmp_path


@pytest.mark.parametrize("listener", ["/usr/sbin/sshd -D", "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"])
def test_a_connection_has_what_ran_on_it_before_and_nothing_of_the_listener(proc: Path, listener: str) -> None:
    _process(proc, 51, 50, "/bin/sh -c /usr/bin/python3")
    _process(proc, 50, 9, "sshd: root@notty", seconds=1, of_children=10)
    _process(proc, 9, 1, listener, seconds=100, of_children=1000)
    assert cpu_used.used() == {"connection": "sshd 50 350", "seconds": 16.0}


def test_both_processes_of_an_unprivileged_login_and_sudo_count(proc: Path) -> None:
    _process(proc, 51, 52, "sudo -n /bin/sh", seconds=1)
    _process(proc, 52, 53, "sshd-session: user1@notty", seconds=1, of_children=4)
    _process(proc, 53, 9, "sshd-session: user1 [priv]", seconds=2)
    _process(proc, 9, 1, "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", of_children=1000)
    assert cpu_used.used() == {"connection": "sshd 53 371", "seconds": 13.0}


def test_a_module_on_the_controller_counts_itself_and_not_its_users_login(proc: Path) -> None:
    _process(proc, 51, 50, "/usr/bin/python3 /usr/bin/ansible-playbook site.yml", seconds=50)
    _process(proc, 50, 1, "sshd: user1@pts/0", of_children=1000)
    found = cpu_used.used()
    assert found["connection"] == f"process {OWN} {OWN * 7}"
    assert 0 < found["seconds"] < 50 + 1000


def test_without_sshd_or_proc_a_module_counts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_used, "PROC", str(tmp_path))
    found = cpu_used.used()
    assert found["connection"] == f"process {OWN} "
    assert found["seconds"] > 0
