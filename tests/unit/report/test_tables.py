from __future__ import annotations

import shlex

from clusterctl.model.findings import Finding
from clusterctl.model.hosts import Host
from clusterctl.report import tables
from doctor_view import NODES, diagnosis
from report_records import CHECKS, HUNG, PAIRS, record


def test_the_ending_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert tables.doctor_rows(diagnosis(warning))[0].nodes == "node[1-3]"
    assert tables.doctor_closing(diagnosis()) == ("4 hosts: nothing wrong was found (0.0 s).",)
    assert tables.doctor_closing(diagnosis(error, warning, warning, unreachable=("node4",), notes=("a.",))) == (
        "Note: a.",
        "4 hosts, 3 of them within reach: 1 error and 2 warnings (0.0 s).",
    )


def test_the_source_of_a_limit_stands_under_the_cause_and_in_the_record() -> None:
    found = diagnosis(Finding("links", "warning", ("node1",), "errors grew", "look", source="IEEE 802.3"))
    assert tables.doctor_rows(found)[0].cause == "errors grew\nsource: IEEE 802.3"
    assert found.model_dump(mode="json")["findings"][0]["source"] == "IEEE 802.3"


def test_the_terminal_names_culprits_first() -> None:
    lines = tables.validation_opening(record((PAIRS, HUNG)))
    assert lines[:3] == (
        "What to do:",
        "  1. every job with node4 hangs",
        "     Check its kernel log and the processes that are left on it, or leave it out with --limit.",
    )
    assert "  2. node2 is slow (since 2026-02-26 02:30)" in lines
    assert lines[-3:] == (
        "Out of bounds:",
        "  bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        "Search after allreduce: node4 makes allreduce hang (1 launches)",
    )


def test_the_table_says_what_to_do_next() -> None:
    rows = tables.validation_rows(record())
    assert [(row.check, row.time) for row in rows] == [
        ("reachable", "0.50 s"),
        ("allreduce", "3.25 s"),
        ("gather", "1.00 s"),
        ("reduce", ""),
    ]
    assert tables.validation_closing(record()) == (
        "FAIL: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",
        "May still be running: node3: x",
        "What allreduce printed: /state/run/logs/allreduce.log",
        "See it again: clusterctl validate inventory.ini --checks allreduce",
    )
    assert tables.validation_closing(record(CHECKS[:1])) == ("PASS: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",)


# --- The script of cures: one command a line, quoted for both shells, and a comment that cannot end -------------------

HOSTS = {
    "node1": Host("node1", "192.0.2.1", user="admin", port=2222),
    "node2": Host("node2", "192.0.2.2", user="root"),
}


def lines(*findings: Finding) -> list[str]:
    return tables.fix_script(diagnosis(*findings), HOSTS).splitlines()[3:]


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
    *_, command = tables.fix_script(diagnosis(found), {"node1": host}).splitlines()
    words = shlex.split(command)
    key = ["-i", "/keys/a b"]
    assert words == ["ssh", "-p", "22", *key, "-l", "root", *bastion, "192.0.2.1", "--", "kill 7"]


def test_what_no_command_cures_is_a_comment() -> None:
    found = Finding("disks", "error", ("node1",), "nvme0n1 fails", "replace the disk")
    assert lines(found) == ["# node1: nvme0n1 fails", "# by hand: replace the disk"]


def test_words_of_a_node_stay_words() -> None:
    evil = "x'; reboot\nreboot"
    found = Finding("gpus", "error", ("node2",), f"the GPU {evil}", "look", (("nvidia-smi", "-i", evil),))
    comment, *command = tables.fix_script(diagnosis(found), HOSTS).split("\n", 4)[3:]
    assert comment == "# node2: the GPU x'; reboot?reboot"
    words = shlex.split("\n".join(command))
    assert words[:-1] == ["ssh", "-p", "22", "-l", "root", "192.0.2.2", "--"]
    assert shlex.split(words[-1]) == ["nvidia-smi", "-i", evil]
