"""The script of cures: one command a line, quoted for both shells, and a comment that cannot end."""

from __future__ import annotations

import shlex

from clusterctl.model.findings import Finding
from clusterctl.model.hosts import Host
from clusterctl.report import doctor_table
from doctor_view import diagnosis

HOSTS = {
    "node1": Host("node1", "192.0.2.1", user="admin", port=2222),
    "node2": Host("node2", "192.0.2.2", user="root"),
}


def lines(*findings: Finding) -> list[str]:
    return doctor_table.script(diagnosis(*findings), HOSTS).splitlines()[3:]


def test_each_host_gets_the_command_with_sudo_where_its_login_is_not_root() -> None:
    found = Finding("leftovers", "error", ("node1", "node2"), "ranks are left over", "end them", (("kill", "7", "8"),))
    assert lines(found) == [
        "# node1, node2: ranks are left over",
        "ssh -p 2222 -l admin 192.0.2.1 -- 'sudo kill 7 8'",
        "ssh -p 22 -l root 192.0.2.2 -- 'kill 7 8'",
    ]


def test_a_host_behind_a_bastion_is_reached_as_doctor_reached_it() -> None:
    bastion = ("-o", "ProxyCommand=ssh -W %h:%p gate")
    host = Host("node1", "192.0.2.1", user="root", private_key="/keys/a b", ssh_args=bastion)
    found = Finding("leftovers", "error", ("node1",), "a rank is left over", "end it", (("kill", "7"),))
    *_, command = doctor_table.script(diagnosis(found), {"node1": host}).splitlines()
    words = shlex.split(command)
    key = ["-i", "/keys/a b", "-o", "IdentitiesOnly=yes"]
    assert words == ["ssh", "-p", "22", *key, "-l", "root", *bastion, "192.0.2.1", "--", "kill 7"]


def test_what_no_command_cures_is_a_comment() -> None:
    found = Finding("disks", "error", ("node1",), "nvme0n1 fails", "replace the disk")
    assert lines(found) == ["# node1: nvme0n1 fails", "# by hand: replace the disk"]


def test_words_of_a_node_stay_words() -> None:
    evil = "x'; reboot\nreboot"
    found = Finding("gpus", "error", ("node2",), f"the GPU {evil}", "look", (("nvidia-smi", "-i", evil),))
    comment, *command = doctor_table.script(diagnosis(found), HOSTS).split("\n", 4)[3:]
    assert comment == "# node2: the GPU x'; reboot?reboot"
    words = shlex.split("\n".join(command))
    assert words[:-1] == ["ssh", "-p", "22", "-l", "root", "192.0.2.2", "--"]
    assert shlex.split(words[-1]) == ["nvidia-smi", "-i", evil]
