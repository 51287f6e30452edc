"""MaxStartups of sshd against the number of nodes: the value of sshd -T, else that of sshd's files."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest
import rehearsal
from clusterctl.diagnosis.rules import logins, registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host
from doctor_view import NODES, Record, seen
from recorded_machine import Answer, Machine


def limited(value: str) -> View:
    def change(record: Record) -> None:
        record["ssh"]["settings"] = {"MaxStartups": value}

    return seen(node3=change)


def asked(value: str, hosts: int = len(NODES)) -> View:
    look = Hardware(schema_version=1, time=1.0, readings=(HardwareReading("sshd", "", "MaxStartups", value),))
    more = tuple(Host(f"more{number}", f"10.0.1.{number}") for number in range(hosts - len(NODES)))
    view = limited("1:99:2")
    return dataclasses.replace(view, hosts=(*view.hosts, *more), hardware={"node3": HardwareLooks(look)})


def test_a_limit_below_the_number_of_nodes_is_found_in_the_files_of_sshd() -> None:
    (found,) = registry.diagnose(limited("2:99:4"))
    assert (found.check, found.severity, found.hosts) == ("ssh", "warning", ("node3",))
    assert "when 2 are under way (MaxStartups 2:99:4), and 4 nodes" in found.cause
    assert "set 'MaxStartups 10:30:100' in sshd_config" in found.cure


@pytest.mark.parametrize("value", ["", "4", "10:30:100", "2:99:4, 10:30:100", "many", "9" * 5000])
def test_enough_logins_and_what_is_unclear_are_no_finding(value: str) -> None:
    assert list(logins.login_limits(limited(value))) == []
    assert list(logins.login_limits_notes(limited(value))) == []


def test_what_sshd_says_itself_goes_before_its_files() -> None:
    assert list(logins.login_limits(asked("10:30:100"))) == []
    assert [one.hosts for one in logins.login_limits(asked("3:30:100"))] == [("node3",)]


def test_the_default_is_a_note_on_a_cluster_of_more_nodes() -> None:
    view = asked("10:30:100", 64)
    assert list(logins.login_limits(view)) == []
    (note,) = logins.login_limits_notes(view)
    assert note.endswith("A program that logs in from all 64 nodes at once needs 'MaxStartups 64:30:128'.")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (Answer("port 22\nmaxstartups 3:30:100\nmaxsessions 10\n"), "3:30:100"),
        (Answer("'Match User' in configuration but 'user' not in connection test specification.\n", 255), None),
        (Answer("maxstartups many\n"), None),
        (None, None),
    ],
)
def test_the_node_asks_sshd(answer: Answer | None, value: str | None) -> None:
    machine = Machine(tools={"sshd -T": answer} if answer else {"true": Answer("")})
    with tempfile.TemporaryDirectory() as folder:
        root, tools = machine.write(Path(folder))
        told = rehearsal.record.collect({"root": str(root), "tools": str(tools), "sections": ["ssh_server"]})
    assert Hardware.model_validate(told).values("sshd", "MaxStartups").get("") == value
